"""Rows side by side: what each gives is what it gives alone, or the model is not computed so."""

import logging

import pytest
import torch
from precision import logit_tolerance

from midthought.learning.attention import attending_by_rows, can_pack, can_share
from midthought.learning.batch import TokenBatch
from midthought.learning.forward import ModelInputs
from midthought.learning.model import token_outputs
from midthought.types import ToolCall, ToolEvent, ToolOutcome

ARCHITECTURES = {
    "Qwen3": {},
    "Qwen3 tied": {"tie_word_embeddings": True},
    "Qwen3 windows": {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
    "Llama": {},
    "Mistral": {"sliding_window": 6},
    "Gemma2": {"final_logit_softcapping": 3.0, "query_pre_attn_scalar": 16},
    "Gemma3Text": {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]},
    "Cohere": {"logit_scale": 0.25},
    "GPT2": {},
    "Phi3": {},
}
LAYOUTS = {False: set(), True: {"Gemma2"}, "shared": {"Gemma2", "Qwen3 windows", "Mistral", "Gemma3Text"}}
"""Padded rows, packed rows, and prompts that are shared: each with the architectures that cannot be computed so."""
REFUSED = {
    "Gemma2": ({"query_pre_attn_scalar": 16}, "softcap"),
    "GptOss": ({"num_local_experts": 2, "num_experts_per_tok": 1}, "s_aux"),
    "Mamba": ({"state_size": 4, "num_hidden_layers": 2}, "linear_attention"),
    "Bloom": ({"n_layer": 2, "n_head": 2}, "0 of its 2 layers"),
    "Mpt": ({}, "its attention fails"),
    "Phimoe": ({"sliding_window": 90, "num_local_experts": 2}, "do not tell their attention how far"),
    "Qwen3Next": ({"layer_types": ["linear_attention", "full_attention"]}, "linear_attention"),
}


@pytest.fixture
def batch(make_trajectory) -> TokenBatch:
    """Three groups of two, with prompts of 20 tokens."""
    made = [make_trajectory(n, group=n // 2, num_results=3 + 4 * n, prompt=[5 + n // 2] * 20) for n in range(6)]
    return TokenBatch.from_trajectories(made)


@pytest.mark.parametrize(
    ("name", "packed"),
    [(name, way) for name in ARCHITECTURES for way, without in LAYOUTS.items() if name not in without],
)
@torch.no_grad()
def test_log_probabilities_and_entropies_are_those_of_each_row_alone_with_all_logits(name, packed, make_policy, batch):
    policy = make_policy(name.split()[0], **ARCHITECTURES[name])
    assert can_pack(policy) == (name not in LAYOUTS[True])
    assert (can_pack(policy) and can_share(policy)) == (name not in LAYOUTS["shared"])
    num_computed = ModelInputs.of(batch, packed=packed).arguments["input_ids"].numel()
    assert packed != "shared" or num_computed < batch.num_tokens - 50
    logprobs, entropies = [], []
    for ids, mask in zip(
        *(each.split(batch.lengths.tolist()) for each in (batch.token_ids, batch.loss_mask)), strict=True
    ):
        distribution = torch.distributions.Categorical(logits=policy(input_ids=ids[None]).logits[0, :-1].float())
        logprobs.append(distribution.log_prob(ids[1:])[mask[1:]])
        entropies.append(distribution.entropy()[mask[1:]])
    found, rounding = token_outputs(policy, batch, entropy=True, packed=packed), logit_tolerance(policy)
    torch.testing.assert_close(found.logprobs, torch.cat(logprobs), atol=rounding, rtol=0)
    torch.testing.assert_close(found.entropy, torch.cat(entropies), atol=rounding, rtol=0)


def test_under_autocast_the_verdict_is_the_same(make_policy):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert can_pack(make_policy())


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_mixes_tokens_by_other_means_is_not_packed_and_the_log_says_why(name, make_policy, caplog):
    changes, reason = REFUSED[name]
    with caplog.at_level(logging.WARNING):
        assert not can_pack(make_policy(name, **changes))
    assert "cannot be packed" in caplog.text and reason in caplog.text


def test_nothing_behind_the_last_policy_token_is_computed(make_trajectory):
    trajectories = [make_trajectory(seed) for seed in range(3)]
    events = [ToolEvent(call=ToolCall(tool_name="look", success=True, result="so"), outcome=ToolOutcome.OK)]
    trajectories[1].add_results(events, [5] * 9)
    batch = TokenBatch.from_trajectories(trajectories)
    layout = ModelInputs.of(batch, packed=True)
    lengths = layout.arguments["rows"].lengths
    assert list(lengths) == [int(mask.nonzero()[-1]) for mask in batch.loss_mask.split(batch.lengths.tolist())]
    assert layout.arguments["input_ids"].shape == (1, sum(lengths))
    assert layout.arguments["position_ids"][0].tolist() == [place for length in lengths for place in range(length)]
    assert torch.equal(layout.targets, batch.token_ids[batch.loss_mask])


def test_the_models_own_attention_is_back_afterwards_even_after_an_error(make_policy):
    policy = make_policy()
    own = policy.config._attn_implementation
    with pytest.raises(KeyError), attending_by_rows(policy):
        assert policy.config._attn_implementation != own
        raise KeyError
    assert policy.config._attn_implementation == own
