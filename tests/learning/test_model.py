"""Models: log-probabilities at policy tokens are the same as in a plain forward pass, over architectures; critics."""

import pytest
import torch
from precision import logit_tolerance

from midthought.learning.batch import TokenBatch
from midthought.learning.logprobs import LogitShape
from midthought.learning.model import (
    Critic,
    PolicyValueModel,
    ValueHead,
    frozen_copy,
    spread,
    token_logprobs,
    token_outputs,
)
from midthought.learning.padded_batch import PPOBatch

ARCHITECTURES = {
    "Qwen3": {},
    "Qwen3 tied": {"tie_word_embeddings": True},
    "Llama": {},
    "Gemma2": {"final_logit_softcapping": 3.0, "query_pre_attn_scalar": 16},
    "Gemma3Text": {},
    "Cohere": {"logit_scale": 0.25},
    "GPT2": {},
    "Phi3": {},
}


def architecture(make_policy, name: str):
    return make_policy(name.split()[0], **ARCHITECTURES[name])


def batch_of(make_trajectory, count: int = 5) -> TokenBatch:
    return TokenBatch.from_trajectories([make_trajectory(seed) for seed in range(count)])


def plain_logprobs(policy, batch: TokenBatch) -> torch.Tensor:
    """Row by row, without padding, with all logits: the slow way that cannot be wrong."""
    rows = []
    for ids in batch.token_ids.split(batch.lengths.tolist()):
        distribution = policy(input_ids=ids[None]).logits.float().log_softmax(-1)
        rows += [torch.zeros(1), distribution[0, :-1].gather(-1, ids[1:, None])[:, 0]]
    return torch.cat(rows).where(batch.loss_mask, 0.0)


@pytest.mark.parametrize("name", ARCHITECTURES)
@torch.no_grad()
def test_logprobs_of_a_padded_batch_equal_those_of_each_row_alone(name, make_policy, make_trajectory):
    policy, batch = architecture(make_policy, name), batch_of(make_trajectory)
    torch.testing.assert_close(
        token_logprobs(policy, batch), plain_logprobs(policy, batch), atol=logit_tolerance(policy), rtol=0
    )


@pytest.mark.parametrize("name", ["Qwen3", "Gemma2", "Cohere"])
def test_logits_are_made_at_policy_tokens_only(name, make_policy, make_trajectory):
    policy, batch = architecture(make_policy, name), batch_of(make_trajectory)
    seen = []
    handle = policy.get_output_embeddings().register_forward_hook(
        lambda module, inputs, output: seen.append(output.shape)
    )
    token_logprobs(policy, batch)
    handle.remove()
    assert [shape[:-1].numel() for shape in seen] == [batch.num_policy_tokens]


def test_the_policy_is_left_as_it_was(make_policy, make_trajectory):
    policy, batch = make_policy(), batch_of(make_trajectory)
    before = policy(input_ids=batch.token_ids[None]).logits
    token_logprobs(policy, batch)
    assert torch.equal(policy(input_ids=batch.token_ids[None]).logits, before)
    assert not policy.get_output_embeddings()._forward_pre_hooks


@torch.no_grad()
def test_a_model_whose_output_layer_is_not_a_module_of_its_own_still_gives_the_same(make_policy, make_trajectory):
    policy, batch = make_policy(), batch_of(make_trajectory)
    expected = token_logprobs(policy, batch)
    critic = Critic.shared(policy)
    critic.head.linear.weight.normal_()
    values = token_outputs(policy, batch, critic).values
    policy.get_output_embeddings = lambda: None
    figures = token_outputs(policy, batch, critic)
    torch.testing.assert_close(spread(figures.logprobs, batch.loss_mask), expected)
    torch.testing.assert_close(figures.values, values)


@torch.no_grad()
def test_where_the_architecture_does_something_unknown_to_its_logits_all_are_kept_and_the_log_says_so(
    make_policy, make_trajectory, monkeypatch, caplog
):
    policy, batch = make_policy("Gemma2", **ARCHITECTURES["Gemma2"]), batch_of(make_trajectory)
    expected = token_outputs(policy, batch, entropy=True)
    monkeypatch.setattr(LogitShape, "of", lambda config: LogitShape())
    found = token_outputs(policy, batch, entropy=True, logits_mib=48 * 4 / 2**20)
    assert "what Gemma2ForCausalLM does to its logits is not known" in caplog.text
    assert torch.equal(found.logprobs, expected.logprobs) and torch.equal(found.entropy, expected.entropy)


@torch.no_grad()
def test_entropy_is_that_of_the_whole_distribution(make_policy, make_trajectory):
    policy, batch = make_policy(), batch_of(make_trajectory)
    entropy = token_outputs(policy, batch, entropy=True).entropy
    padded = PPOBatch(batch)
    distribution = torch.distributions.Categorical(logits=policy(input_ids=padded.token_ids).logits[:, :-1])
    torch.testing.assert_close(
        entropy, distribution.entropy()[padded.loss_mask[:, 1:]], atol=logit_tolerance(policy), rtol=0
    )


@pytest.mark.parametrize("shared", [True, False])
@torch.no_grad()
def test_a_value_judges_the_state_before_its_token(shared, make_policy, make_trajectory):
    policy, batch = make_policy(), batch_of(make_trajectory)
    critic = Critic.shared(policy) if shared else Critic.separate(policy)
    critic.head.linear.weight.normal_()
    padded = PPOBatch(batch)
    figures = PolicyValueModel(policy, critic)(padded)
    assert torch.equal(figures.values, PolicyValueModel(policy, critic)(batch).values)
    values = spread(figures.values, padded.loss_mask)
    hidden = policy.base_model(input_ids=padded.token_ids).last_hidden_state
    expected = (hidden @ critic.head.linear.weight[0])[:, :-1].where(padded.loss_mask[:, 1:], 0.0)
    torch.testing.assert_close(values[:, 1:], expected, atol=logit_tolerance(policy), rtol=0)


def test_a_fresh_critic_says_zero_and_learns_from_its_first_gradient(make_policy, make_trajectory):
    policy, batch = make_policy(), batch_of(make_trajectory)
    critic = Critic.separate(policy)
    values = critic.token_values(batch)
    assert not values.any()
    (values - 1).pow(2).sum().backward()
    assert critic.head.linear.weight.grad.abs().sum() > 0
    assert all(parameter.grad is None for parameter in policy.parameters())


def test_a_shared_critic_alone_says_where_its_values_come_from(make_policy, make_trajectory):
    with pytest.raises(ValueError, match="token_outputs"):
        Critic.shared(make_policy()).token_values(batch_of(make_trajectory))


def test_a_value_head_gives_one_float32_number_per_state():
    assert ValueHead(8)(torch.zeros(2, 3, 8)).shape == (2, 3)
    assert ValueHead(8).bfloat16()(torch.zeros(2, 8, dtype=torch.bfloat16)).dtype == torch.float32


def test_a_frozen_copy_does_not_follow_the_policy(make_policy, make_trajectory):
    policy, batch = make_policy(), batch_of(make_trajectory)
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
