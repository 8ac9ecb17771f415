"""Two ranks, real processes with their parts of the models, learn what one process learns; and what each of them is given."""

import copy
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
import torch
from precision import tolerance
from process_workers import ProcessWorkers
from representatives import representatives
from training_settings import CRITICS, changed, prepared, training

from midthought.config import TrainingConfig
from midthought.errors import CheckpointError
from midthought.learning.batch import TokenBatch
from midthought.learning.checkpoint_folder import load_checkpoint, save_checkpoint
from midthought.learning.iteration import improve
from midthought.learning.learned_tokens import LearnedTokens
from midthought.learning.learner import Learner
from midthought.learning.model import Models, add_adapters, frozen_copy
from midthought.learning.optimizer import NO_END
from midthought.learning.ranks import DistributedGroup
from midthought.learning.remote_learner import RemoteLearner

SETTINGS = training(
    learning_rate=1e-2,
    critic_learning_rate=1e-2,
    warmup_steps=2,
    mini_batch_size=5,
    micro_batch_tokens=60,
    kl_coef=0.1,
    kl_loss_coef=0.1,
    packing=False,
)
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "LoRA, shared critic, in blocks": {"lora": True, "critic": "shared", "logits_mib": 48 * 4 * 3 / 2**20},
    "recomputed, shared, accumulated": {"micro_batch_tokens": 64, "packing": "shared", "gradient_checkpointing": True},
    "critic only": {},
}


def models(make_policy, way: dict[str, Any], dtype: torch.dtype = torch.float64) -> Models:
    policy = make_policy().to(dtype)
    critic = CRITICS[way.get("critic", "separate")](policy)
    if critic is not None:
        critic = critic.to(dtype)
    if way.get("lora"):
        torch.manual_seed(0)
        adapted = add_adapters(policy, 2, 4).to(dtype)
        return Models(adapted, critic, adapted)
    return Models(policy, critic, frozen_copy(policy) if way.get("reference", True) else None)


def settings_of(way: dict[str, Any]) -> TrainingConfig:
    changes = {name: value for name, value in way.items() if name not in ("critic", "lora", "reference")}
    if way.get("critic", "separate") is None:
        changes["adv_estimator"] = "grpo"
    if not way.get("reference", True):
        changes |= {"kl_coef": 0.0, "kl_loss_coef": 0.0}
    return changed(SETTINGS, **changes)


@contextmanager
def both(
    ranks: ProcessWorkers, make_policy, way: dict[str, Any], **options: Any
) -> Iterator[tuple[Learner, RemoteLearner]]:
    """The same learner in this process, and on two ranks."""
    made, settings = models(make_policy, way, **options), settings_of(way)
    with closing(RemoteLearner(copy.deepcopy(made), settings, NO_END, ranks)) as ranked:
        yield Learner(*made[:3], settings, teacher=made.teacher), ranked


@pytest.fixture
def batch(make_trajectory) -> TokenBatch:
    """Ten episodes of unlike lengths: two optimizer steps, of which the micro-batches do not come out even."""
    return TokenBatch.from_trajectories(
        [
            make_trajectory(seed, group=seed // 2, num_results=1 + 2 * seed, prompt=[4 + seed // 2] * 20)
            for seed in range(10)
        ]
    )


def iterate(learner: Learner | RemoteLearner, batch: TokenBatch, **options: Any) -> tuple[dict[str, float], TokenBatch]:
    scored, health = learner.score(batch)
    credited, credit = learner.credit(scored)
    return {**health, **credit, **learner.update(credited, **options)}, scored


def without_ties(figures: dict[str, float]) -> dict[str, float]:
    """Before the first step every error is as large as the clipped one: which is larger is a matter of the last bit."""
    return {name: figure for name, figure in figures.items() if name != "value_clip_fraction"}


def weights(learner: Learner | RemoteLearner) -> dict[str, torch.Tensor]:
    return {n: tensor.detach().clone() for n, tensor in Models(learner.policy, learner.critic, None).tensors().items()}


def difference(ones: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> float:
    assert ones.keys() == others.keys()
    return max(float((ones[name].double() - others[name].double()).abs().max()) for name in ones)


@pytest.mark.parametrize(
    "way",
    representatives(
        ["LoRA, shared critic, in blocks", "recomputed, shared, accumulated", "critic only"],
        "recomputed, shared, accumulated",
    ),
)
def test_two_ranks_have_the_parameters_of_one_after_updates(way, ranks, make_policy, batch):
    critic_only = way == "critic only"
    with both(ranks, make_policy, WAYS[way]) as (alone, ranked):
        before = weights(alone)
        for _ in range(2):
            figures, scored = iterate(alone, batch, critic_only=critic_only)
            others, far = iterate(ranked, batch, critic_only=critic_only)
            assert without_ties(others) == pytest.approx(without_ties(figures), rel=1e-5, abs=1e-6)
            torch.testing.assert_close(far.old_logprobs, scored.old_logprobs, atol=2e-6, rtol=1e-6)
        assert alone.num_steps == ranked.num_steps == 4
        after = weights(alone)
        assert difference(after, weights(ranked)) < 1e-9
        learned = {name for name in after if (after[name] != before[name]).any()}
        assert {name.partition(".")[0] for name in learned} >= ({"critic"} if critic_only else {"policy"})
        ours, theirs = alone.state_dict(), ranked.state_dict()
        assert theirs["kl_controller"] == pytest.approx(ours["kl_controller"])
        assert difference(ours["moments"], theirs["moments"]) < 1e-9


@pytest.mark.slow
def test_half_precision_weights_learn_in_float32_copies_on_ranks_too(ranks, make_policy, batch):
    with both(ranks, make_policy, {"packing": True}, dtype=torch.bfloat16) as (alone, ranked):
        iterate(alone, batch)
        iterate(ranked, batch)
        ours, theirs = alone.state_dict()["moments"], ranked.state_dict()["moments"]
        assert ours.keys() == theirs.keys()
        masters = [name for name in ours if name.endswith("/master")]
        assert masters and all(theirs[name].dtype == torch.float32 for name in masters)
        gradients = [torch.cat([m[n].flatten() for n in m if n.endswith("/exp_avg")]) for m in (ours, theirs)]
        rounding = tolerance(torch.bfloat16, num_operations=4)
        assert float((gradients[0] - gradients[1]).norm() / gradients[0].norm()) < rounding


@pytest.mark.parametrize("mixed", representatives([False, True], False))
def test_supervised_steps_are_those_of_one_process(mixed, ranks, make_policy, batch):
    with both(ranks, make_policy, {"critic": None}, dtype=torch.float32 if mixed else torch.float64) as (alone, ranked):
        for learner in (alone, ranked):
            learner.set_training(changed(learner.training, learning_rate=1e-3), NO_END)

        def precision() -> torch.autocast:
            return torch.autocast("cpu", dtype=torch.bfloat16, enabled=mixed)

        def step(learner: Learner | RemoteLearner) -> dict[str, float]:
            """With an autocast of its own, as in `sft`: one that lasts longer does not cast the new weights."""
            with precision():
                return learner.sft_step(batch)

        with precision():
            assert ranked.sft_loss(batch) == pytest.approx(alone.sft_loss(batch), rel=1e-3 if mixed else 1e-12)
        steps = [[step(learner) for _ in range(3)] for learner in (alone, ranked)]
        for name in ("weight_change", "step_size"):  # AdamW's first steps show the signs of small, rounded gradients
            ours, theirs = (each[-1].pop(name) for each in steps)
            assert theirs == pytest.approx(ours, rel=0.1 if mixed else 1e-9)
        assert steps[1][-1] == pytest.approx(steps[0][-1], rel=1e-2 if mixed else 1e-9)
        assert steps[0][-1]["learning_rate"] == 1e-3
        assert mixed or difference(weights(alone), weights(ranked)) < 1e-9


@pytest.mark.parametrize(
    ("way", "num_saving"),
    representatives(
        [("plain", 1), ("plain", 2), ("LoRA, shared critic, in blocks", 1), ("LoRA, shared critic, in blocks", 2)],
        ("LoRA, shared critic, in blocks", 2),
    ),
)
def test_a_checkpoint_goes_on_with_another_number_of_ranks(num_saving, way, ranks, make_policy, batch, tmp_path):
    with both(ranks, make_policy, WAYS[way]) as through:
        saving, other = through if num_saving == 1 else through[::-1]
        iterate(saving, batch)
        save_checkpoint(tmp_path / "c", saving)
        iterate(saving, batch)
        load_checkpoint(tmp_path / "c").restore(other)
        assert other.num_steps == 2
        iterate(other, batch)
        assert difference(weights(saving), weights(other)) < 1e-9


def test_a_step_whose_gradient_is_not_finite_is_skipped_by_all(ranks, make_policy, batch):
    with both(ranks, make_policy, {}) as (_, ranked):
        credited = prepared(ranked, batch)
        credited.advantages[credited.tokens_of(torch.tensor([0]))] = float("inf")
        assert ranked.update(credited)["num_skipped_steps"] >= 1
        assert all(bool(tensor.isfinite().all()) for tensor in weights(ranked).values())


def test_moments_of_other_models_are_refused(ranks, make_policy, batch):
    with both(ranks, make_policy, {}) as (alone, ranked):
        iterate(alone, batch)
        state = alone.state_dict()
        state["moments"]["policy.other/exp_avg"] = torch.zeros(3)
        with pytest.raises(CheckpointError, match=r"'policy\.other' has no place"):
            ranked.load_state_dict(state)


@pytest.mark.parametrize("packed", ["shared", True, False])
@pytest.mark.parametrize("num_ranks", [2, 3, 8])
def test_every_rank_has_as_many_passes_and_every_row_counts_once(num_ranks, packed, batch, monkeypatch):
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: num_ranks)
    shares = []
    for number in range(num_ranks):
        monkeypatch.setattr("torch.distributed.get_rank", lambda number=number: number)
        shares.append(DistributedGroup("cpu").rows(batch, 60, packed=packed))
    assert len({len(share) for share in shares}) == 1
    counted = sorted(row for share in shares for rows, is_own in share if is_own for row in rows.tolist())
    assert counted == list(range(len(batch)))
    for passes in zip(*shares, strict=True):
        sizes = [int(batch.lengths[rows].sum()) for rows, _ in passes]
        assert max(sizes) - min(sizes) <= 30 or packed == "shared"  # a group's rows stay together


@pytest.mark.parametrize("number", [0, 1])
def test_rows_that_cannot_be_evened_within_the_budget_stay_as_they_were_cut(number, batch, monkeypatch):
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: number)
    lengths = torch.tensor([60, *[40] * 3, *[20] * 3] + [1] * 3)
    uneven = batch.with_fields(cu_seqlens=torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]))
    for max_tokens in (60, 41, 100):
        for rows, _ in DistributedGroup("cpu").rows(uneven, max_tokens, packed=True):
            assert len(rows) == 1 or int(uneven.lengths[rows].sum()) <= max_tokens


def test_ranks_record_the_same_values_of_tokens_as_one_process(ranks, make_policy, make_trajectory):
    trajectories = [make_trajectory(seed, group=seed // 2, num_results=1 + 2 * seed) for seed in range(5)]
    found = []
    with both(ranks, make_policy, {"critic": None, "reference": False, "ppo_epochs": 2}) as learners:
        for learner in learners:
            learned = LearnedTokens(trajectories[1:])
            improve(
                learner, TokenBatch.from_trajectories(trajectories, slots=learned.slots(trajectories)), learned=learned
            )
            found.append([row for trajectory in trajectories[1:] for row in learned.of(trajectory)])
    for alone, ranked in zip(*found, strict=True):
        assert {"ratios", "entropies", "advantages"} <= alone.keys() == ranked.keys()
        for name, values in alone.items():
            assert ranked[name] == pytest.approx(values, abs=1e-5, nan_ok=True), name
