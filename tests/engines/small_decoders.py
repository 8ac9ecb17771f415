"""Decoders that are small enough to compare to the last digit, which of the fused ones compute, and how exactly they sample."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from midthought.engines.local.decoder import Decoder
from midthought.types import Completion

SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "initializer_range": 0.3,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}


def random_model(config: Any, dtype: torch.dtype = torch.float32, seed: int = 0) -> Any:
    """Random weights, in evaluation mode."""
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(config).eval().to(dtype)


def small_model(seed: int = 0, **changes: Any) -> Any:
    """A Qwen3; `changes` of its settings."""
    return random_model(Qwen3Config(**{**SIZES, "head_dim": 8, **changes}), seed=seed)


def decoders_in(compute: Callable[[], object]) -> list[Decoder]:
    """The decoder of every forward pass of a fused decoder while `compute` runs."""
    used: list[Decoder] = []
    plain = Decoder.__call__

    def observed(self: Decoder, *args: Any) -> Any:
        used.append(self)
        return plain(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Decoder, "__call__", observed)
        compute()
    return used


@torch.no_grad()
def off_by(model: Any, context: Sequence[int], completion: Completion, temperature: float = 1.0) -> float:
    """The largest difference between the recorded log-probabilities and those of one plain forward pass."""
    ids = torch.tensor([[*context, *completion.token_ids]])
    logits = model(input_ids=ids, use_cache=False).logits[0, len(context) - 1 : -1].float()
    expected = (logits / temperature).log_softmax(-1).gather(-1, ids[0, len(context) :, None])[:, 0]
    return float((torch.tensor(completion.sampled_logprobs) - expected).abs().max())
