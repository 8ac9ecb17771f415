"""Gradient checkpointing and compilation of a model's decoder layers. Does not depend on a loss."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint


class RecomputedLayers:
    """Gradient checkpointing: within `active()` a layer keeps only its input, and the backward pass computes it again.

    Activation memory falls from all layers to one layer and the inputs of the others. Cost: a third more compute.
    Source: Chen et al. 2016 (arXiv 1604.06174). Unlike transformers' own switch, it works in eval mode (no dropout).
    Raises ValueError for a model without layers that transformers can recompute.

    With `offload`, the inputs of the layers are kept in main memory: no memory of a GPU grows with the number of layers.
    """

    def __init__(self, *models: Any, offload: bool = False) -> None:
        compute = _recomputed_from_main_memory if offload else _recomputed
        self._forwards: list[tuple[nn.Module, Callable[..., Any]]] = []
        for layer in (layer for model in models for layer in decoder_layers(model)):
            self._forwards.append((layer, functools.partial(compute, layer.forward)))

    @contextmanager
    def active(self) -> Iterator[None]:
        own: list[Any] = [vars(layer).get("forward") for layer, _ in self._forwards]
        try:
            for layer, forward in self._forwards:
                layer.forward = forward
            yield
        finally:
            for (layer, _), before in zip(self._forwards, own, strict=True):
                del layer.forward
                if before is not None:
                    layer.forward = before


def decoder_layers(model: Any) -> list[nn.Module]:
    """Returns the model's decoder layers. Raises ValueError if there are none."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    found: list[nn.Module] = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not found:
        raise ValueError(
            f"{type(model).__name__} has no layers of transformers' GradientCheckpointingLayer; "
            "set training.gradient_checkpointing to false"
        )
    return found


def _recomputed(forward: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*arguments, **options)
    return checkpoint(forward, *arguments, use_reentrant=False, preserve_rng_state=False, **options)


def _recomputed_from_main_memory(forward: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    with save_on_cpu(pin_memory=torch.cuda.is_available()):
        return _recomputed(forward, *arguments, **options)
