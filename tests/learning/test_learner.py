"""The learner: figures against plain computations, what each step changes, and that it learns. Other ways to compute the same
step: `test_same_everywhere.py`, `test_every_method.py`."""

import math

import pytest
import torch
from precision import logit_tolerance
from test_batch import trajectory_of
from training_settings import CRITICS, changed, gradients_of, prepared, training, weights_of

from midthought.algo.shaping import rollout_weights
from midthought.errors import CheckpointError, SettingsError
from midthought.learning.batch import TokenBatch
from midthought.learning.credit import without_truncated
from midthought.learning.iteration import improve
from midthought.learning.learner import Learner
from midthought.learning.model import frozen_copy, token_logprobs
from midthought.learning.optimizer import TrainingSchedule, learning_rate_factor
from midthought.rollout.selection import select
from midthought.types import RolloutData, StopReason

SETTINGS = training(learning_rate=1e-3, critic_learning_rate=1e-3, mini_batch_size=100)
ALONE = {"critic": None, "reference": False, "adv_estimator": "grpo"}


def build_learner(make_policy, *, critic="separate", reference=True, seed=0, total_steps=None, **changes) -> Learner:
    policy = make_policy(seed=seed)
    other = frozen_copy(make_policy(seed=99)) if reference else None
    schedule = TrainingSchedule(total_steps=total_steps)
    return Learner(policy, CRITICS[critic](policy), other, changed(SETTINGS, **changes), schedule)


def test_scoring_fills_in_the_logprobs_of_policy_and_reference_and_the_critics_values(make_policy, batch):
    learner = build_learner(make_policy, micro_batch_tokens=40)
    learner.critic.head.linear.bias.data.fill_(0.7)
    scored, _ = learner.score(batch)
    for found, model in ((scored.old_logprobs, learner.policy), (scored.reference_logprobs, learner.reference)):
        with torch.no_grad():
            expected = token_logprobs(model, batch)
        torch.testing.assert_close(found, expected, atol=logit_tolerance(learner.policy), rtol=0)
    torch.testing.assert_close(scored.values, 0.7 * batch.loss_mask)


def test_the_health_figure_is_the_distance_of_recomputed_from_sampled_logprobs(make_policy, batch):
    learner = build_learner(make_policy)
    with torch.no_grad():
        truth = token_logprobs(learner.policy, batch)
    _, figures = learner.score(batch.with_fields(sampled_logprobs=truth))
    assert figures["logprob_difference_max"] < logit_tolerance(learner.policy)
    truth[batch.loss_mask.nonzero()[3]] += 0.25
    _, figures = learner.score(batch.with_fields(sampled_logprobs=truth))
    assert figures["logprob_difference_max"] == pytest.approx(0.25, abs=1e-4)
    assert figures["logprob_difference_mean"] == pytest.approx(0.25 / batch.num_policy_tokens, abs=1e-4)


def test_without_discount_every_policy_token_of_every_segment_has_the_episodes_reward_as_return(make_policy):
    segments = [("p", [4, 5]), ("s", [7, 8]), ("p", [4, 5, 6]), ("s", [7, 8]), ("p", [4, 5, 6]), ("s", [9])]
    batch = TokenBatch.from_trajectories([trajectory_of(*segments, reward=0.75)])
    credited = prepared(build_learner(make_policy, reference=False), batch)
    torch.testing.assert_close(credited.returns, 0.75 * batch.loss_mask)


def test_the_kl_penalty_is_taken_off_the_rewards_before_credit(make_policy, batch):
    learner = build_learner(make_policy, kl_coef=0.1)
    scored, _ = learner.score(batch)
    credited, figures = learner.credit(scored)
    divergence = scored.old_logprobs - scored.reference_logprobs
    first, end = int(batch.loss_mask.nonzero()[0]), int(batch.lengths[0])
    expected = float(batch.rewards[:end].sum() - 0.1 * divergence[:end].sum())
    assert float(credited.returns[first]) == pytest.approx(expected, abs=1e-4)
    assert figures["kl_reference"] == pytest.approx(float(divergence[batch.loss_mask].mean()), abs=1e-5)
    assert figures["kl_coef"] == 0.1


def test_a_target_kl_moves_the_coefficient_of_the_next_iteration(make_policy, batch):
    learner = build_learner(make_policy, kl_coef=0.1, target_kl=1e-6)
    _, figures = learner.credit(learner.score(batch)[0])
    change = max(-0.2, min(0.2, figures["kl_reference"] / 1e-6 - 1))
    assert change != 0
    assert learner.kl_controller.coef == pytest.approx(0.1 * (1 + change * 8 / 10_000), rel=1e-9)


def test_masked_episodes_have_no_loss_but_count_in_their_group(make_policy, make_trajectory):
    trajectories = [make_trajectory(seed, group=seed // 4, reward=float(seed)) for seed in range(8)]
    reasons = {1: StopReason.LENGTH, 6: StopReason.MAX_TURNS, 5: StopReason.MAX_STEPS, 2: StopReason.ANSWERED}
    for seed, reason in reasons.items():
        trajectories[seed].stop_reason = reason
    batch = TokenBatch.from_trajectories(trajectories)
    kept = [0, 2, 3, 4, 7]
    plain, masked = (build_learner(make_policy, **ALONE, mask_truncated_episodes=each) for each in (False, True))
    everything, _ = plain.credit(plain.score(batch)[0])
    credited, _ = without_truncated(everything, trajectories)
    assert credited.episodes.tolist() == kept
    torch.testing.assert_close(credited.advantages, everything.select(torch.tensor(kept)).advantages)
    assert improve(masked, batch, trajectories)["num_masked_episodes"] == 3
    plain.update(everything.select(torch.tensor(kept)))
    torch.testing.assert_close(gradients_of(masked), gradients_of(plain))


def test_nothing_is_learned_if_every_episode_is_masked(make_policy, make_trajectory):
    trajectories = [make_trajectory(seed) for seed in range(4)]
    for trajectory in trajectories:
        trajectory.stop_reason = StopReason.LENGTH
    learner = build_learner(make_policy, **ALONE, mask_truncated_episodes=True)
    before = weights_of(learner.policy)
    metrics = improve(learner, TokenBatch.from_trajectories(trajectories), trajectories)
    assert metrics["num_masked_episodes"] == 4
    assert "num_optimizer_steps" not in metrics
    assert torch.equal(weights_of(learner.policy), before)


def test_explained_variance_is_one_for_a_perfect_critic_and_zero_for_a_constant_one(make_policy, batch):
    learner = build_learner(make_policy, reference=False)
    scored, _ = learner.score(batch)
    _, constant = learner.credit(scored)
    assert constant["explained_variance"] == pytest.approx(0.0, abs=1e-6)
    returns = batch.by_episode(batch.rewards).sum(1)[batch.token_episodes] * batch.loss_mask
    _, perfect = learner.credit(scored.with_fields(values=returns))
    assert perfect["explained_variance"] == pytest.approx(1.0)


def test_a_loss_that_no_trained_weight_reaches_is_an_error_with_its_remedy(make_policy, batch):
    learner = build_learner(make_policy, critic=None, adv_estimator="dr_grpo")
    learner.policy.requires_grad_(False)
    with pytest.raises(SettingsError, match=r"frozen .*requires_grad_\(True\)"):
        learner.update(prepared(learner, batch))


@pytest.mark.parametrize("kind", ["truncated", "sequence_truncated"])
def test_scoring_weighs_recomputed_against_sampled_logprobs_where_asked_to(kind, make_policy, batch):
    learner = build_learner(make_policy, rollout_correction=kind)
    scored, figures = learner.score(batch)
    expected, its_figures = rollout_weights(
        scored.old_logprobs, batch.sampled_logprobs, batch.loss_mask, kind, episodes=batch.token_episodes
    )
    torch.testing.assert_close(scored.rollout_weights, expected)
    assert its_figures.items() <= figures.items()
    assert build_learner(make_policy).score(batch)[0].rollout_weights is None


def test_the_policy_loss_of_a_token_is_multiplied_by_its_weight(make_policy, batch):
    losses = {}
    for weight in (1.0, 0.25):
        learner = build_learner(make_policy, reference=False, entropy_coef=0.0)
        credited = prepared(learner, batch)
        weights = batch.loss_mask * weight
        losses[weight] = learner.update(credited.with_fields(rollout_weights=weights))["policy_loss"]
    assert losses[0.25] == pytest.approx(0.25 * losses[1.0], abs=1e-7)


def test_what_a_step_needs_is_named(make_policy, batch):
    for changes, message in (({"kl_coef": 0.1}, "need a reference policy"), ({"adv_estimator": "gae"}, "needs values")):
        learner = build_learner(make_policy, **ALONE | changes)
        with pytest.raises(ValueError, match=message):
            learner.credit(learner.score(batch)[0])
    with pytest.raises(ValueError, match="call `score` before `credit`"):
        learner.credit(batch)
    with pytest.raises(ValueError, match="call `score` and `credit` before `update`"):
        learner.update(batch)


def test_the_average_weighs_policy_loss_entropy_and_divergence_alike(make_policy, batch):
    """By the sum over an episode's tokens, each term is larger by the mean number of tokens than by the mean."""
    found = {}
    for average in ("token-mean", "seq-mean-token-sum"):
        learner = build_learner(make_policy, critic=None, adv_estimator="grpo", kl_loss_coef=0.1, loss_agg=average)
        found[average] = learner.update(prepared(learner, batch))
    factor = batch.num_policy_tokens / batch.num_episodes
    plain, summed = found["token-mean"], found["seq-mean-token-sum"]
    for name in ("policy_loss", "kl_loss", "loss"):
        assert summed[name] == pytest.approx(factor * plain[name], rel=1e-4, abs=1e-6)
    for name in ("entropy", "ratio_mean", "approx_kl"):
        assert summed[name] == pytest.approx(plain[name], rel=1e-5, abs=1e-7)


def test_every_epoch_visits_every_episode_once_in_mini_batches(make_policy, batch):
    learner = build_learner(make_policy, mini_batch_size=3, ppo_epochs=2)
    metrics = learner.update(prepared(learner, batch))
    assert metrics["num_optimizer_steps"] == learner.num_steps == 6


def test_a_supervised_step_lowers_the_loss_of_its_batch_and_leaves_a_separate_critic_alone(make_policy, batch):
    learner = build_learner(make_policy, reference=False)
    before = weights_of(learner.critic)
    assert learner.sft_step(batch)["loss"] > learner.sft_loss(batch)
    assert torch.equal(weights_of(learner.critic), before)


def test_the_step_of_keep_best_is_the_supervised_step_on_the_best_episodes_of_groups_that_differ(
    make_policy, make_trajectory
):
    rewards = [0.1, 0.9, 0.3, 0.2, 0.5, 0.5, 0.0, 0.4, 0.3, 0.3, 0.3, 0.1 + 0.2]
    trajectories = [make_trajectory(seed, reward=reward, group=seed // 4) for seed, reward in enumerate(rewards)]
    settings = training(adv_estimator="keep_best", policy_loss="nll", entropy_coef=0.0, learning_rate=1e-2)
    selected, supervised = (Learner(make_policy(), None, None, settings) for _ in range(2))
    batch = select(RolloutData(trajectories), settings, None)
    assert [trajectories.index(each) for each in batch.usable] == [1, 4, 5]
    assert batch.metrics == {"batch/num_flat_groups": 1, "batch/kept_fraction": 3 / 8}
    loss = improve(selected, TokenBatch.from_trajectories(batch.usable))["policy_loss"]
    best = TokenBatch.from_trajectories([trajectories[n] for n in (1, 4, 5)], demonstrations=True)
    assert loss == pytest.approx(supervised.sft_step(best)["loss"], rel=1e-6)
    ours, theirs, before = map(weights_of, (selected.policy, supervised.policy, make_policy()))
    assert torch.allclose(ours, theirs, atol=1e-6) and not torch.equal(ours, before)


@pytest.mark.parametrize("critic", ["separate", "shared"])
def test_ppo_learns_which_token_is_rewarded(critic, make_policy):
    """In ten seeds, ten iterations raised the probability of even tokens by 0.27 to 0.41."""
    learner = build_learner(make_policy, critic=critic, reference=False, learning_rate=3e-3, critic_learning_rate=3e-3)
    generator = torch.Generator().manual_seed(0)

    def distribution() -> torch.Tensor:
        with torch.no_grad():
            return learner.policy(input_ids=torch.tensor([[5, 6]])).logits[0, -1].softmax(-1)

    before = distribution()
    for _ in range(10):
        probabilities, trajectories = distribution(), []
        for token in torch.multinomial(probabilities, 64, replacement=True, generator=generator).tolist():
            reward, logprob = float(token % 2 == 0), float(probabilities[token].log())
            trajectories.append(trajectory_of(("p", [5, 6]), ("s", [token]), reward=reward, logprob=logprob))
        scored, health = learner.score(TokenBatch.from_trajectories(trajectories))
        assert health["logprob_difference_max"] < logit_tolerance(learner.policy)
        learner.update(learner.credit(scored)[0])
    assert float(distribution()[::2].sum()) > float(before[::2].sum()) + 0.15


def test_gradients_are_clipped_for_policy_and_critic_each_on_its_own(make_policy, batch):
    learner = build_learner(make_policy, max_grad_norm=1e-3)
    metrics = learner.update(prepared(learner, batch))
    assert metrics["grad_norm"] > 1e-3 and metrics["critic_grad_norm"] > 1e-3
    for module in (learner.policy, learner.critic):
        norm = torch.cat([p.grad.flatten() for p in module.parameters()]).norm()
        assert float(norm) == pytest.approx(1e-3, rel=1e-2)


def test_a_step_without_finite_gradients_changes_no_weight_and_is_counted(make_policy, batch):
    learner = build_learner(make_policy, reference=False)
    credited = prepared(learner, batch)
    before = weights_of(learner.policy)
    metrics = learner.update(credited.with_fields(advantages=credited.advantages * math.inf))
    assert metrics["num_skipped_steps"] == 1
    assert torch.equal(weights_of(learner.policy), before)
    assert learner.update(credited)["num_skipped_steps"] == 0


def test_policy_and_critic_have_learning_rates_of_their_own(make_policy, batch):
    learner = build_learner(make_policy, reference=False, learning_rate=0.0, critic_learning_rate=1e-2)
    before = weights_of(learner.policy)
    learner.update(prepared(learner, batch))
    assert torch.equal(weights_of(learner.policy), before)
    assert learner.critic.head.linear.bias.any()


def test_a_frozen_part_of_the_policy_does_not_learn_and_has_no_state(make_policy, batch):
    policy = make_policy()
    policy.base_model.requires_grad_(False)
    before = {name: parameter.clone() for name, parameter in policy.named_parameters()}
    learner = Learner(policy, None, None, changed(SETTINGS, adv_estimator="grpo"))
    learner.update(prepared(learner, batch))
    moved = {name for name, parameter in policy.named_parameters() if not torch.equal(parameter, before[name])}
    assert moved == {name for name, parameter in policy.named_parameters() if parameter.requires_grad} != set()
    assert {key.split("/")[0] for key in learner.state_dict()["moments"]} == {f"policy.{name}" for name in moved}


def test_a_policy_in_which_nothing_learns_and_one_that_is_its_own_reference_without_adapters_are_refused(make_policy):
    with pytest.raises(ValueError, match="no parameter of the policy requires a gradient"):
        Learner(frozen_copy(make_policy()), None, None, SETTINGS)
    with pytest.raises(ValueError, match="the reference is the policy itself, which learns"):
        Learner(policy := make_policy(), None, policy, SETTINGS)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ("linear", [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0]),
        ("cosine", [0.5, 1.0, 1.0, 0.5 * (1 + 0.5**0.5), 0.5, 0.5 * (1 - 0.5**0.5), 0.0, 0.0]),
    ],
)
def test_the_learning_rate_warms_up_and_then_follows_its_schedule_to_zero(schedule, expected):
    settings = training(lr_schedule=schedule, warmup_steps=2)
    assert [learning_rate_factor(step, settings, 6) for step in range(8)] == pytest.approx(expected)
    if schedule != "constant":
        with pytest.raises(ValueError, match=f"lr_schedule='{schedule}' needs total_steps"):
            learning_rate_factor(0, training(lr_schedule=schedule), None)


def test_the_state_of_another_model_is_refused(make_policy, batch):
    learner = build_learner(make_policy)
    learner.update(prepared(learner, batch))
    with pytest.raises(CheckpointError, match="critic"):
        build_learner(make_policy, critic=None).load_state_dict(learner.state_dict())


def test_settings_that_are_given_later_hold_for_the_next_step(make_policy, make_trajectory):
    learner = build_learner(make_policy, critic=None, reference=False, lr_schedule="linear", total_steps=10)
    batch = TokenBatch.from_trajectories([make_trajectory(1)])
    learner.sft_step(batch)
    learner.set_training(changed(learner.training, learning_rate=1e-7), TrainingSchedule(total_steps=2))
    before = weights_of(learner.policy)
    expected = learner.learning_rate
    assert learner.sft_step(batch)["learning_rate"] == expected == pytest.approx(0.5e-7)
    assert 0 < (weights_of(learner.policy) - before).abs().max() < 1e-6
