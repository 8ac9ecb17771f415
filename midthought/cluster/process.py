"""What the processes of a run give each other: settings of the process, objects and models as bytes, and digests of tensors.
Large shared objects are sent by reference. If an object cannot be pickled, the error names the part at fault and its path. Does
not depend on Ray."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import io
import logging
import os
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from cloudpickle import CloudPickler

from midthought.algo.policy_losses import POLICY_LOSSES
from midthought.config import TrainingConfig
from midthought.errors import SettingsError
from midthought.learning.learner_worker import LearnerWorker
from midthought.learning.model import Models
from midthought.learning.optimizer import TrainingSchedule

Name = Callable[[object], object | None]
"""Returns the reference that replaces an object; None: the object itself is sent."""
Find = Callable[[Any], object]
"""Returns the object of a reference."""
_MAX_DEPTH = 12
_LEARNED = "what is learned"


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessSettings:
    """What other processes take over from the first one: folders for imports, and settings that change how passes round."""

    search_path: Sequence[str]
    num_threads: int
    is_deterministic: bool
    only_warns: bool
    """Whether an operation that is not deterministic is a warning, no error."""
    matmul_precision: str

    @classmethod
    def of_this_process(cls, num_threads: int | None = None) -> ProcessSettings:
        return cls(
            search_path=[os.path.abspath(folder) for folder in sys.path],
            num_threads=num_threads or torch.get_num_threads(),
            is_deterministic=torch.are_deterministic_algorithms_enabled(),
            only_warns=torch.is_deterministic_algorithms_warn_only_enabled(),
            matmul_precision=torch.get_float32_matmul_precision(),
        )

    def begin(self) -> None:
        """Makes the code of the first process importable here, and logs warnings."""
        sys.path += [folder for folder in self.search_path if folder not in sys.path]
        logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")

    def apply_numerics(self) -> None:
        """Makes this process round like the first one; the number of threads applies to the current thread."""
        torch.set_num_threads(self.num_threads)
        torch.use_deterministic_algorithms(self.is_deterministic, warn_only=self.only_warns)
        torch.set_float32_matmul_precision(self.matmul_precision)


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
        for name, cell in zip(thing.__code__.co_freevars, thing.__closure__ or (), strict=False):
            with contextlib.suppress(ValueError):  # the variable has no value yet
                yield f".{name}", cell.cell_contents
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


def pack_learner(models: Models, training: TrainingConfig, schedule: TrainingSchedule) -> bytes:
    """Returns what a process needs for its `LearnerWorker`, without the weights. Raises `SettingsError` as `serialize`."""
    loss = training.policy_loss, POLICY_LOSSES.find(training.policy_loss)
    tensors = models.tensors()
    learning = {name for name, tensor in tensors.items() if tensor.requires_grad}
    return serialize((models, training, schedule, loss, learning), _LEARNED, placeholder_of(tensors))


def unpack_learner(payload: bytes, device: str) -> LearnerWorker:
    """Returns the worker, whose models have uninitialized tensors: memory is allocated when values are written."""
    found = deserialize(payload, _LEARNED, fill_placeholders("cpu"))
    models, training, schedule, (name, loss), learning = found
    POLICY_LOSSES.add(name, loss)
    for key, tensor in models.tensors().items():
        if key in learning:
            tensor.requires_grad_(True)
    return LearnerWorker(models, training, schedule, device)


def named_tensors(model: Any) -> dict[str, torch.Tensor]:
    """Returns the parameters and buffers by name; a shared tensor (a tied output layer) has one name."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def placeholder_of(tensors: Mapping[str, torch.Tensor]) -> Callable[[object], object | None]:
    """Returns the function that replaces each tensor by a placeholder, to pickle a model without its weights."""
    name_of = {id(tensor): name for name, tensor in tensors.items()}

    def name(thing: object) -> object | None:
        if not isinstance(thing, torch.Tensor) or id(thing) not in name_of:
            return None
        return name_of[id(thing)], tuple(thing.shape), thing.dtype, isinstance(thing, torch.nn.Parameter)

    return name


def fill_placeholders(device: str) -> Callable[[Any], torch.Tensor]:
    """Returns the function that replaces placeholders by uninitialized tensors on the device, one per name."""
    made: dict[str, torch.Tensor] = {}

    def find(frame: tuple[str, tuple[int, ...], torch.dtype, bool]) -> torch.Tensor:
        name, shape, dtype, is_parameter = frame
        if name not in made:
            empty = torch.empty(shape, dtype=dtype, device=device)
            made[name] = torch.nn.Parameter(empty, requires_grad=False) if is_parameter else empty
        return made[name]

    return find


def digest_of(tensor: torch.Tensor) -> str:
    """BLAKE2b of the tensor's bytes."""
    return hashlib.blake2b(bytes_of(tensor).data, digest_size=16).hexdigest()


def write_bytes(tensors: Mapping[str, torch.Tensor], data: Mapping[str, np.ndarray]) -> None:
    """Copies bytes (`bytes_of`), by name, into the tensors in place."""
    for name, values in data.items():
        if len(values):  # a copy of them: the object store's memory is read-only, and torch would warn
            tensors[name].detach().view(-1).view(torch.uint8).copy_(torch.from_numpy(np.array(values)))


def bytes_of(tensor: torch.Tensor) -> np.ndarray:
    """Returns uint8 [n], without a copy if the tensor is contiguous on the CPU."""
    flat = tensor.detach().cpu().contiguous().view(-1)
    return flat.view(torch.uint8).numpy() if flat.numel() else np.zeros(0, np.uint8)
