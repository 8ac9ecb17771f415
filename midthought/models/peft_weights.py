"""What a PEFT model computes with: base weights and active adapters in one. Does not depend on training or an engine."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call


def base_of(model: Any) -> Any:
    """Returns the transformers model inside a PEFT model, whose layers hold the adapters; any other model as it is.

    Raises ValueError for prompt tuning and the like, which add tokens instead of changing layers, and for a quantized model.
    """
    if not hasattr(model, "get_base_model"):
        return model
    if not all(parameter.is_floating_point() for parameter in model.parameters()):
        raise ValueError(f"{type(model).__name__} has quantized weights, which are not supported; load it in bfloat16")
    if any(getattr(config, "is_prompt_learning", False) for config in model.peft_config.values()):
        raise ValueError(
            f"{type(model).__name__} learns a prompt ({model.active_peft_config.peft_type}); use adapters that change layers, "
            "for example LoRA"
        )
    return model.get_base_model()


def is_adapted(module: nn.Module) -> bool:
    """Whether PEFT wraps this layer (adapters, `modules_to_save`, trainable tokens)."""
    return "peft" in sys.modules and isinstance(module, _wrappers())


def adapter_state(model: Any) -> tuple[Any, ...]:
    """Everything about the adapters of a model that is not a tensor: which are there, active, merged, disabled, their scale.

    Two equal states and unchanged parameters mean the same function. Empty for a model without adapters.
    """
    if "peft" not in sys.modules:
        return ()
    wrapped: list[Any] = [module for module in model.modules() if isinstance(module, _wrappers())]
    return tuple(
        (
            id(module),
            module.disable_adapters,
            tuple(module.active_adapters),
            tuple(module.merged_adapters),
            repr(vars(module).get("scaling")),
        )
        for module in wrapped
    )


def is_mergeable(module: Any) -> bool:
    """Whether the layer is LoRA, rsLoRA or DoRA on a plain `nn.Linear`: then one weight computes what it computes."""
    if not is_adapted(module):
        return False
    from peft.tuners.lora.layer import Linear
    from peft.tuners.lora.variants import DoraLinearVariant

    if type(module) is not Linear or type(module.base_layer) is not nn.Linear:
        return False
    return all(type(variant) is DoraLinearVariant for variant in module.lora_variant.values())


@torch.no_grad()
def unadaptable_layers(model: Any) -> list[str]:
    """Returns the names of linear layers on which LoRA would be wrong: `out_proj` and `dt_proj` of Mamba layers, whose weights
    fused kernels and transformers read without calling the layers, and routers of experts, which return more than a product."""
    has_mamba_layers = any(hasattr(each, "in_proj") and hasattr(each, "conv1d") for each in model.modules())
    names = ["out_proj", "dt_proj"] if has_mamba_layers else []
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear) and type(layer) is not nn.Linear and layer.weight.is_floating_point():
            shapes = {key: tensor.to("meta") for key, tensor in layer.state_dict().items()}
            inputs = layer.weight.new_empty(
                1, layer.in_features, device="meta"
            )  # on which nothing is computed or drawn
            try:
                is_product = isinstance(functional_call(layer, shapes, inputs), Tensor)
            except Exception:  # a product for each of several groups, or other arguments
                is_product = False
            names += [] if is_product else [name]
    return names


def stochastically_rounded(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Rounds float32 values to `dtype` up or down at random, so that the expected value is the exact one.

    Rounding to nearest would lose small adapters: base weights are values of `dtype` already, and an update of less than half
    a unit in the last place would always round back to them. The draws are fixed: equal inputs give equal results.
    """
    if dtype == weight.dtype:
        return weight
    _, exponent = torch.frexp(weight)
    unit = torch.ldexp(torch.full_like(weight, torch.finfo(dtype).eps), exponent - 1)
    generator = torch.Generator(weight.device).manual_seed(0)
    draws = torch.rand(weight.shape, generator=generator, device=weight.device)
    return (weight / unit).add_(draws).floor_().mul_(unit).where(weight != 0, 0.0).to(dtype)


def used_module(module: Any) -> Any:
    """Returns the module that a `modules_to_save` wrapper (or one for trainable tokens) calls now; any other as it is."""
    from_wrapper = is_adapted(module) and not hasattr(module, "base_layer")
    return _chosen_module(module) if from_wrapper else module


@torch.no_grad()
def effective_tensors(layer: Any, device: Any = None) -> dict[str, Tensor]:
    """Returns the saved tensors of a PEFT layer's base layer, by name, with the layer's active adapters merged into them.

    They are copies: the layer stays as it is. PEFT's own arithmetic computes them (LoRA, rsLoRA, DoRA and the other methods
    that can be merged), in float32, and each is rounded once, to the type of the base layer, by `stochastically_rounded`. The
    result follows the layer's state: no adapter if adapters are disabled, the base weights as they are if adapters were merged
    into them before, the active copy of a `modules_to_save` module. Copying one layer needs 8 bytes per weight in addition to the
    result, on `device` (None: the layer's device).
    """
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import AuxiliaryTrainingWrapper

    if isinstance(layer, AuxiliaryTrainingWrapper):
        inner = _chosen_module(layer)
        if not isinstance(inner, BaseTunerLayer):
            return {name: tensor.to(device, copy=True) for name, tensor in inner.state_dict().items()}
        layer = inner
    base: Any = layer.get_base_layer()
    copies = {id(each): nn.Parameter(each.detach().to(device, copy=True), False) for each in base.parameters()}
    plain: Any = copy.deepcopy(base, copies)
    dtypes = {name: tensor.dtype for name, tensor in plain.state_dict().items()}
    twin = copy.deepcopy(layer, {id(base): plain}).to(device).float()
    parts: list[Any] = [part for part in twin.modules() if isinstance(part, BaseTunerLayer)]
    for part in reversed(parts):  # an expert's layer can have several nested ones
        if part.disable_adapters and part.merged:
            part.unmerge()
        elif not part.disable_adapters and not part.merged:
            part.merge()
    return {name: stochastically_rounded(tensor, dtypes[name]) for name, tensor in plain.state_dict().items()}


def model_leaves(
    module: nn.Module, *, with_adapters: bool = True, prefix: str = ""
) -> Iterator[tuple[str, nn.Module | Tensor]]:
    """Yields every layer that PEFT wraps, and every saved tensor of the other layers, in the model's order.

    Names are as before adapters were added; the name of a layer ends with a dot. With
    `with_adapters=False` the tensors of a wrapped layer are yielded as they were before it was wrapped. Tensors are the
    model's own, not copies; a tensor that two layers share is yielded twice.
    """
    if is_adapted(module):
        if with_adapters:
            yield prefix, module
            return
        wrapper: Any = module
        module = wrapper.original_module if hasattr(wrapper, "original_module") else wrapper.get_base_layer()
    for name, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
        if name not in module._non_persistent_buffers_set:
            yield prefix + name, tensor
    for name, child in module.named_children():
        yield from model_leaves(child, with_adapters=with_adapters, prefix=f"{prefix}{name}.")


def _chosen_module(wrapper: Any) -> Any:
    """Returns the module that a `modules_to_save` wrapper, or one for trainable tokens, computes with."""
    if hasattr(wrapper, "token_adapter"):
        return wrapper.token_adapter
    active = () if wrapper.disable_adapters else wrapper.active_adapters
    copies = [wrapper.modules_to_save[name] for name in active if name in wrapper.modules_to_save]
    return copies[0] if copies else wrapper.original_module


def _wrappers() -> tuple[type, ...]:
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import AuxiliaryTrainingWrapper

    return BaseTunerLayer, AuxiliaryTrainingWrapper
