"""Which models keep a cache, and that the shared weights stay shared."""

import copy
import types
import warnings
from typing import Any

import pytest
import torch
from precision import logit_tolerance
from small_decoders import SIZES, random_model
from transformers import (
    BloomConfig,
    Gemma2Config,
    GPT2Config,
    GptOssConfig,
    MistralConfig,
    RecurrentGemmaConfig,
    xLSTMConfig,
)

from midthought.engines.local import slot_batch
from midthought.engines.local.runner import CachedRunner, RecomputingRunner, Row, share_tensors, shares_tensors
from midthought.engines.local.runner_selection import make_runner

SMALL: dict[str, Any] = {**SIZES, "num_hidden_layers": 2}
OTHERS: dict[str, Any] = {"vocab_size": 61, "bos_token_id": None, "eos_token_id": None, "initializer_range": 0.3}
OTHERS |= {"n_layer": 2, "n_head": 2}
"""Of older architectures, with other names."""


def test_models_on_the_attention_interface_keep_a_cache_and_those_that_need_more_do_not():
    for config in (
        GPT2Config(**OTHERS, n_embd=32),  # learned positions
        MistralConfig(**SMALL, sliding_window=7),
        MistralConfig(**SMALL, sliding_window=4096),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert make_runner(random_model(config)).keeps_cache
    assert make_runner(random_model(MistralConfig(**SMALL)).to(torch.bfloat16)).keeps_cache
    for config, reason in (
        (BloomConfig(**OTHERS, hidden_size=32), "wrong by|0 of its 2 layers"),  # positions in attention
        (GptOssConfig(**SMALL, head_dim=8, num_local_experts=2, num_experts_per_tok=1), "wrong by"),  # sinks
        (RecurrentGemmaConfig(**SMALL, lru_width=32), "layers of type"),
    ):
        with pytest.warns(UserWarning, match=reason):
            assert not make_runner(random_model(config)).keeps_cache


def test_a_window_that_the_layers_do_not_ask_for_is_noticed():
    """No difference in numbers shows it: the checked sequences are shorter than the window."""
    model = random_model(MistralConfig(**SMALL, sliding_window=4096))
    runner = make_runner(model)
    assert isinstance(runner, CachedRunner)
    assert runner.cache.windows == {0: 4096, 1: 4096}
    for layer in model.model.layers:
        layer.self_attn.forward = _without_window(layer.self_attn)
    with pytest.warns(UserWarning, match=r"ask for windows \[None, None\], its settings say \[4096, 4096\]"):
        assert not make_runner(model).keeps_cache


def _without_window(attention: Any) -> Any:
    """An attention whose config copy names no window; the masks are made elsewhere."""
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
        "full attention": MistralConfig(**SMALL, sliding_window=None),
        "window": MistralConfig(**SMALL, sliding_window=5),
        "soft caps": Gemma2Config(**SMALL, head_dim=8, sliding_window=1000),
    }[model]
    policy = random_model(config)
    cached, plain = CachedRunner(share_tensors(policy)), RecomputingRunner(share_tensors(policy))
    ids = torch.randint(61, (5, 40), generator=torch.Generator().manual_seed(1)).tolist()
    for num_cached, length in ((0, 9), (9, 21), (21, 24)):  # all new; fewer cached than new; more cached than new
        rows = [Row(own[:length], num_cached, slot) for slot, own in enumerate(ids)]
        single = Row(ids[0][: num_cached + 1], num_cached, 5)
        if not num_cached:
            rows.insert(2, single)
        torch.testing.assert_close(cached.forward(rows), plain.forward(rows), atol=logit_tolerance(policy), rtol=0)


def test_a_model_that_keeps_all_logits_is_asked_for_the_last_ones():
    sizes = {"hidden_size": 64, "embedding_dim": 64, "num_hidden_layers": 2, "num_blocks": 2, "num_heads": 4}
    sizes |= {"qk_dim_factor": 1.0, "v_dim_factor": 1.0, "mlstm_round_up_to_multiple_of": 16, "chunk_size": 16}
    model = random_model(xLSTMConfig(vocab_size=61, **sizes))
    rows = [Row([5, 6, 7, 8, 9], 0, 0), Row([1, 2, 3], 0, 1), Row([4, 3, 2], 0, 2)]
    found = RecomputingRunner(share_tensors(model)).forward(rows)
    for row, ours in zip(rows, found, strict=True):
        with torch.no_grad():
            theirs = model(torch.tensor([row.token_ids])).logits[0, -1]
        torch.testing.assert_close(ours, theirs, atol=logit_tolerance(model), rtol=0)


def test_shared_tensors_are_the_same_objects_until_a_parameter_is_replaced():
    model = random_model(MistralConfig(**SMALL))
    twin = share_tensors(model)
    assert twin is not model
    assert shares_tensors(model, twin)
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    assert not shares_tensors(model, twin)
