"""Weights of small models, laid out anew for quick passes: maps of one input stand side by side, and are one call.

Where a model is large nothing is copied and every tensor is read where it is: computing then takes longer than calling.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MAX_COPIED_BYTES = 2**29
"""Where what would be copied takes more, it is read where it is."""


class _Copied(Protocol):
    """Something that works on the original tensors until they are copied."""

    @property
    def modules(self) -> Sequence[nn.Module]:
        """What holds the tensors."""
        ...

    def copy(self) -> None:
        """Copy the tensors as they are now."""
        ...


class Projection:
    """Linear maps of one input, side by side in the output."""

    def __init__(self, *modules: nn.Linear) -> None:
        self.modules = modules
        self._joined: tuple[Tensor, Tensor | None] | None = None

    def copy(self) -> None:
        weight = torch.cat([module.weight for module in self.modules])
        has_bias = self.modules[0].bias is not None
        self._joined = weight, torch.cat([module.bias for module in self.modules]) if has_bias else None

    def __call__(self, hidden: Tensor) -> Tensor:
        """`[T, out]` of `[T, in]`."""
        if self._joined is not None:
            return F.linear(hidden, *self._joined)
        return torch.cat([linear(module, hidden) for module in self.modules], dim=-1)


def linear(module: nn.Linear, hidden: Tensor, *, onto: Tensor | None = None) -> Tensor:
    """A linear map, added to something."""
    if onto is None:
        return F.linear(hidden, module.weight, module.bias)
    if module.bias is None:
        return torch.addmm(onto, hidden, module.weight.t())
    return onto + F.linear(hidden, module.weight, module.bias)


class HeadNorms:
    """RMS norms (arXiv 1910.07467) of the heads of queries and keys, `[T, num_queries + num_keys, head_dim]`."""

    def __init__(self, query_norm: Any, key_norm: Any, num_queries: int, num_keys: int) -> None:
        self.modules = (query_norm, key_norm)
        self._numbers = (num_queries, num_keys)
        self._weight: Tensor | None = None

    def copy(self) -> None:
        pairs = zip(self.modules, self._numbers, strict=True)
        self._weight = torch.cat([norm.weight.expand(number, -1) for norm, number in pairs])

    def __call__(self, heads: Tensor) -> Tensor:
        if self._weight is None or heads.dtype != torch.float32:
            parts = zip(self.modules, heads.split(self._numbers, dim=1), strict=True)
            return torch.cat([normed(norm, part) for norm, part in parts], dim=1)
        return rms_normed(heads, self._weight, self.modules[0].variance_epsilon)


def normed(norm: Any, hidden: Tensor) -> Tensor:
    """An RMS norm, arXiv 1910.07467. In half precision modules differ in where they round, so they do it themselves."""
    return rms_normed(hidden, norm.weight, norm.variance_epsilon) if hidden.dtype == torch.float32 else norm(hidden)


def rms_normed(hidden: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """`weight · hidden / √(mean(hidden²) + epsilon)` over the last dimension, in fp32.

    On a CPU torch's own is put together from a dozen operations; these four take half of the time.
    """
    if hidden.device.type != "cpu":
        return F.rms_norm(hidden, hidden.shape[-1:], None, epsilon) * weight
    length = torch.linalg.vector_norm(hidden, dim=-1, keepdim=True)
    mean_of_squares = torch.addcmul(_constant(epsilon), length, length, value=1 / hidden.shape[-1])
    return torch.mul(hidden, mean_of_squares.rsqrt_()).mul_(weight)


@functools.cache
def _constant(value: float) -> Tensor:
    return torch.tensor(value)


class WeightCopies:
    """Sees that copies are those of the weights as they are."""

    def __init__(self, copied: Sequence[_Copied]) -> None:
        originals = [tensor for each in copied for module in each.modules for tensor in module.parameters()]
        is_small = sum(tensor.nbytes for tensor in originals) <= MAX_COPIED_BYTES
        self._copied, self._originals = (copied, originals) if is_small else ([], [])
        self._states: list[tuple[int, int]] | None = None

    def renew(self) -> None:
        """Copy anew where a tensor has been changed in place or been given other memory."""
        states = [(0 if tensor.is_inference() else tensor._version, tensor.data_ptr()) for tensor in self._originals]
        if states != self._states:
            for each in self._copied:
                each.copy()
            self._states = states

    def forget(self) -> None:
        """Copy anew at the next `renew`: writes through `.data` and those of fused optimizers are counted nowhere."""
        self._states = None
