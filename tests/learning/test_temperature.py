"""The learner computes under the distribution that was sampled: softmax(logits / T), T the temperature of each token."""

import asyncio
import copy

import pytest
import torch
from training_settings import changed, training

from midthought.config import TrainingConfig
from midthought.engines.engine import Sampling
from midthought.engines.local.engine import LocalEngine
from midthought.learning.batch import TokenBatch
from midthought.learning.learner import Learner
from midthought.learning.model import PPOBatch, frozen_copy
from midthought.types import Reward, Task, ToolCall, ToolEvent, ToolOutcome, Trajectory

WAYS = {
    "packed": {},
    "padded": {"packing": False, "micro_batch_tokens": 64},
    "in blocks": {"logits_mib": 48 * 4 * 5 / 2**20},
}
KINDS = {"Qwen3": {}, "Gemma2": {"final_logit_softcapping": 3.0, "query_pre_attn_scalar": 16}}


def play(engine: LocalEngine, temperatures: list[float], seed: int) -> Trajectory:
    """An episode with a tool result after each of its sampled runs, each run at a temperature of its own."""
    trajectory = Trajectory(Task(task_id=f"t{seed}", prompt="?", answer="!"), [3, 4, 5 + seed], seed=seed)
    event = ToolEvent(call=ToolCall(tool_name="look", success=True, result="so"), outcome=ToolOutcome.OK)

    async def run() -> None:
        for temperature in temperatures:
            sampling = Sampling(max_tokens=12, temperature=temperature, seed=seed)
            completion = await engine.sample(seed, trajectory.token_ids, sampling)
            trajectory.add_sampled(completion, temperature=sampling.temperature)
            trajectory.add_results([event], [7, 8, 9])

    asyncio.run(run())
    engine.close(seed)
    trajectory.reward = Reward(parts={"right": float(seed % 2)})
    return trajectory


def batch_of(policy, *temperatures: float, num_episodes: int = 6) -> TokenBatch:
    """Sampled by the local engine from the policy."""
    engine = LocalEngine(policy, eos_token_ids=[2], max_seq_len=128)
    return TokenBatch.from_trajectories([play(engine, list(temperatures), seed) for seed in range(num_episodes)])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "temperatures",
    [(0.4, 1.0, 1.7), (1.0, 0.0), *(pytest.param(each, marks=pytest.mark.slow) for each in ((0.7, 0.7), (1.3, 1.3)))],
)
def test_what_the_engine_sampled_is_recomputed_and_the_first_ratio_is_one(make_policy, way, temperatures):
    policy = make_policy()
    batch = batch_of(policy, *temperatures)
    scored, figures = Learner(policy, None, frozen_copy(policy), training(**WAYS[way])).score(batch)
    # float32 log-probabilities of two programs: rounding of 1e-7 of logits of about 10, over two layers
    ratios = (scored.old_logprobs - batch.sampled_logprobs)[batch.loss_mask].exp()
    torch.testing.assert_close(ratios, torch.ones_like(ratios), atol=1e-4, rtol=0)
    assert figures["logprob_difference_max"] <= 1e-4
    torch.testing.assert_close(scored.reference_logprobs, scored.old_logprobs, atol=1e-6, rtol=1e-5)


def test_at_temperature_one_nothing_is_divided(make_policy):
    assert batch_of(make_policy(), 1.0, 1.0).temperatures is None


def plain_loss(policy, reference, tokens: TokenBatch, settings: TrainingConfig) -> torch.Tensor:
    """PPO's loss written out: clipped ratio, entropy bonus and k3 divergence under softmax(logits / T), mean over tokens."""

    batch = PPOBatch(tokens)

    def distributions(model) -> torch.Tensor:
        logits = model(input_ids=batch.token_ids, attention_mask=batch.attention_mask.long()).logits[:, :-1]
        return (logits / temperatures[:, 1:, None]).log_softmax(-1)

    temperatures = torch.ones(batch.token_ids.shape) if batch.temperatures is None else batch.temperatures
    mask, targets = batch.loss_mask[:, 1:], batch.token_ids[:, 1:, None]
    ours = distributions(policy)
    with torch.no_grad():
        theirs = distributions(reference).gather(-1, targets)[..., 0]
    logprobs = ours.gather(-1, targets)[..., 0]
    ratio = (logprobs - batch.old_logprobs[:, 1:]).exp()
    advantages = batch.advantages[:, 1:]
    clipped = ratio.clamp(1 - settings.clip_ratio, 1 + settings.clip_high)
    surrogate = -torch.minimum(ratio * advantages, clipped * advantages)
    entropy = -(ours.exp() * ours).sum(-1)
    gap = theirs - logprobs
    divergence = gap.exp() - gap - 1
    terms = surrogate - settings.entropy_coef * entropy + settings.kl_loss_coef * divergence
    return terms[mask].mean()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "temperatures", [(0.5, 1.6), *(pytest.param(each, marks=pytest.mark.slow) for each in ((0.7,), (1.0,), (1.3,)))]
)
def test_the_gradient_is_that_of_the_loss_written_out_in_float64(make_policy, kind, way, temperatures):
    policy = make_policy(kind, **KINDS[kind])
    batch = batch_of(policy, *temperatures)
    policy = policy.double()
    reference = frozen_copy(make_policy(kind, seed=9, **KINDS[kind])).double()
    settings = training(
        adv_estimator="reinforce_plus_plus", mini_batch_size=100, entropy_coef=0.3, kl_loss_coef=0.2, max_grad_norm=1e9
    )
    learner = Learner(copy.deepcopy(policy), None, reference, changed(settings, **WAYS[way]))
    credited = learner.credit(learner.score(batch)[0])[0]
    # an old policy of its own, so that ratios differ from 1 and some are clipped
    shift = 0.3 * torch.randn(batch.num_tokens, generator=torch.Generator().manual_seed(0))
    credited = credited.with_fields(old_logprobs=credited.old_logprobs + shift * batch.loss_mask)
    learner.update(credited)
    loss = plain_loss(policy, reference, credited, settings)
    loss.backward()
    for mine, theirs in zip(learner.policy.parameters(), policy.parameters(), strict=True):
        # relative to the largest entry; old and reference log-probabilities are kept in float32 (eps 1.2e-7)
        scale = float(theirs.grad.abs().max())
        assert float((mine.grad - theirs.grad).abs().max()) <= 1e-5 * max(scale, 1.0)
    assert float(sum(p.grad.abs().sum() for p in policy.parameters())) > 1e-3
