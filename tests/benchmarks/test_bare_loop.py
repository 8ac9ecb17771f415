"""The limit is a limit of the same computation: the bare loop gives what transformers' Qwen3 gives."""

from __future__ import annotations

import pytest
import torch

from benchmarks.bare import BareLoop
from benchmarks.floor import bandwidth, decoded_bytes
from benchmarks.reciter import Reciter
from benchmarks.work import Shape


@pytest.fixture(scope="module")
def reciter() -> Reciter:
    """Its embeddings and head made random again, so that every weight counts."""
    reciter = Reciter("tiny", "in_thought", num_span=12)
    torch.manual_seed(0)
    torch.nn.init.normal_(reciter.model.get_input_embeddings().weight)
    torch.nn.init.normal_(reciter.model.get_output_embeddings().weight, std=0.1)
    return reciter


def test_prefill_sampling_and_further_prefill_give_the_models_own_logits(reciter: Reciter, monkeypatch) -> None:
    monkeypatch.setattr("benchmarks.bare.MAX_PREFILL_TOKENS", 60)
    generator = torch.Generator().manual_seed(1)
    prompts = torch.randint(900, (5, 23), generator=generator)
    results = torch.randint(900, (5, 7), generator=generator)
    loop = BareLoop(reciter.model, num_rows=5, max_length=64)
    first = loop.prefill(prompts)
    drawn = loop.sample(first, 6)
    second = loop.prefill(torch.cat([drawn[:, -1:], results], dim=1))
    third = loop.sample(second, 2)
    whole = torch.cat([prompts, drawn, results], dim=1)
    assert loop.length == whole.shape[1] + 1
    assert third.shape == (5, 2)
    with torch.no_grad():
        logits = reciter.model(whole).logits
    torch.testing.assert_close(first, logits[:, 22], atol=1e-4, rtol=0)
    torch.testing.assert_close(second, logits[:, -1], atol=1e-4, rtol=0)


def test_after_a_reset_nothing_of_the_old_rows_is_left(reciter: Reciter) -> None:
    prompts = torch.randint(900, (2, 9), generator=torch.Generator().manual_seed(2))
    loop = BareLoop(reciter.model, num_rows=2, max_length=32)
    fresh = loop.prefill(prompts)
    loop.sample(fresh, 8)
    loop.reset()
    torch.testing.assert_close(loop.prefill(prompts), fresh)


def test_the_floor_counts_weights_and_cache_once_a_step(reciter: Reciter) -> None:
    """tiny, fp32. A layer: queries 128·128, keys and values 2·128·64, output 128·128, MLP 3·128·384, norms 2·128 + 2·32;
    the head 1024·128, the last norm 128. Two steps (3 sampled tokens) after a prompt of 10: caches of 11 and 12 tokens of
    4 layers · 2 · 2 heads · 32 numbers, in 2 sequences."""
    layer = 128 * 128 + 2 * 128 * 64 + 128 * 128 + 3 * 128 * 384 + 2 * 128 + 2 * 32
    weights = 4 * layer + 1024 * 128 + 128
    cache = (11 + 12) * 2 * 4 * 2 * 2 * 32
    shape = Shape(num_episodes=2, num_prompt=10, num_spans=1, num_span=3)
    assert decoded_bytes(reciter, shape) == 4 * (2 * weights + cache)


def test_bandwidth_is_a_rate() -> None:
    assert 1e8 < bandwidth(torch.device("cpu"), 2**20) < 1e13
