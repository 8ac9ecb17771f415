"""The warm-up: what a step is taken on, how its loss is averaged, where it begins and when it ends."""

import math
import time

import pytest
import torch
from test_batch import trajectory_of
from training_settings import changed, training

from midthought.errors import TrainingStoppedError
from midthought.learning.learner import Learner
from midthought.learning.optimizer import NO_END
from midthought.trainer.sft import run_sft
from midthought.types import Trajectory


def demonstration(*parts: list[int]) -> Trajectory:
    """Prompt 1 2 3, then what the policy writes and what the tool says in turns."""
    return trajectory_of(("p", [1, 2, 3]), *zip("dt" * len(parts), parts, strict=False))


DEMONSTRATIONS = [demonstration([4, 5], [9, 9, 9], [6, 2]), demonstration([7, 2]), demonstration([8] * 9 + [2])]


def learner_of(policy, **changes) -> Learner:
    return Learner(policy, None, None, training(learning_rate=1e-3, **changes))


def train(learner, demonstrate=lambda step: DEMONSTRATIONS, *, start=0, num_steps=1, **changes):
    told = []
    run_sft(
        learner,
        demonstrate,
        start=start,
        num_steps=num_steps,
        mixed_precision=changes.pop("mixed_precision", False),
        on_step=lambda step, metrics: told.append((step, dict(metrics))),
        **changes,
    )
    return told


def mean_loss(policy) -> float:
    """Cross-entropy over the policy's tokens of all demonstrations together, by plain forward passes."""
    losses = []
    for trajectory in DEMONSTRATIONS:
        token_ids = torch.tensor([trajectory.token_ids])
        with torch.no_grad():
            logprobs = policy(token_ids).logits.log_softmax(-1)[0, :-1]
        for position, own in enumerate(trajectory.loss_mask[1:]):
            if own:
                losses.append(-logprobs[position, trajectory.token_ids[position + 1]])
    return float(torch.stack(losses).mean())


@pytest.mark.parametrize("micro_batch_tokens", [12, 4096])
def test_the_loss_is_the_mean_over_the_policys_tokens_of_the_whole_step(make_policy, micro_batch_tokens):
    policy = make_policy()
    expected = mean_loss(policy)
    ((step, metrics),) = train(learner_of(policy, micro_batch_tokens=micro_batch_tokens))
    assert step == 1 and metrics["loss"] == pytest.approx(expected, rel=1e-5)
    assert metrics["time/tokens_per_second"] > 0


def test_it_goes_on_at_the_step_that_it_is_told_and_asks_for_that_steps_demonstrations(make_policy):
    asked = []

    def demonstrate(step):
        asked.append(step)
        return DEMONSTRATIONS

    told = train(learner_of(make_policy()), demonstrate, start=3, num_steps=5)
    assert asked == [3, 4] and [step for step, _ in told] == [4, 5]


def test_it_ends_at_the_deadline(make_policy):
    assert train(learner_of(make_policy()), num_steps=5, deadline=time.monotonic() - 1) == []
    late = []

    def demonstrate(step):
        if step == 2:
            time.sleep(0.3)
        late.append(step)
        return DEMONSTRATIONS

    train(learner_of(make_policy()), demonstrate, num_steps=10_000, deadline=time.monotonic() + 0.3)
    assert 1 <= len(late) < 1000


def test_mixed_precision_leaves_the_weights_in_float32_and_the_loss_nearly_the_same(make_policy):
    exact = train(learner_of(make_policy()))[0][1]["loss"]
    assert train(learner_of(make_policy()), mixed_precision=None)[0][1]["loss"] == exact, "by default on GPUs only"
    policy = make_policy()
    mixed = train(learner_of(policy), mixed_precision=True)[0][1]["loss"]
    assert {parameter.dtype for parameter in policy.parameters()} == {torch.float32}
    assert mixed == pytest.approx(exact, rel=0.05) and mixed != exact


def test_a_warm_up_without_finite_gradients_stops_after_five_steps_in_a_row(make_policy):
    policy = make_policy()
    with torch.no_grad():
        policy.model.norm.weight.mul_(1e38)
    learner = learner_of(policy)
    with pytest.raises(
        TrainingStoppedError, match="5 supervised steps in a row, up to step 5, were not finite: loss inf"
    ):
        train(learner, num_steps=20)
    assert learner.num_steps == 5


@pytest.mark.parametrize("first_factor", [1.0, 1e38])
def test_a_warm_up_whose_loss_diverges_stops(make_policy, first_factor):
    """Every step has other targets, and its learning rate makes the policy certain of them: the next step is always wrong.
    The first step may have an infinite loss."""
    policy = make_policy()
    learner = learner_of(policy, max_grad_norm=math.inf)
    learner.set_training(changed(learner.training, learning_rate=1.0), NO_END)
    norm = policy.model.norm.weight
    before = norm.detach().clone()

    def demonstrate(step):
        if step < 2:
            norm.data = before * (1.0 if step else first_factor)
        return [demonstration([4 + step] * 8)]

    with pytest.raises(TrainingStoppedError, match=r"diverges: .* nats per token in step \d+, \d.* in the first one"):
        train(learner, demonstrate, num_steps=40)
