"""Fusion of tensor operations: `torch.compile` for half precision on a GPU, where operations on logits are limited by memory
bandwidth. Everywhere else, and if compiling fails or gives other results, functions run as they are written."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

import torch
from torch import Tensor

DEVICES = {"cuda"}
"""Types of devices on which functions are compiled."""
HALF = (torch.bfloat16, torch.float16)
TOLERANCE = 0.01
"""Maximum difference from the function as it is written: norm of the difference, relative to the norm of the result."""

_log = logging.getLogger(__name__)
P = ParamSpec("P")
Result = TypeVar("Result")


class Fused(Generic[P, Result]):
    """A function of tensors [n, ...] whose results are tensors, compiled for any n.

    The first call of each kind (types of tensors, values of other arguments) also runs the function as it is written and
    compares the results. The function must not change its arguments if the first is in half precision.
    """

    def __init__(self, function: Callable[P, Result]) -> None:
        self._function = function
        self._compiled: Callable[..., Result] | None = None
        self._is_right: dict[Any, bool] = {}

    def __call__(self, *arguments: P.args, **options: P.kwargs) -> Result:
        first: Any = arguments[0]
        if first.device.type not in DEVICES or first.dtype not in HALF:
            return self._function(*arguments, **options)
        kind = tuple(_kind(each) for each in (*arguments, *options.values()))
        if kind not in self._is_right:
            self._is_right[kind] = self._agrees(arguments, options)
        return self._fused(arguments, options) if self._is_right[kind] else self._function(*arguments, **options)

    def _fused(self, arguments: tuple[Any, ...], options: dict[str, Any]) -> Result:
        if self._compiled is None:
            self._compiled = torch.compile(self._function)
        for each in (*arguments, *options.values()):
            if isinstance(each, Tensor):
                torch._dynamo.maybe_mark_dynamic(each, 0)
        return self._compiled(*arguments, **options)

    def _agrees(self, arguments: tuple[Any, ...], options: dict[str, Any]) -> bool:
        """Whether the compiled function can be used. Logs the reason if not."""
        try:
            found = self._fused(arguments, options)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # compilers raise errors of many classes
            return _refused(f"{type(error).__name__}: {error}".splitlines()[0])
        difference = _difference(found, self._function(*arguments, **options))
        return difference <= TOLERANCE or _refused(f"results differ by {difference:.2g}")


def _kind(argument: Any) -> Any:
    return (argument.device, argument.dtype, argument.shape[1:]) if isinstance(argument, Tensor) else argument


def _difference(found: Any, expected: Any) -> float:
    if isinstance(found, tuple):
        return sum(_difference(ours, theirs) for ours, theirs in zip(found, expected, strict=True))
    norm = float(torch.linalg.vector_norm(expected, dtype=torch.float32))
    difference = float(torch.linalg.vector_norm(found - expected, dtype=torch.float32))
    return difference / norm if norm else difference


def _refused(reason: str) -> bool:
    _log.warning("log-probabilities are computed without torch.compile, which is slower: %s", reason)
    return False
