"""RMS norms (arXiv 1910.07467) in one kernel: `torch.nn.functional.rms_norm` in place of transformers' modules.

In half precision a module takes seven kernels forward and more backward. Used on a GPU in half precision, for modules that
compute the same function, which is found by running them. Does not depend on a model.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from midthought.learning import fused


class FusedNorms:
    """The norms of models that can be computed in one kernel. Weights are read in place; nothing is copied."""

    def __init__(self, *models: Any) -> None:
        self._norms: list[Any] = []
        is_same: dict[Any, bool] = {}
        for module in (module for model in models for module in model.modules()):
            if _is_candidate(module):
                weight = module.weight
                key = type(module), weight.device, weight.dtype, weight.shape, module.variance_epsilon
                if key not in is_same:
                    is_same[key] = _computes_the_same(module)
                self._norms += [module] if is_same[key] else []

    @contextmanager
    def active(self) -> Iterator[None]:
        """Replaces the norms' `forward` within the context."""
        replaced = [norm for norm in self._norms if "forward" not in vars(norm)]
        try:
            for norm in replaced:
                norm.forward = functools.partial(_normed, norm)
            yield
        finally:
            for norm in replaced:
                vars(norm).pop("forward", None)


def _normed(norm: Any, hidden: Tensor) -> Tensor:
    return F.rms_norm(hidden, hidden.shape[-1:], norm.weight, norm.variance_epsilon)


def _is_candidate(module: nn.Module) -> bool:
    """Whether it has only a vector of weights, in half precision on a GPU, the epsilon of an RMS norm, and one input."""
    weights = dict(module.named_parameters())
    if list(weights) != ["weight"] or not isinstance(getattr(module, "variance_epsilon", None), float):
        return False
    weight = weights["weight"]
    is_whole = weight.dim() == 1 and not hasattr(weight, "full_tensor")
    has_one_input = len(inspect.signature(type(module).forward).parameters) == 2
    return is_whole and has_one_input and weight.device.type in fused.DEVICES and weight.dtype in fused.HALF


@torch.no_grad()
def _computes_the_same(norm: Any) -> bool:
    """Compares on random weights and inputs: in float32 equal, and on the norm's device with at most twice its rounding error."""
    generator = torch.Generator().manual_seed(0)
    here, exact = copy.deepcopy(norm), copy.deepcopy(norm).to("cpu", torch.float32)
    hidden, weight = (torch.randn(size, generator=generator) for size in ((4, len(norm.weight)), len(norm.weight)))
    here.weight.copy_(weight)
    exact.weight.copy_(here.weight)
    rounded = hidden.to(norm.weight)
    try:
        truth = exact(rounded.float().cpu())
        is_equal = torch.allclose(_normed(exact, rounded.float().cpu()), truth, rtol=1e-5, atol=1e-5)
        ours, theirs = (apply(rounded).float().cpu() for apply in (functools.partial(_normed, here), here))
    except (NotImplementedError, TypeError, ValueError):
        return False
    return is_equal and bool((ours - truth).norm() <= 2 * (theirs - truth).norm())
