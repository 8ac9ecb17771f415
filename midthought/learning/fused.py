"""Fewer kernels for half precision on a GPU. Does not depend on a model.

`Fused`: `torch.compile` of operations on logits, which are limited by memory bandwidth. Everywhere else, and if compiling fails
or gives other results, functions run as they are written.

`FusedModules`: RMS norms (arXiv 1910.07467) and LoRA layers (arXiv 2106.09685). `torch.nn.functional.rms_norm` is one kernel; a
norm of transformers is seven, and more backward. A LoRA layer of peft computes in float32 and copies its input and its output to
that type; here its float32 adapters are rounded to the layer's type, as under autocast, and the last product adds to the layer's
output. Used for modules that compute the same function, which is found by running them.
"""

from __future__ import annotations

import copy
import functools
import inspect
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from midthought.models.peft_weights import is_mergeable

DEVICES = {"cuda"}
"""Types of devices on which functions are compiled."""
HALF = (torch.bfloat16, torch.float16)
TOLERANCE = 0.01
"""Maximum difference from the function as it is written: norm of the difference, relative to the norm of the result."""

_log = logging.getLogger(__name__)
Result = TypeVar("Result")


class Fused(Generic[Result]):
    """A function of tensors [n, ...] whose results are tensors, compiled for any n.

    The first call of each kind (types of tensors, values of other arguments) also runs the function as it is written and
    compares the results. The function must not change its arguments if the first is in half precision.
    """

    def __init__(self, function: Callable[..., Result]) -> None:
        self._function = function
        self._compiled: Callable[..., Result] | None = None
        self._is_right: dict[Any, bool] = {}

    def __call__(self, *arguments: Any) -> Result:
        if arguments[0].device.type not in DEVICES or arguments[0].dtype not in HALF:
            return self._function(*arguments)
        kind = tuple(map(_kind, arguments))
        if kind not in self._is_right:
            self._is_right[kind] = self._agrees(*arguments)
        return self._fused(*arguments) if self._is_right[kind] else self._function(*arguments)

    def _fused(self, *arguments: Any) -> Result:
        if self._compiled is None:
            self._compiled = torch.compile(self._function)
        for each in arguments:
            if isinstance(each, Tensor):
                torch._dynamo.maybe_mark_dynamic(each, 0)
        return self._compiled(*arguments)

    def _agrees(self, *arguments: Any) -> bool:
        """Whether the compiled function can be used. Logs the reason if not."""
        try:
            found = self._fused(*arguments)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # compilers raise errors of many classes
            return _refused(f"{type(error).__name__}: {error}".splitlines()[0])
        difference = _difference(found, self._function(*arguments))
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


class FusedModules:
    """The norms and LoRA layers of models. Weights are read in place."""

    def __init__(self, *models: Any) -> None:
        modules = [module for model in models for module in model.modules()]
        self._forwards: list[tuple[Any, Callable[..., Tensor]]] = []
        is_same: dict[Any, bool] = {}
        for module in filter(_is_norm, modules):
            weight = module.weight
            key = type(module), weight.device, weight.dtype, weight.shape, module.variance_epsilon
            if key not in is_same:
                is_same[key] = _computes_the_same(module)
            self._forwards += [(module, functools.partial(_normed, module))] if is_same[key] else []
        adapted: list[Any] = list(filter(_is_lora, modules))
        if adapted and _adapts_the_same(min(adapted, key=lambda layer: layer.base_layer.weight.numel())):
            self._forwards += [(layer, functools.partial(_adapted, layer)) for layer in adapted]

    def active(self) -> AbstractContextManager[None]:
        """Replaces the modules' `forward` within the context, if they have none of their own."""
        return replaced_forwards([each for each in self._forwards if "forward" not in vars(each[0])])


@contextmanager
def replaced_forwards(forwards: Sequence[tuple[Any, Callable[..., Any]]]) -> Iterator[None]:
    """Context in which modules have another `forward`; one that a module has of its own comes back."""
    own = [vars(module).get("forward") for module, _ in forwards]
    try:
        for module, forward in forwards:
            module.forward = forward
        yield
    finally:
        for (module, _), before in zip(forwards, own, strict=True):
            vars(module).pop("forward", None)
            if before is not None:
                module.forward = before


def _normed(norm: Any, hidden: Tensor) -> Tensor:
    return F.rms_norm(hidden, hidden.shape[-1:], norm.weight, norm.variance_epsilon)


def _is_norm(module: nn.Module) -> bool:
    """Whether it has only a vector of weights, in half precision on a GPU, the epsilon of an RMS norm, and one input."""
    weights = dict(module.named_parameters())
    if list(weights) != ["weight"] or not isinstance(getattr(module, "variance_epsilon", None), float):
        return False
    has_one_input = len(inspect.signature(type(module).forward).parameters) == 2
    return weights["weight"].dim() == 1 and has_one_input and _is_fast(weights["weight"])


def _is_fast(weight: Tensor) -> bool:
    """Whether it is in half precision on a GPU, and whole."""
    is_whole = not hasattr(weight, "full_tensor")
    return is_whole and weight.device.type in DEVICES and weight.dtype in HALF


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


def _adapted(layer: Any, hidden: Tensor, *arguments: Any, **options: Any) -> Tensor:
    """Computes `x Wᵀ + s (x Aᵀ) Bᵀ` for every active adapter; [..., in] -> [..., out]."""
    is_plain = not (layer.disable_adapters or layer.merged or layer.training or arguments or options)
    if not is_plain or hidden.dtype != layer.base_layer.weight.dtype:
        computed: Tensor = type(layer).forward(layer, hidden, *arguments, **options)
        return computed
    rows = hidden.flatten(0, -2)
    found: Tensor = layer.base_layer(rows)
    for name in layer.active_adapters:
        if name in layer.lora_A:
            inner = F.linear(rows, layer.lora_A[name].weight.to(rows.dtype))
            outer = (layer.lora_B[name].weight * layer.scaling[name]).to(rows.dtype)
            found = found.addmm_(inner, outer.t())
    return found.view(*hidden.shape[:-1], -1)


def _is_lora(module: Any) -> bool:
    """Whether it is a LoRA layer without variant (DoRA) or bias of its own."""
    if not is_mergeable(module) or module.lora_variant or not _is_fast(module.base_layer.weight):
        return False
    maps = [*module.lora_A.values(), *module.lora_B.values()]
    return all(
        type(each) is nn.Linear and each.bias is None and not hasattr(each.weight, "full_tensor") for each in maps
    )


@torch.no_grad()
def _adapts_the_same(layer: Any) -> bool:
    """Compares in float32 on a CPU, with random adapters."""
    generator = torch.Generator().manual_seed(0)
    exact = copy.deepcopy(layer).to("cpu", torch.float32)
    for each in (*exact.lora_A.values(), *exact.lora_B.values()):
        each.weight.copy_(torch.randn(each.weight.shape, generator=generator))
    hidden = torch.randn(2, 3, exact.base_layer.in_features, generator=generator)
    expected = exact(hidden)
    return torch.allclose(_adapted(exact, hidden), expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))
