"""Rise of a process's resident memory while it computes log-probabilities of a large vocabulary. Linux only."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
VOCABULARY = 150_000
LOGITS_MIB = 64


def peak_bytes(num_tokens: int, logits_mib: float | None) -> int:
    """Of a forward and backward pass over so many policy tokens, in a process of its own; the model is there before."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_peak_here, num_tokens, logits_mib).result()


def _peak_here(num_tokens: int, logits_mib: float | None) -> int:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from midthought.learning.forward import ModelInputs, policy_forward

    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        tie_word_embeddings=True,
    )
    model = Qwen3ForCausalLM(config).eval()
    token_ids = torch.randint(VOCABULARY, (1, num_tokens + 1))
    layout = ModelInputs(
        arguments={"input_ids": token_ids[:, :-1], "use_cache": False},
        is_wanted=torch.ones(1, num_tokens, dtype=torch.bool),
        temperatures=None,
        targets=token_ids[0, 1:],
    )
    CLEAR.write_text("5")
    before = _resident("VmRSS")
    figures, _ = policy_forward(model, layout, entropy=True, entropy_gradient=False, logits_mib=logits_mib)
    figures.logprobs.exp().sum().backward()
    return _resident("VmHWM") - before


def _resident(name: str) -> int:
    """`VmRSS` (now) or `VmHWM` (at most), in bytes."""
    line = next(line for line in STATUS.read_text("utf-8").splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024
