"""verl's own functions as oracles, where it is installed; docs/algorithms.md says where ours differ."""

from types import SimpleNamespace

import pytest
import torch
from token_rows import rows_of

from midthought.algo.advantages import compute_advantage, compute_gae_advantage_return
from midthought.algo.losses import compute_policy_loss, compute_value_loss, loss_weights, masked_average
from midthought.algo.shaping import kl_divergence, rollout_weights

verl = pytest.importorskip("verl.trainer.ppo.core_algos")
pytestmark = pytest.mark.slow

ROWS, LENGTH, CONSTANT = 6, 12, 20
GROUPS = torch.tensor([0, 0, 0, 1, 1, 2])
AVERAGES = ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]


def random_batch(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rewards and values [E, T], and a mask with gaps; rewards at policy tokens only, as verl's functions assume."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(ROWS, LENGTH, generator=generator) < 0.6
    mask[:, 3] = True
    rewards, values = torch.randn(2, ROWS, LENGTH, generator=generator)
    return rewards * mask, values, mask


def actor_config(**changes):
    """The actor's settings as verl's losses read them, without what its constructor asks of a whole run."""
    from verl.workers.config import ActorConfig

    config = object.__new__(ActorConfig)
    for name, value in {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "clip_ratio_c": 3.0, **changes}.items():
        object.__setattr__(config, name, value)
    return config


@pytest.mark.parametrize("seed", range(4))
def test_gae_agrees(seed):
    rewards, values, mask = random_batch(seed)
    theirs, their_returns = verl.compute_gae_advantage_return(rewards, values, mask.float(), 0.97, 0.9)
    ours, our_returns = compute_gae_advantage_return(rewards, values, mask, 0.97, 0.9)
    torch.testing.assert_close(ours, theirs * mask)
    torch.testing.assert_close(our_returns, their_returns * mask)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("name", "function", "options"),
    [
        ("grpo", "compute_grpo_outcome_advantage", {}),
        ("dr_grpo", "compute_grpo_outcome_advantage", {"norm_adv_by_std_in_grpo": False}),
        ("rloo", "compute_rloo_outcome_advantage", {}),
        ("reinforce_plus_plus_baseline", "compute_reinforce_plus_plus_baseline_outcome_advantage", {}),
    ],
)
def test_estimators_within_groups_agree(name, function, options, seed):
    rewards, _, mask = random_batch(seed)
    theirs, _ = getattr(verl, function)(rewards.clone(), mask.float(), index=GROUPS.numpy(), **options)
    torch.testing.assert_close(compute_advantage(name, rewards, mask, index=GROUPS)[0], theirs)


@pytest.mark.parametrize("seed", range(4))
def test_reinforce_plus_plus_agrees(seed):
    rewards, _, mask = random_batch(seed)
    theirs, their_returns = verl.compute_reinforce_plus_plus_outcome_advantage(
        rewards, mask.float(), config=SimpleNamespace(gamma=0.95)
    )
    ours, our_returns = compute_advantage("reinforce_plus_plus", rewards, mask, gamma=0.95)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(our_returns, their_returns)


@pytest.mark.parametrize("average", AVERAGES)
@pytest.mark.parametrize(("kind", "theirs"), [("ppo", "vanilla"), ("gspo", "gspo"), ("cispo", "cispo")])
def test_losses_and_averages_agree(kind, theirs, average):
    torch.manual_seed(0)
    old, advantages = torch.randn(2, ROWS, LENGTH)
    new, weights = old + 0.4 * torch.randn(ROWS, LENGTH), torch.rand(ROWS, LENGTH)
    mask = torch.rand(ROWS, LENGTH) < 0.6
    mask[:, 2] = True
    step = {"loss_scale_factor": CONSTANT} if average == "seq-mean-token-sum-norm" else {}
    function = getattr(verl, f"compute_policy_loss_{theirs}")
    given = {"loss_agg_mode": average, "config": actor_config(global_batch_info=step), "rollout_is_weights": weights}
    expected, metrics = function(old, new, advantages, mask.float(), **given)
    its_weights, denominator = loss_weights(mask, rows_of(mask), average, CONSTANT)
    weights = weights if its_weights is None else weights * its_weights
    options = {"clip_low": 0.2, "clip_high": 0.28, "dual_clip": 3.0, "weights": weights, "denominator": denominator}
    ours, figures = compute_policy_loss(old, new, advantages, mask, kind=kind, **options)
    torch.testing.assert_close(ours, expected)
    share = float(figures["clip_fraction"]) * denominator / int(mask.sum())
    assert share == pytest.approx(metrics["actor/pg_clipfrac"], abs=1e-6)


def bounds(limit: float, **more: float) -> dict[str, float]:
    return dict.fromkeys(("clip_ratio", "clip_ratio_low", "clip_ratio_high"), limit) | more


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("kind", "theirs", "settings"),
    [
        ("sapo", "sapo", {"tau_pos": 1.0, "tau_neg": 1.05}),
        ("gmpo", "geo_mean", bounds(0.4)),
        ("dppo_tv", "dppo_tv", bounds(0.15, clip_ratio_c=20.0)),
        ("dppo_kl", "dppo_kl", bounds(0.05, clip_ratio_c=20.0)),
    ],
)
def test_losses_with_their_own_bounds_agree(kind, theirs, settings, seed):
    """Log-probabilities are below 0: DPPO reads probabilities. GMPO's rows have one advantage, as in the paper."""
    generator = torch.Generator().manual_seed(seed)
    old = -2 * torch.rand(ROWS, LENGTH, generator=generator)
    new = (old + 0.5 * torch.randn(ROWS, LENGTH, generator=generator)).clamp(max=-0.01)
    mask = torch.rand(ROWS, LENGTH, generator=generator) < 0.6
    mask[:, 2] = True
    advantages = torch.randn(ROWS, 1 if kind == "gmpo" else LENGTH, generator=generator).expand(ROWS, LENGTH)
    average = "seq-mean-token-mean" if kind in ("sapo", "gmpo") else "token-mean"
    config = actor_config(global_batch_info={}, **settings)
    function = getattr(verl, f"compute_policy_loss_{theirs}")
    expected, metrics = function(old, new, advantages, mask.float(), loss_agg_mode=average, config=config)
    weights, denominator = loss_weights(mask, rows_of(mask), average, CONSTANT)
    ours, found = compute_policy_loss(old, new, advantages, mask, denominator=denominator, kind=kind, weights=weights)
    torch.testing.assert_close(ours, expected)
    if kind.startswith("dppo"):
        share = float(found["clip_fraction"]) * denominator / int(mask.sum())
        assert share == pytest.approx(metrics["actor/pg_clipfrac"], abs=1e-6)


@pytest.mark.parametrize("average", AVERAGES)
def test_averages_agree(average):
    losses, mask = torch.randn(ROWS, LENGTH), torch.rand(ROWS, LENGTH) < 0.5
    mask[2] = False
    weights, denominator = loss_weights(mask, rows_of(mask), average, LENGTH)
    expected = verl.agg_loss(losses, mask.float(), average)
    torch.testing.assert_close(masked_average(losses, mask, denominator, weights), expected)


def test_the_value_loss_agrees():
    torch.manual_seed(0)
    old, returns = torch.randn(2, 4, 9)
    new, mask = old + 0.4 * torch.randn(4, 9), torch.rand(4, 9) < 0.6
    theirs, their_fraction = verl.compute_value_loss(new, returns, old, mask.float(), 0.2)
    ours, metrics = compute_value_loss(
        vpreds=new, old_values=old, returns=returns, response_mask=mask, cliprange_value=0.2
    )
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(metrics["value_clip_fraction"], their_fraction)


@pytest.mark.parametrize("name", ["kl", "abs", "mse", "low_var_kl"])
def test_divergences_agree(name):
    torch.manual_seed(0)
    logprobs, reference = torch.randn(2, 3, 5)
    torch.testing.assert_close(kl_divergence(logprobs, reference, name), verl.kl_penalty(logprobs, reference, name))


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize(("kind", "threshold"), [("truncated", 1.5), ("masked", "0.6_1.5")])
def test_rollout_weights_agree(kind, threshold, level):
    correction = pytest.importorskip("verl.trainer.ppo.rollout_corr_helper")
    torch.manual_seed(0)
    recomputed = torch.randn(ROWS, LENGTH)
    sampled, mask = recomputed + 0.3 * torch.randn(ROWS, LENGTH), torch.rand(ROWS, LENGTH) < 0.6
    mask[:, 1] = True
    theirs, _ = correction.compute_rollout_correction_weights(
        recomputed - sampled, mask.float(), rollout_is=level, rollout_is_threshold=threshold
    )
    options = {"episodes": rows_of(mask), "max_weight": 1.5, "min_weight": 0.6}
    ours, _ = rollout_weights(recomputed, sampled, mask, kind if level == "token" else f"sequence_{kind}", **options)
    torch.testing.assert_close(ours, theirs)
