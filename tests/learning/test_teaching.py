"""A teacher in the learner: its scores, and what is added to the advantages. The same step computed in other ways:
`test_every_method.py`."""

import pytest
import torch
from precision import logit_tolerance
from training_settings import training

from midthought.learning.batch import TokenBatch
from midthought.learning.iteration import improve
from midthought.learning.learner import Learner
from midthought.learning.model import add_adapters, frozen_copy, token_logprobs
from midthought.types import Completion, Finish, Reward, Task, Trajectory

TAUGHT = training(
    adv_estimator="zero", teacher="a folder", entropy_coef=0.0, learning_rate=1e-2, mini_batch_size=100, packing=False
)
NUM_STEPS = 10
PROMPTS = torch.tensor([[1, first] for first in range(3, 35)])


@pytest.fixture
def trajectories(make_trajectory):
    return [make_trajectory(seed, group=seed // 2) for seed in range(6)]


def learner_of(policy, teacher, **changes) -> Learner:
    return Learner(policy, None, None, TAUGHT.model_copy(update=changes), teacher=teacher)


def test_the_teacher_is_scored_and_its_log_ratio_is_the_advantage(make_policy, trajectories):
    policy, teacher = make_policy(seed=1), frozen_copy(make_policy("GPT2", seed=2))
    batch = TokenBatch.from_trajectories(trajectories)
    learner = learner_of(policy, teacher, micro_batch_tokens=40)
    scored, _ = learner.score(batch)
    tolerance = logit_tolerance(policy)
    torch.testing.assert_close(scored.teacher_logprobs, token_logprobs(teacher, batch), atol=tolerance, rtol=0)
    credited, metrics = learner.credit(scored)
    difference = scored.teacher_logprobs - scored.old_logprobs
    torch.testing.assert_close(credited.advantages, difference)
    assert metrics["kl_teacher"] == pytest.approx(-float(difference[batch.loss_mask].mean()), rel=1e-5)


def test_the_term_is_added_to_the_advantages_of_rewards(make_policy, trajectories):
    policy, teacher = make_policy(seed=1), frozen_copy(make_policy(seed=2))
    batch = TokenBatch.from_trajectories(trajectories)
    scored, _ = learner_of(policy, teacher, adv_estimator="grpo").score(batch)
    both, _ = learner_of(policy, teacher, adv_estimator="grpo").credit(scored)
    rewards, _ = Learner(policy, None, None, training(adv_estimator="grpo")).credit(
        scored.with_fields(teacher_logprobs=None)
    )
    taught, _ = learner_of(policy, teacher).credit(scored)
    assert rewards.advantages.any()
    torch.testing.assert_close(both.advantages, rewards.advantages + taught.advantages)


@pytest.mark.parametrize("is_lora", [False, True])
def test_the_divergence_from_the_teacher_falls_on_samples_of_the_policy(make_policy, is_lora):
    """In ten seeds, it fell to between 0.30 and 0.72 of what it was."""
    policy, teacher = make_policy(seed=1), frozen_copy(make_policy(seed=2))
    if is_lora:
        torch.manual_seed(0)
        policy = add_adapters(policy, 8, 16)
    learner = learner_of(policy, teacher, learning_rate=3e-2 if is_lora else 5e-3)
    generator = torch.Generator().manual_seed(0)
    before = divergence(policy, teacher)
    for _ in range(NUM_STEPS):
        improve(learner, sampled(policy, generator))
    assert divergence(policy, teacher) < 0.9 * before


def divergence(policy, teacher) -> float:
    """The mean of KL(policy || teacher) over the token after each prompt."""
    with torch.no_grad():
        ours, theirs = (model(input_ids=PROMPTS).logits[:, -1].log_softmax(-1) for model in (policy, teacher))
    return float((ours.exp() * (ours - theirs)).sum(-1).mean())


def sampled(policy, generator: torch.Generator) -> TokenBatch:
    """Two tokens after each prompt, sampled from the policy."""
    token_ids = PROMPTS
    logprobs: list[torch.Tensor] = []
    for _ in range(2):
        with torch.no_grad():
            logits = policy(input_ids=token_ids).logits[:, -1]
        drawn = torch.multinomial(logits.softmax(-1), 1, generator=generator)
        logprobs.append(logits.log_softmax(-1).gather(1, drawn))
        token_ids = torch.cat([token_ids, drawn], dim=1)
    episodes = []
    for row, its_logprobs in zip(token_ids.tolist(), torch.cat(logprobs, dim=1).tolist(), strict=True):
        trajectory = Trajectory(Task(task_id="t", prompt="?", answer="!"), row[:2])
        trajectory.add_sampled(Completion(token_ids=(*row[2:],), sampled_logprobs=(*its_logprobs,), finish=Finish.END))
        trajectory.reward = Reward(parts={"none": 0.0})
        episodes.append(trajectory)
    return TokenBatch.from_trajectories(episodes)


def test_a_learner_without_the_teacher_that_the_settings_name_is_an_error(make_policy, trajectories):
    learner = learner_of(make_policy(), None)
    with pytest.raises(ValueError, match="the learner has no teacher"):
        improve(learner, TokenBatch.from_trajectories(trajectories))
