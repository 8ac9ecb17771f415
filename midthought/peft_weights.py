"""The weights that a PEFT model computes with: base weights and active adapters in one. Knows no training and no engine."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn


def effective_weight(layer: Any, device: Any = None) -> Tensor:
    """Returns the weight that a PEFT layer computes with, see `effective_tensors`."""
    return effective_tensors(layer, device)["weight"]


@torch.no_grad()
def effective_tensors(layer: Any, device: Any = None) -> dict[str, Tensor]:
    """Returns the parameters of a PEFT layer's base layer, by name, with the layer's active adapters merged into them.

    They are copies: the layer stays as it is. PEFT's own arithmetic computes them (LoRA, rsLoRA, DoRA and the other methods
    that can be merged), in float32, and each is rounded once, to the type of the base layer. The result follows the layer's
    state: no adapter if adapters are disabled, the base weights as they are if adapters were merged into them before, the
    active copy of a `modules_to_save` module. Weights of 4 or 8 bits are dequantized. For one layer's copy this needs 8 bytes
    a weight beside the result, on `device` (None: where the layer is).
    """
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import AuxiliaryTrainingWrapper

    if isinstance(layer, AuxiliaryTrainingWrapper):
        inner = _chosen_module(layer)
        if not isinstance(inner, BaseTunerLayer):
            return {name: _moved(tensor, device) for name, tensor in inner.named_parameters()}
        layer = inner
    base: Any = layer.get_base_layer()
    plain: Any = _plain_copy(base).to(device)
    dtypes = {name: tensor.dtype for name, tensor in plain.named_parameters()}
    twin = copy.deepcopy(layer, {id(base): plain}).to(device).float()
    parts: list[Any] = [part for part in twin.modules() if isinstance(part, BaseTunerLayer)]
    for part in reversed(parts):  # an expert's layer can have several, one inside the other
        if _is_quantized(base):
            _forget_quantization(part)
        if part.disable_adapters and part.merged:
            part.unmerge()
        elif not part.disable_adapters and not part.merged:
            part.merge()
    return {name: tensor.detach().to(dtypes[name]) for name, tensor in plain.named_parameters()}


def _chosen_module(wrapper: Any) -> Any:
    """Which module a `modules_to_save` wrapper, or one for trainable tokens, computes with."""
    if hasattr(wrapper, "token_adapter"):
        return wrapper.token_adapter
    names = (
        []
        if wrapper.disable_adapters
        else [name for name in wrapper.active_adapters if name in wrapper.modules_to_save]
    )
    return wrapper.modules_to_save[names[0]] if names else wrapper.original_module


def _moved(tensor: Tensor, device: Any) -> Tensor:
    return tensor.detach().to(device, copy=True)


def _is_quantized(base: Any) -> bool:
    weight = getattr(base, "weight", None)
    return weight is not None and not weight.is_floating_point()


def _plain_copy(base: Any) -> nn.Module:
    """A copy of a base layer; of a quantized one, a linear layer with its weights dequantized."""
    if not _is_quantized(base):
        return copy.deepcopy(base)
    from peft.utils.integrations import dequantize_module_weight

    plain = nn.Linear(base.in_features, base.out_features, bias=base.bias is not None, device="meta")
    plain.weight = nn.Parameter(dequantize_module_weight(base).detach())
    if base.bias is not None:
        plain.bias = nn.Parameter(base.bias.detach().clone())
    return plain


def _forget_quantization(part: Any) -> None:
    """Make PEFT merge this copy of a layer as it merges plain ones: its class for quantized layers would quantize the result."""
    from peft.tuners.lora.layer import Linear

    part.quantization_backend = None
    part.fan_in_fan_out = False
    part.__class__ = Linear
