"""LoRA adapters (peft): small matrices that learn instead of a model's weights. Does not depend on a loss or a loop."""

from __future__ import annotations

from typing import Any

import torch

from midthought.config.references import optional


def add_adapters(policy: Any, rank: int, alpha: int, seed: int = 0) -> Any:
    """Adds adapters to all linear layers of the policy but the output layer. Only they learn; they change no output yet.
    In Mamba models `out_proj` is also left out: its fused kernels read the weight without calling the layer.

    `W x` becomes `W x + (alpha / rank) B A x`, A [rank, in], B [out, rank] initialized to 0. Source: Hu et al. 2021 (arXiv
    2106.09685), section 4.1. The layers of `policy` itself are replaced, so it also computes with the adapters.
    A is drawn with `seed`; the global random state does not change.
    Raises MissingExtraError if peft is not installed.
    """
    peft = optional("peft", "lora")
    config = peft.LoraConfig(
        r=rank,
        lora_alpha=alpha,
        target_modules="all-linear",
        exclude_modules=["out_proj"] if "mamba" in policy.config.model_type else None,
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return peft.get_peft_model(policy, config)


def has_adapters(policy: Any) -> bool:
    """Whether the policy is a PEFT model, such as `add_adapters` returns."""
    return hasattr(policy, "get_base_model")


def are_adapters_idle(policy: Any) -> bool:
    """Whether this is a PEFT model with LoRA whose outputs equal its base model's: every B is zero, and the copies made by
    `modules_to_save` are equal to the originals."""
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
