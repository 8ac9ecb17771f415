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

    @property
    def copies(self) -> Sequence[Tensor | None]:
        """The copies, if there are any yet."""
        ...


class Projection:
    """Linear maps of one input, side by side in the output. What is copied of a single one is how its tensor is read."""

    def __init__(self, *modules: nn.Linear) -> None:
        self.modules = modules
        self._laid_out: tuple[Tensor, Tensor | None] | None = None
        """`[in, out]` and `[out]`."""

    def copy(self) -> None:
        (first, *others), (weight, bias) = self.modules, self._laid_out or (None, None)
        if others:
            weight = _joined([module.weight for module in self.modules], None if weight is None else weight.t())
            bias = None if first.bias is None else _joined([module.bias for module in self.modules], bias)
        else:
            weight, bias = first.weight, first.bias
        self._laid_out = weight.t(), bias

    @property
    def copies(self) -> tuple[Tensor | None, ...]:
        """What is read in the place of the modules' tensors."""
        return self._laid_out or ()

    def __call__(self, hidden: Tensor, *, onto: Tensor | None = None) -> Tensor:
        """`[T, out]` of `[T, in]`, added to something."""
        if self._laid_out is None:
            outs = [F.linear(hidden, module.weight, module.bias) for module in self.modules]
            out = torch.cat(outs, dim=-1) if len(outs) > 1 else outs[0]
            return out if onto is None else onto + out
        weight, bias = self._laid_out
        if onto is None:
            return torch.mm(hidden, weight) if bias is None else torch.addmm(bias, hidden, weight)
        out = torch.addmm(onto, hidden, weight)
        return out if bias is None else out.add_(bias)


class HeadNorms:
    """RMS norms (arXiv 1910.07467) of the heads of queries and keys, `[T, num_queries + num_keys, head_dim]`.

    `scaling` is what the scores of queries and keys are multiplied with; the copied weights of the queries hold it.
    """

    def __init__(self, query_norm: Any, key_norm: Any, num_queries: int, num_keys: int, scaling: float) -> None:
        self.modules = (query_norm, key_norm)
        self._numbers = (num_queries, num_keys)
        self._scaling = scaling
        self._weight: Tensor | None = None

    def copy(self) -> None:
        query_norm, key_norm = self.modules
        weights = (self._scaling * query_norm.weight, key_norm.weight)
        pairs = zip(weights, self._numbers, strict=True)
        self._weight = _joined([weight.expand(number, -1) for weight, number in pairs], self._weight)

    @property
    def copies(self) -> tuple[Tensor | None, ...]:
        """What is read in the place of the modules' tensors."""
        return (self._weight,)

    def __call__(self, heads: Tensor) -> tuple[Tensor, float]:
        """The heads normed, and what is left to multiply the scores with."""
        if self._weight is None or heads.dtype != torch.float32:
            parts = zip(self.modules, heads.split(self._numbers, dim=1), strict=True)
            return torch.cat([normed(norm, part) for norm, part in parts], dim=1), self._scaling
        return rms_normed(heads, self._weight, self.modules[0].variance_epsilon), 1.0


def _joined(parts: Sequence[Tensor], before: Tensor | None) -> Tensor:
    """Side by side, where they stood before: recorded passes read them there."""
    is_alike = before is not None and before.dtype == parts[0].dtype and before.device == parts[0].device
    return torch.cat(list(parts), out=before) if is_alike else torch.cat(list(parts))


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
        joined = [module for each in copied if len(each.modules) > 1 for module in each.modules]
        num_bytes = sum(tensor.nbytes for module in joined for tensor in module.parameters())
        is_small = num_bytes <= MAX_COPIED_BYTES
        self._copied, self._originals = (copied, originals) if is_small else ([], [])
        self._states: list[tuple[int, int]] | None = None

    def renew(self) -> None:
        """Copy anew where a tensor has been changed in place or been given other memory."""
        states = [(0 if tensor.is_inference() else tensor._version, tensor.data_ptr()) for tensor in self._originals]
        if states != self._states:
            for each in self._copied:
                each.copy()
            self._states = states

    @property
    def addresses(self) -> list[int]:
        """Where the copies lie."""
        return [copy.data_ptr() for each in self._copied for copy in each.copies if copy is not None]

    def forget(self) -> None:
        """Copy anew at the next `renew`: writes through `.data` and those of fused optimizers are counted nowhere."""
        self._states = None
