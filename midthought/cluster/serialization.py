"""Serializes objects for other processes of a run. Large shared objects are sent by reference.

If an object cannot be pickled, the error names the part at fault and its path.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import pickle
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from cloudpickle import CloudPickler

from midthought.errors import SettingsError

Name = Callable[[object], object | None]
"""Returns the reference that replaces an object; None: the object itself is sent."""
Find = Callable[[Any], object]
"""Returns the object of a reference."""

_MAX_DEPTH = 12


class _ReferencePickler(CloudPickler):
    """Only used with references, because `persistent_id` is called for every object, which is slow."""

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
    """Returns the object as bytes. Raises `SettingsError` with `what` and the innermost part that cannot be pickled."""
    try:
        return _serialize(thing, name)
    except Exception as error:
        way, part, error = _find_unpicklable(thing, error, name)
        place = f" ({way.lstrip('.')})" if way else ""
        raise SettingsError(
            f"{what} cannot be sent to another process: it holds a {type(part).__module__}.{type(part).__qualname__}{place}, "
            f"which cannot be pickled ({type(error).__name__}: {str(error).partition(chr(10))[0]}). Create such objects when "
            "they are needed (a connection in `reset` or at its first use), leave them out in __getstate__ and create them "
            "again in __setstate__, or set ray.use_ray and inference.overlap to false"
        ) from error


def deserialize(data: bytes, what: str, find: Find = lambda name: None) -> Any:
    """Returns the object. Raises `SettingsError` with `what` if this process cannot import its code."""
    try:
        return _Unpickler(io.BytesIO(data), find).load()
    except (ImportError, AttributeError) as error:
        raise SettingsError(
            f"{what} cannot be loaded by another process ({type(error).__name__}: {error}): its code must be importable there; "
            "install it (on a cluster on every node), start in its folder, or define it in the script itself"
        ) from error


def _serialize(thing: object, name: Name | None) -> bytes:
    file = io.BytesIO()
    packer = CloudPickler(file) if name is None else _ReferencePickler(file, name)
    packer.dump(thing)
    return file.getvalue()


def _find_unpicklable(thing: object, error: Exception, name: Name | None) -> tuple[str, object, Exception]:
    """Finds the innermost part that cannot be pickled. Returns its path, the part, and the error."""
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
    """Yields the parts of an object, each with its path relative to the object."""
    if isinstance(thing, Mapping):
        yield from ((f"[{key!r}]", value) for key, value in thing.items())
    elif isinstance(thing, list | tuple | set | frozenset):
        yield from ((f"[{number}]", value) for number, value in enumerate(thing))
    elif isinstance(thing, functools.partial):
        yield from ((f".{part}", getattr(thing, part)) for part in ("func", "args", "keywords"))
    elif hasattr(thing, "__self__"):
        yield "", thing.__self__
    elif hasattr(thing, "__code__"):
        names = thing.__code__.co_freevars
        cells = zip(names, thing.__closure__ or (), strict=False)
        yield from ((f".{name}", cell.cell_contents) for name, cell in cells)
        known = thing.__globals__
        yield from ((f".{name}", known[name]) for name in thing.__code__.co_names if name in known)
    elif not isinstance(thing, type):
        try:
            state = thing.__getstate__()
        except Exception:  # it refuses to be pickled
            return
        if isinstance(state, list) and dataclasses.is_dataclass(thing):
            state = dict(zip((each.name for each in dataclasses.fields(thing)), state, strict=True))
        for parts in state if isinstance(state, tuple) else (state,):  # a pair if the class has __slots__
            yield from ((f".{part}", value) for part, value in (parts.items() if isinstance(parts, Mapping) else ()))
