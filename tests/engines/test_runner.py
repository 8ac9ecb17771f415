"""Which models keep a cache, and that the shared weights stay shared."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from precision import logit_tolerance
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    Gemma2Config,
    GPT2Config,
    GptOssConfig,
    MistralConfig,
    PreTrainedConfig,
    RecurrentGemmaConfig,
)

from midthought.engines.local import slot_batch
from midthought.engines.local.runner import CachedRunner, RecomputingRunner, Row, share_tensors, shares_tensors
from midthought.engines.local.runner_selection import make_runner
from midthought.engines.local.slot_batch import RowGroup

TOKENS: dict[str, Any] = {"vocab_size": 61, "pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
SMALL: dict[str, Any] = {
    **TOKENS,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "initializer_range": 0.3,
}


def make(config: PreTrainedConfig) -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).eval()


def test_models_on_the_attention_interface_keep_a_cache_and_those_that_need_more_do_not():
    two: dict[str, Any] = {**SMALL, "num_key_value_heads": 2}
    learned_positions = GPT2Config(**TOKENS, n_embd=32, n_layer=2, n_head=2, initializer_range=0.3)
    for config in (
        learned_positions,
        MistralConfig(**two, sliding_window=7),
        MistralConfig(**two, sliding_window=4096),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert make_runner(make(config)).keeps_cache
    assert make_runner(make(MistralConfig(**two)).to(torch.bfloat16)).keeps_cache
    positions_in_attention = BloomConfig(**TOKENS, hidden_size=32, n_layer=2, n_head=2, initializer_range=0.3)
    sinks = GptOssConfig(**two, head_dim=8, num_local_experts=2, num_experts_per_tok=1)
    for config, reason in (
        (positions_in_attention, "wrong by|0 of its 2 layers"),
        (sinks, "wrong by"),
        (RecurrentGemmaConfig(**two, lru_width=32), "layers of type"),
    ):
        with pytest.warns(UserWarning, match=reason):
            assert not make_runner(make(config)).keeps_cache


def test_a_window_that_the_layers_do_not_ask_for_is_noticed():
    """No difference in numbers shows it: the checked sequences are shorter than the window."""
    model = make(MistralConfig(**SMALL, num_key_value_heads=2, sliding_window=4096))
    runner = make_runner(model)
    assert isinstance(runner, CachedRunner)
    assert runner.cache.windows == {0: 4096, 1: 4096}
    for layer in model.model.layers:
        layer.self_attn.forward = _without_window(layer.self_attn)
    with pytest.warns(UserWarning, match=r"ask for windows \[None, None\], its settings say \[4096, 4096\]"):
        assert not make_runner(model).keeps_cache


def _without_window(attention: Any) -> Any:
    """An attention whose config copy names no window; the masks are made elsewhere."""
    import copy
    import types

    plain = type(attention).forward

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        config = self.config
        self.config = copy.copy(config)
        self.config.sliding_window = None
        try:
            return plain(self, *args, **kwargs)
        finally:
            self.config = config

    return types.MethodType(forward, attention)


@pytest.mark.parametrize("model", ["full attention", "window", "soft caps"])
@pytest.mark.parametrize("max_joined", [0, 50, 1000], ids=["apart", "two by two", "joined"])
def test_rows_that_bring_equally_many_tokens_are_computed_as_each_alone(model, max_joined, monkeypatch):
    monkeypatch.setattr(slot_batch, "MAX_JOINED_TOKENS", max_joined)
    config = {
        "full attention": MistralConfig(**SMALL, num_key_value_heads=2, sliding_window=None),
        "window": MistralConfig(**SMALL, num_key_value_heads=2, sliding_window=5),
        "soft caps": Gemma2Config(**SMALL, num_key_value_heads=2, head_dim=8, sliding_window=1000),
    }[model]
    policy = make(config)
    cached, plain = CachedRunner(share_tensors(policy)), RecomputingRunner(share_tensors(policy))
    ids = torch.randint(61, (5, 40), generator=torch.Generator().manual_seed(1)).tolist()
    for num_cached, length in ((0, 9), (9, 21), (21, 24)):  # all new; fewer cached than new; more cached than new
        rows = [Row(own[:length], num_cached, slot) for slot, own in enumerate(ids)]
        single = Row(ids[0][: num_cached + 1], num_cached, 5)
        if not num_cached:
            rows.insert(2, single)
        torch.testing.assert_close(cached.forward(rows), plain.forward(rows), atol=logit_tolerance(policy), rtol=0)


def test_rows_are_joined_where_they_bring_equally_many_to_equally_many_in_slots_that_follow_each_other():
    first = RowGroup(0, 6, slot=2, num_cached=4)
    two = first.joined(RowGroup(6, 12, slot=3, num_cached=4))
    assert two == RowGroup(0, 12, slot=2, num_cached=4, num_rows=2)
    assert (two.num_new, two.length, two.slots) == (6, 10, slice(2, 4))
    assert two.joined(RowGroup(12, 18, slot=4, num_cached=4)) == RowGroup(0, 18, slot=2, num_cached=4, num_rows=3)
    for other in (
        RowGroup(12, 18, slot=5, num_cached=4),
        RowGroup(12, 18, slot=4, num_cached=3),
        RowGroup(12, 17, slot=4, num_cached=4),
    ):
        assert two.joined(other) is None
    half = slot_batch.MAX_JOINED_TOKENS // 2 + 1
    assert RowGroup(0, half, slot=0, num_cached=0).joined(RowGroup(half, 2 * half, slot=1, num_cached=0)) is None


def test_shared_tensors_are_the_same_objects_until_a_parameter_is_replaced():
    model = make(MistralConfig(**SMALL, num_key_value_heads=2))
    twin = share_tensors(model)
    assert twin is not model
    assert shares_tensors(model, twin)
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    assert not shares_tensors(model, twin)


@pytest.mark.parametrize(
    ("window", "lengths", "slots"),
    [
        (None, (9, 9, 9), (0, 1, 2)),
        (5, (9, 2, 14), (0, 4, 2)),
        (None, (9, 2, 14), (3, 40, 17)),
        (5, (9, 9, 9), (3, 40, 17)),
    ],
)
def test_steps_carry_rows_on_as_forward_passes_would(window, lengths, slots):
    """For more tokens than a mask is made ahead for."""
    model = make(MistralConfig(**SMALL, num_key_value_heads=2, sliding_window=window))
    generator = torch.Generator().manual_seed(1)
    sequences = [torch.randint(61, (length + 90,), generator=generator).tolist() for length in lengths]
    cached = make_runner(model)
    plain = RecomputingRunner(share_tensors(model))
    assert isinstance(cached, CachedRunner)
    cached.forward([Row(ids[:length], 0, slot) for ids, length, slot in zip(sequences, lengths, slots, strict=True)])
    rows = [Row(ids[: length + 1], length, slot) for ids, length, slot in zip(sequences, lengths, slots, strict=True)]
    ours, theirs = cached.steps(rows), plain.steps(rows)
    for number in range(90):
        token_ids = [ids[length + number] for ids, length in zip(sequences, lengths, strict=True)]
        assert torch.allclose(ours(token_ids), theirs(token_ids), atol=logit_tolerance(model, 120))
