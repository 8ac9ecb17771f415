"""LoRA: small matrices that learn in place of a model's weights (peft). Knows no loss and no loop."""

from __future__ import annotations

from typing import Any

import torch

from midthought.errors import MissingExtraError


def add_adapters(policy: Any, rank: int, alpha: int, seed: int = 0) -> Any:
    """The policy with adapters on all its linear layers but the output layer; they alone learn, and change nothing yet.
    Of Mamba models `out_proj` is left out, too: its fused kernels read the weight without calling the layer.

    `W x` becomes `W x + (alpha / rank) B A x`, A [rank, in], B [out, rank] = 0 at first. Source: Hu et al. 2021 (arXiv
    2106.09685), section 4.1. The layers of `policy` itself are replaced: it computes with the adapters, too.
    A is drawn with `seed`, and the global random state stays as it was.
    Raises MissingExtraError where peft is not installed.
    """
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise MissingExtraError("peft", "lora") from None
    config = LoraConfig(
        r=rank,
        lora_alpha=alpha,
        target_modules="all-linear",
        exclude_modules=["out_proj"] if "mamba" in policy.config.model_type else None,
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return get_peft_model(policy, config)


def has_adapters(policy: Any) -> bool:
    """Whether `add_adapters` made it."""
    return hasattr(policy, "get_base_model")


def are_adapters_idle(policy: Any) -> bool:
    """Whether it is a PEFT model with LoRA that computes what its base model computes: every B is zero, and the copies that
    `modules_to_save` made are equal to the originals."""
    if not has_adapters(policy) or any(str(each.peft_type) != "PeftType.LORA" for each in policy.peft_config.values()):
        return False
    factors = [tensor for name, tensor in policy.named_parameters() if "lora_B" in name or "lora_embedding_A" in name]
    if not factors or any(bool(tensor.any()) for tensor in factors):
        return False
    saved: list[Any] = [module for module in policy.modules() if hasattr(module, "original_module")]
    if any(hasattr(module, "token_adapter") for module in saved):
        return False
    pairs = [(each.original_module, copied) for each in saved for copied in each.modules_to_save.values()]
    return all(
        torch.equal(one, other)
        for original, copied in pairs
        for one, other in zip(original.parameters(), copied.parameters(), strict=True)
    )
