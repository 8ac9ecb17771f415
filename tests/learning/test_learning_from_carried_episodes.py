"""Iterations from a stream: every group is handed over once, whole and in time; what is stale is counted and weighed."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from iterations import FakeLearner, run_iterations
from training_settings import training

from midthought.config import RecipeConfig, create_default_config
from midthought.learning.batch import TokenBatch
from midthought.learning.learner import Learner
from midthought.rollout.rollout_batch import ShuffledTasks, collect, staleness
from midthought.types import Completion, Finish, Reward, StopReason, Task, Trajectory

TASKS = [Task(task_id=f"t{number}", prompt="?", answer="!") for number in range(7)]


def config_of(over_sampling=1.5, **training) -> RecipeConfig:
    """Partial rollouts, unless `over_sampling` is None."""
    changes = {"adv_estimator": "reinforce_plus_plus", "batch_size": 4, "group_size": 1, **training}
    inference = {"partial_rollouts": True, "partial_over_sampling": over_sampling} if over_sampling else {}
    return RecipeConfig(training=changes, inference=inference).frozen()


class FakeStream:
    """Groups that take `ticks(position)` to finish, one token a tick, side by side; the clock stands while it is paused."""

    def __init__(
        self, ticks, pay=lambda position, member: float(member), max_carry_overs=2, fails=lambda position: False
    ):
        self.next_position = 0
        self.policy_version = 0
        self.log = []
        self._ticks, self._pay, self._fails = ticks, pay, fails
        self._max_carry_overs = max_carry_overs
        self._left, self.groups, self._carried = {}, {}, Counter()
        self._ready = []

    num_open = property(lambda self: len(self.groups))
    num_episodes = property(lambda self: sum(map(len, self.groups.values())))
    num_due = property(lambda self: sum(self._is_due(position) for position in self.groups))
    num_unfinished = property(lambda self: sum(len(self.groups[position]) for position in self._left))

    def _is_due(self, position):
        return self._carried[position] >= self._max_carry_overs

    def begin(self, task, group_size):
        position = self.next_position
        self.next_position += 1
        self.log.append(("begin", position, task.task_id))
        self.groups[position] = [Trajectory(task, [1], group=position) for _ in range(group_size)]
        self._left[position] = self._ticks(position)

    def take(self, *, due_only=False):
        while not (found := [p for p in self._ready if self._is_due(p) or not due_only]):
            assert self._left, "a take that can never end"
            self._tick()
        self._ready.remove(found[0])
        self.log.append(("take", found[0], self.policy_version))
        self._carried.pop(found[0], None)
        return self.groups.pop(found[0])

    def _tick(self):
        for position in sorted(self._left):
            self._left[position] -= 1
            for trajectory in self.groups[position]:
                trajectory.add_sampled(
                    Completion(
                        token_ids=(5,),
                        sampled_logprobs=(-1.0,),
                        finish=Finish.LENGTH,
                        policy_version=self.policy_version,
                    )
                )
            if self._left[position] <= 0:
                del self._left[position]
                self._ready.append(position)
                for member, trajectory in enumerate(self.groups[position]):
                    failed = self._fails(position)
                    trajectory.stop_reason = StopReason.FAILED if failed else StopReason.ANSWERED
                    if not failed:
                        trajectory.reward = Reward(parts={"paid": self._pay(position, member)})

    def pause(self):
        self.log.append(("pause",))
        for position in self.groups:
            self._carried[position] += 1
        assert max(self._carried.values(), default=0) <= self._max_carry_overs


class FakeSource:
    def __init__(self, stream):
        self.stream = stream

    def sleep(self):
        self.stream.log.append(("sleep",))

    def update_weights(self):
        self.stream.policy_version += 1


def run(stream, num_iters=5, start=0, **changes):
    learner, told = FakeLearner(), []
    run_iterations(
        FakeSource(stream),
        learner,
        ShuffledTasks(TASKS, 0),
        config_of(**changes),
        start=start,
        num_iters=num_iters,
        on_iteration=lambda done, metrics, data: told.append((metrics, data)),
    )
    return learner, told


# -- who is handed over, and when ----------------------------------------------------------------------------------


@given(
    ticks=st.lists(st.integers(1, 40), min_size=1, max_size=9),
    group_size=st.sampled_from([1, 2]),
    max_batches=st.integers(1, 3),
    over_sampling=st.sampled_from([1.0, 1.25, 1.5, 2.0]),
    max_carry_overs=st.integers(1, 3),
    flat=st.sets(st.integers(0, 40)),
    failing=st.sets(st.integers(0, 40), max_size=10),
)
def test_every_group_is_handed_over_whole_and_once_and_in_time(
    ticks, group_size, max_batches, over_sampling, max_carry_overs, flat, failing
):
    stream = FakeStream(
        lambda position: ticks[position % len(ticks)],
        pay=lambda position, member: 0.0 if position in flat else float(member),
        max_carry_overs=max_carry_overs,
        fails=failing.__contains__,
    )
    num_groups = 4 // group_size
    _, told = run(
        stream,
        num_iters=6,
        group_size=group_size,
        adv_estimator="grpo" if group_size > 1 else "reinforce_plus_plus",
        max_dynamic_batches=max_batches if group_size > 1 else 1,
        over_sampling=over_sampling,
    )
    begun = [entry[1] for entry in stream.log if entry[0] == "begin"]
    taken = [entry[1] for entry in stream.log if entry[0] == "take"]
    assert begun == list(range(stream.next_position))
    assert [entry[2] for entry in stream.log if entry[0] == "begin"] == [
        task.task_id for position in begun for task in ShuffledTasks(TASKS, 0).draw(position, 1)
    ]
    assert max(Counter(taken).values()) == 1
    assert sorted([*taken, *stream.groups]) == begun  # begun = handed over + carried
    for metrics, data in told:
        groups = Counter(trajectory.group for trajectory in data)
        assert set(groups.values()) == {group_size}
        assert metrics["batch/num_episodes"] <= 4
        lost = metrics["batch/num_episodes"] + metrics.get("batch/num_flat_groups", 0) * group_size
        assert lost + sum(t.stop_reason is StopReason.FAILED for t in data) == len(data)
        assert metrics["batch/num_episodes"] == 4 or len(groups) >= num_groups * (max_batches if group_size > 1 else 1)
        assert metrics["partial/max_staleness"] <= max_carry_overs
        assert metrics["partial/num_carried"] <= max(4, math.ceil(num_groups * over_sampling) * group_size)
    learned = [group for metrics, data in told for group in {t.group for t in data if t.reward is not None}]
    assert len(learned) == len(set(learned))


def test_a_group_that_was_carried_over_often_enough_has_its_place_and_is_waited_for():
    stream = FakeStream(lambda position: 100 if position == 0 else 1, max_carry_overs=1)
    _, told = run(stream, num_iters=3)
    groups = [[trajectory.group for trajectory in data] for _, data in told]
    assert [0 in found for found in groups] == [False, True, False] and groups[1][-1] == 0
    assert [len(found) for found in groups] == [4, 4, 4]
    (tail,) = (t for t in told[1][1] if t.group == 0)
    assert tail.policy_versions == [0] * 1 + [1] * 99
    assert told[1][0]["partial/max_staleness"] == 1


def test_dynamic_sampling_begins_another_group_in_the_place_of_a_flat_one_and_stops_with_the_last():
    stream = FakeStream(
        lambda position: 1 + position, pay=lambda position, member: float(member) if position % 2 else 0.0
    )
    _, told = run(
        stream, num_iters=1, batch_size=6, group_size=2, adv_estimator="grpo", max_dynamic_batches=4, over_sampling=1.0
    )
    metrics, data = told[0]
    assert sorted({trajectory.group for trajectory in data}) == [0, 1, 2, 3, 4, 5]
    assert metrics["batch/num_episodes"] == 6 and metrics["batch/num_flat_groups"] == 3
    stream = FakeStream(lambda position: 1, pay=lambda position, member: 0.0)
    _, told = run(stream, num_iters=1, batch_size=6, group_size=2, adv_estimator="grpo", max_dynamic_batches=4)
    assert told[0][0]["batch/num_flat_groups"] == 12 and told[0][0]["batch/num_episodes"] == 0


def test_a_run_that_switches_it_on_later_goes_on_with_the_tasks_that_come_next():
    stream = FakeStream(lambda position: 1)
    run(stream, start=3, num_iters=4)
    assert [entry[1] for entry in stream.log if entry[0] == "begin"] == list(range(12, 18))


def test_what_breaks_in_the_middle_leaves_the_stream_paused():
    stream = FakeStream(lambda position: 1)

    class Broken(ShuffledTasks):
        def draw(self, iteration, num_groups, attempt=0):
            if iteration == 3:
                raise RuntimeError("no tasks")
            return super().draw(iteration, num_groups, attempt)

    with pytest.raises(RuntimeError, match="no tasks"):
        collect(FakeSource(stream), Broken(TASKS, 0), config_of(), 0)
    assert stream.log[-1] == ("pause",)


# -- what is stale -------------------------------------------------------------------------------------------------


def aged(*versions, logprobs=None):
    """[prompt, one token per version], a result after the first."""
    trajectory = Trajectory(TASKS[0], [1])
    for number, version in enumerate(versions):
        logprob = -1.0 if logprobs is None else logprobs[number]
        trajectory.add_sampled(
            Completion(token_ids=(5,), sampled_logprobs=(logprob,), finish=Finish.LENGTH, policy_version=version)
        )
        if not number:
            trajectory.add_reply([9])
    trajectory.reward = Reward(parts={"paid": 1.0})
    return trajectory


def test_staleness_by_hand():
    assert staleness([aged(1, 2, 3), aged(3)], 3) == {"partial/stale_token_share": 0.5, "partial/max_staleness": 2}
    assert staleness([], 3) == {"partial/stale_token_share": 0.0, "partial/max_staleness": 0}


def test_the_batch_says_which_tokens_older_policies_sampled():
    batch = TokenBatch.from_trajectories([aged(1, 2, 3), aged(3)], policy_version=3)
    assert batch.is_stale.tolist() == [False, True, False, True, False] + [False] * 3
    assert batch.loss_mask.tolist() == [False, True, False, True, True, False, True, False]
    assert TokenBatch.from_trajectories([aged(1)]).is_stale is None


def test_stale_tokens_are_weighed_by_the_ratio_token_by_token_and_truncated(make_policy):
    """w = min(exp(log π_now − log π_sampled), 2): the recomputed ones come from a real model, the sampled ones by hand."""
    learner = Learner(make_policy(), None, None, training(rollout_correction="truncated"))
    plain, _ = learner.score(TokenBatch.from_trajectories([aged(1, 2, 3)]))
    now = plain.old_logprobs[[1, 3, 4]]
    shifts = torch.tensor([0.5, -3.0, 0.0])  # sampled = now + shift: once likelier, once much less likely, once alike
    batch = TokenBatch.from_trajectories([aged(1, 2, 3, logprobs=(now + shifts).tolist())], policy_version=3)
    scored, health = learner.score(batch)
    expected = torch.tensor([math.exp(-0.5), 2.0, 1.0])  # exp(3) = 20.1 is cut at 2
    torch.testing.assert_close(scored.rollout_weights[[1, 3, 4]], expected, rtol=1e-4, atol=1e-5)
    assert scored.rollout_weights[[0, 2]].tolist() == [0.0, 0.0]
    assert health["rollout_truncated_fraction"] == pytest.approx(1 / 3)
    assert health["logprob_difference_max"] < 1e-5  # of the fresh token alone


def test_where_all_tokens_are_stale_their_difference_says_nothing_of_the_engines_health(make_policy):
    learner = Learner(make_policy(), None, None, training())
    _, health = learner.score(TokenBatch.from_trajectories([aged(1, 2)], policy_version=3))
    assert math.isnan(health["logprob_difference_max"]) and math.isnan(health["logprob_difference_mean"])


# -- the switch ----------------------------------------------------------------------------------------------------


def test_with_partial_rollouts_the_frozen_settings_correct_the_ratio():
    assert create_default_config().frozen().training.rollout_correction == "none"
    config = create_default_config(inference={"partial_rollouts": True})
    assert config.frozen().training.rollout_correction == "truncated"
    config.training.rollout_correction = "masked"
    assert config.frozen().training.rollout_correction == "masked"
