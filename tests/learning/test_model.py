"""Models: what is computed of the logits, and critics. Log-probabilities over architectures: `test_attention.py`."""

import pytest
import torch
from precision import logit_tolerance
from test_attention import ARCHITECTURES

from midthought.learning.logprobs import LogitShape
from midthought.learning.model import (
    Critic,
    PolicyValueModel,
    PPOBatch,
    ValueHead,
    frozen_copy,
    spread,
    token_logprobs,
    token_outputs,
)


@pytest.mark.parametrize("name", ["Qwen3", "Gemma2", "Cohere"])
def test_logits_are_made_at_policy_tokens_only_and_the_policy_is_left_as_it_was(name, make_policy, batch):
    policy = make_policy(name, **ARCHITECTURES[name])
    before, seen = policy(input_ids=batch.token_ids[None]).logits, []
    head = policy.get_output_embeddings()
    handle = head.register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    token_logprobs(policy, batch)
    handle.remove()
    assert [shape[:-1].numel() for shape in seen] == [batch.num_policy_tokens]
    assert torch.equal(policy(input_ids=batch.token_ids[None]).logits, before) and not head._forward_pre_hooks


@torch.no_grad()
def test_a_model_whose_output_layer_is_not_a_module_of_its_own_still_gives_the_same(make_policy, batch):
    policy = make_policy()
    expected = token_logprobs(policy, batch)
    critic = Critic.shared(policy)
    critic.head.linear.weight.normal_()
    values = token_outputs(policy, batch, critic).values
    policy.get_output_embeddings = lambda: None
    figures = token_outputs(policy, batch, critic)
    torch.testing.assert_close(spread(figures.logprobs, batch.loss_mask), expected)
    torch.testing.assert_close(figures.values, values)


@pytest.mark.parametrize("cap", [3.0, 100.0])  # the second hardly changes the first token's logits
@torch.no_grad()
def test_where_the_architecture_does_something_unknown_to_its_logits_all_are_kept_and_the_log_says_so(
    cap, make_policy, batch, monkeypatch, caplog
):
    policy = make_policy("Gemma2", **ARCHITECTURES["Gemma2"] | {"final_logit_softcapping": cap})
    expected = token_outputs(policy, batch, entropy=True)
    monkeypatch.setattr(LogitShape, "of", lambda config: LogitShape())
    found = token_outputs(policy, batch, entropy=True, logits_mib=48 * 4 / 2**20)
    assert "what Gemma2ForCausalLM does to its logits is not known" in caplog.text
    assert torch.equal(found.logprobs, expected.logprobs) and torch.equal(found.entropy, expected.entropy)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(("name", "changes"), [("Qwen3", {}), ("OPT", {"word_embed_proj_dim": 24, "ffn_dim": 48})])
@torch.no_grad()
def test_a_value_judges_the_state_before_its_token(shared, name, changes, make_policy, batch):
    policy = make_policy(name, **changes)
    critic = Critic.shared(policy) if shared else Critic.separate(policy)
    critic.head.linear.weight.normal_()
    padded = PPOBatch(batch)
    figures = PolicyValueModel(policy, critic)(padded)
    assert torch.equal(figures.values, PolicyValueModel(policy, critic)(batch).values)
    values = spread(figures.values, padded.loss_mask)
    hidden = policy.base_model(input_ids=padded.token_ids).last_hidden_state
    expected = (hidden @ critic.head.linear.weight[0])[:, :-1].where(padded.loss_mask[:, 1:], 0.0)
    torch.testing.assert_close(values[:, 1:], expected, atol=logit_tolerance(policy), rtol=0)


def test_a_fresh_critic_says_zero_and_learns_from_its_first_gradient(make_policy, batch):
    policy = make_policy()
    critic = Critic.separate(policy)
    values = critic.token_values(batch)
    assert not values.any()
    (values - 1).pow(2).sum().backward()
    assert critic.head.linear.weight.grad.abs().sum() > 0
    assert all(parameter.grad is None for parameter in policy.parameters())


def test_a_shared_critic_alone_says_where_its_values_come_from(make_policy, batch):
    with pytest.raises(ValueError, match="token_outputs"):
        Critic.shared(make_policy()).token_values(batch)


def test_a_value_head_gives_one_float32_number_per_state():
    assert ValueHead(8)(torch.zeros(2, 3, 8)).shape == (2, 3)
    assert ValueHead(8).bfloat16()(torch.zeros(2, 8, dtype=torch.bfloat16)).dtype == torch.float32


def test_a_frozen_copy_does_not_follow_the_policy(make_policy, batch):
    policy = make_policy()
    reference = frozen_copy(policy)
    before = token_logprobs(reference, batch)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(1.0)
    assert torch.equal(token_logprobs(reference, batch), before)
    assert not any(parameter.requires_grad for parameter in reference.parameters())


def test_both_heads_can_be_used_by_themselves(make_policy):
    model = PolicyValueModel(policy := make_policy())
    hidden = policy.base_model(input_ids=torch.tensor([[3, 4, 5]])).last_hidden_state
    assert torch.equal(model.policy_head(hidden), policy(input_ids=torch.tensor([[3, 4, 5]])).logits)
    assert model.policy_head.linear is policy.get_output_embeddings()
    assert torch.equal(model.value_head(hidden), torch.zeros(1, 3))
