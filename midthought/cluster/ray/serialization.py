"""Objects as bytes for another process: Ray's own pickling, with some objects named instead of sent.

What cannot be sent is found and named, with the way that leads to it.
"""

from __future__ import annotations

import functools
import io
import pickle
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ray.cloudpickle import CloudPickler

from midthought.errors import SettingsError
from midthought.tools.executor import ToolExecutor

Name = Callable[[object], object | None]
"""What stands for an object instead of its bytes; None where it is to be sent."""
Find = Callable[[Any], object]
"""The object that a name stands for."""

_MAX_DEPTH = 12
_LIMITS = (
    "timeout_seconds",
    "max_concurrency",
    "max_threads",
    "retries",
    "max_failures",
    "pause_seconds",
    "max_result_chars",
)


class _Pickler(CloudPickler):
    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, ToolExecutor):
            return _rebuild_executor, _reduce_executor(thing)
        return super().reducer_override(thing)


class _ReferencePickler(_Pickler):
    """Apart from the other, for it is asked about every number in every list."""

    def __init__(self, file: io.BytesIO, name: Name) -> None:
        super().__init__(file)
        self._name = name

    def persistent_id(self, thing: object) -> object | None:
        return self._name(thing)


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, find: Find) -> None:
        super().__init__(file)
        self._find = find

    def persistent_load(self, name: Any) -> object:
        return self._find(name)


def serialize(thing: object, what: str, name: Name | None = None) -> bytes:
    """The object as bytes. Raises SettingsError naming `what` and the innermost part that cannot be sent."""
    try:
        return _serialize(thing, name)
    except Exception as error:
        way, part, error = _find_unpicklable(thing, error, name)
        place = f" ({way.lstrip('.')})" if way else ""
        raise SettingsError(
            f"{what} cannot be sent to Ray's workers: it holds a {type(part).__module__}.{type(part).__qualname__}{place}, "
            f"which cannot be pickled ({type(error).__name__}: {str(error).partition(chr(10))[0]}). Open such things where "
            "they are used (a connection in `reset`, or when first asked for), leave them out in __getstate__ and make them "
            "anew in __setstate__, or set ray.use_ray to false"
        ) from error


def deserialize(data: bytes, what: str, find: Find = lambda name: None) -> Any:
    """The object. Raises SettingsError naming `what` where this process lacks something that it needs."""
    try:
        return _Unpickler(io.BytesIO(data), find).load()
    except (ImportError, AttributeError) as error:
        raise SettingsError(
            f"{what} cannot be opened by Ray's worker ({type(error).__name__}: {error}): its code must be importable there; "
            "install it on every node, stand in its folder when you start, or define it in the script itself"
        ) from error


def _serialize(thing: object, name: Name | None) -> bytes:
    file = io.BytesIO()
    packer = _Pickler(file) if name is None else _ReferencePickler(file, name)
    packer.dump(thing)
    return file.getvalue()


def _find_unpicklable(thing: object, error: Exception, name: Name | None) -> tuple[str, object, Exception]:
    """The innermost part that cannot be packed: the way to it, itself, and what is raised."""
    way = ""
    for _ in range(_MAX_DEPTH):
        for step, part in _children(thing):
            try:
                _serialize(part, name)
            except Exception as raised:
                way, thing, error = way + step, part, raised
                break
        else:
            break
    return way, thing, error


def _children(thing: Any) -> Iterator[tuple[str, Any]]:
    """What an object consists of, each part with the words that lead to it."""
    if isinstance(thing, Mapping):
        yield from ((f"[{key!r}]", value) for key, value in thing.items())
    elif isinstance(thing, list | tuple | set | frozenset):
        yield from ((f"[{number}]", value) for number, value in enumerate(thing))
    elif isinstance(thing, functools.partial):
        yield from ((f".{part}", getattr(thing, part)) for part in ("func", "args", "keywords"))
    elif isinstance(thing, ToolExecutor):
        yield ".registry", thing.registry
    elif hasattr(thing, "__self__"):
        yield "", thing.__self__
    elif hasattr(thing, "__code__"):
        names = thing.__code__.co_freevars
        cells = zip(names, thing.__closure__ or (), strict=False)
        yield from ((f".{name}", cell.cell_contents) for name, cell in cells)
        known = thing.__globals__
        yield from ((f".{name}", known[name]) for name in thing.__code__.co_names if name in known)
    elif not isinstance(thing, type):
        yield from ((f".{part}", value) for part, value in getattr(thing, "__dict__", {}).items())
        for kind in type(thing).__mro__:
            names = getattr(kind, "__slots__", ())
            for part in (names,) if isinstance(names, str) else names:
                if hasattr(thing, part):
                    yield f".{part}", getattr(thing, part)


def _reduce_executor(executor: ToolExecutor) -> tuple[Any, ...]:
    """A tool executor without what belongs to this process: its threads, its event loops, its count of failures."""
    limits = {limit: getattr(executor, limit) for limit in _LIMITS}
    plain = vars(ToolExecutor(executor.registry))
    own = {name: value for name, value in vars(executor).items() if name not in plain}
    return type(executor), executor.registry, limits, own


def _rebuild_executor(
    kind: type[ToolExecutor], registry: Any, limits: dict[str, Any], own: dict[str, Any]
) -> ToolExecutor:
    executor = object.__new__(kind)
    ToolExecutor.__init__(executor, registry, **limits)
    vars(executor).update(own)
    return executor
