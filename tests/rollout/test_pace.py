"""When groups start and are taken: none is lost, none is taken twice, and no token is too old, whatever finishes when."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midthought.config import RecipeConfig, create_default_config
from midthought.errors import SettingsError
from midthought.rollout.groups import Pace
from midthought.rollout.selection import ShuffledTasks, collect, staleness
from midthought.types import Completion, Finish, Reward, StopReason, Task, Trajectory

TASKS = [Task(task_id=f"t{number}", prompt="?", answer="!") for number in range(7)]


def config_of(max_staleness=2, in_flight="auto", **training) -> RecipeConfig:
    changes = {"adv_estimator": "reinforce_plus_plus", "batch_size": 4, "group_size": 1, **training}
    inference = {"in_flight": in_flight}
    return RecipeConfig(training={**changes, "max_staleness": max_staleness}, inference=inference).frozen()


def token_of(version):
    return Completion(token_ids=(5,), sampled_logprobs=(-1.0,), finish=Finish.LENGTH, policy_version=version)


class FakeStream:
    """Groups that take `ticks(position)` to finish, one token a tick, side by side. The clock runs while one is taken, and in
    `learn` if sampling and learning overlap."""

    policy_version = next_position = most_open = num_dropped = 0
    busy_seconds = 0.0

    def __init__(self, config, ticks, pay=lambda position, member: float(member), fails=(), overlaps=False):
        self.pace, self.overlaps = Pace.of(config), overlaps
        self.begun, self.taken, self.groups, self.log = [], [], {}, []
        self._ticks, self._pay, self._fails = ticks, pay, fails
        self._left, self._ready, self._versions = {}, [], {}

    engine = property(lambda self: self)
    num_open = property(lambda self: len(self.groups))
    deadlines = property(lambda self: [self.pace.deadline(self._versions[position]) for position in self.groups])

    def begin(self, draw, group_size):
        position, self.next_position = self.next_position, self.next_position + 1
        task = draw(position)
        self.begun.append((position, task.task_id))
        self.groups[position] = [Trajectory(task, [1], group=position) for _ in range(group_size)]
        self._versions[position], self._left[position] = self.policy_version, self._ticks(position)
        self.most_open = max(self.most_open, len(self.groups))

    def begin_batch(self, iteration):
        pass

    def put_back(self):
        self.log.append("put back")

    def take(self, batch, room):
        found = []
        while room > len(found):
            first = min(self._ready, key=self._versions.__getitem__, default=None)
            left = room - len(found)
            own = None if first is None else self.pace.deadline(self._versions[first])
            if own is not None and self.pace.may_take(self.deadlines, own, batch, left):
                self._ready.remove(first)
                self.taken.append(first)
                found.append(self.groups.pop(first))
            elif found:
                break
            else:
                assert self._left, "a take that can never end"
                self.tick()
        return found

    def tick(self):
        for position in sorted(self._left):
            self._left[position] -= 1
            for trajectory in self.groups[position]:
                trajectory.add_sampled(token_of(self.policy_version))
            if self._left[position] <= 0:
                del self._left[position]
                self._ready.append(position)
                for member, trajectory in enumerate(self.groups[position]):
                    trajectory.stop_reason = StopReason.FAILED if position in self._fails else StopReason.ANSWERED
                    if position not in self._fails:
                        trajectory.reward = Reward(parts={"paid": self._pay(position, member)})

    def learn(self, ticks):
        for _ in range(ticks if self.overlaps else 0):
            self.tick()
        self.policy_version += 1

    def pause(self):
        self.log.append("pause")


def run(stream, config, num_iters=6, learning_ticks=3):
    """The batches of a run."""
    found = []
    for iteration in range(num_iters):
        batch = collect(
            SimpleNamespace(stream=stream), ShuffledTasks(TASKS, 0), config, iteration, num_iters - iteration - 1
        )
        found.append(batch)
        if batch.usable:
            stream.learn(learning_ticks)
    return found


@given(
    ticks=st.lists(st.integers(1, 60), min_size=1, max_size=9),
    group_size=st.sampled_from([1, 2]),
    max_batches=st.integers(1, 3),
    max_staleness=st.sampled_from([1, 2, 4, 8]),
    in_flight=st.one_of(st.just("auto"), st.floats(1, 2)),
    flat=st.sets(st.integers(0, 60)),
    failing=st.sets(st.integers(0, 60), max_size=10),
    learning_ticks=st.integers(0, 40),
    overlaps=st.booleans(),
)
def test_every_group_is_trained_on_whole_and_once_and_in_time(
    ticks, group_size, max_batches, max_staleness, in_flight, flat, failing, learning_ticks, overlaps
):
    compares = {"adv_estimator": "grpo", "group_size": 2, "max_dynamic_batches": max_batches} if group_size > 1 else {}
    config = config_of(max_staleness, in_flight, **compares)
    stream = FakeStream(
        config,
        lambda position: ticks[position % len(ticks)],
        pay=lambda position, member: 0.0 if position in flat else float(member),
        fails=failing,
        overlaps=overlaps,
    )
    batches = run(stream, config, num_iters=12, learning_ticks=learning_ticks)
    pace = stream.pace
    assert [position for position, _ in stream.begun] == list(range(stream.next_position))
    drawn = [ShuffledTasks(TASKS, 0).draw(position, 1)[0].task_id for position in range(stream.next_position)]
    assert [task_id for _, task_id in stream.begun] == drawn
    assert sorted(stream.taken) == list(range(stream.next_position))  # none is left at the end of the run
    assert stream.most_open <= pace.max_open <= (max_staleness + 1) * pace.num_groups
    for batch in batches:
        groups = Counter(trajectory.group for trajectory in batch.data)
        assert set(groups.values()) == {group_size}
        assert len(batch.usable) <= 4
        assert len(batch.usable) + group_size * (pace.max_taken - len(groups)) >= 4 or len(groups) == pace.max_taken
        assert batch.metrics["staleness/max"] <= max_staleness
        assert batch.metrics["staleness/num_open"] <= pace.max_open
    learned = [group for batch in batches for group in {trajectory.group for trajectory in batch.usable}]
    assert len(learned) == len(set(learned))


def test_a_group_that_reaches_its_deadline_has_its_place_and_is_waited_for():
    config = config_of(1, 1.5)
    stream = FakeStream(config, lambda position: 100 if position == 0 else 1)
    batches = run(stream, config, num_iters=3)
    groups = [[trajectory.group for trajectory in batch.data] for batch in batches]
    assert [0 in found for found in groups] == [False, True, False] and [len(found) for found in groups] == [4, 4, 4]
    (tail,) = (trajectory for trajectory in batches[1].data if trajectory.group == 0)
    assert [version for version in tail.segments[0].policy_versions if version >= 0] == [0] * 1 + [1] * 99
    assert batches[1].metrics["staleness/max"] == 1


@pytest.mark.parametrize(("max_staleness", "num_open"), [(1, 4), (2, 8), (4, 12)])
def test_with_overlap_as_many_groups_as_are_allowed_run_while_the_learner_works(max_staleness, num_open):
    config = config_of(max_staleness)
    stream = FakeStream(config, lambda position: 5, overlaps=True)
    collect(SimpleNamespace(stream=stream), ShuffledTasks(TASKS, 0), config, 0, 5)
    assert stream.num_open == num_open and stream.log == []
    stream.learn(5)
    batch = collect(SimpleNamespace(stream=stream), ShuffledTasks(TASKS, 0), config, 1, 4)
    assert batch.metrics["staleness/mean"] == 1 and batch.data.policy_version == 1


def test_without_variance_in_any_group_a_batch_ends_after_its_attempts():
    config = config_of(batch_size=6, group_size=2, adv_estimator="grpo", max_dynamic_batches=4)
    stream = FakeStream(config, lambda position: 1, pay=lambda position, member: 0.0)
    (batch,) = run(stream, config, num_iters=1)
    assert batch.metrics["batch/num_flat_groups"] == 12 and batch.usable == []


def test_a_run_that_switches_it_on_later_goes_on_with_the_tasks_that_come_next():
    config = config_of(in_flight=1.5)
    stream = FakeStream(config, lambda position: 1)
    collect(SimpleNamespace(stream=stream), ShuffledTasks(TASKS, 0), config, 3)
    assert [position for position, _ in stream.begun][:6] == list(range(12, 18))


def test_what_breaks_in_the_middle_leaves_the_stream_paused():
    config = config_of()
    stream = FakeStream(config, lambda position: 1)

    class Broken(ShuffledTasks):
        def draw(self, iteration, num_groups, attempt=0):
            raise RuntimeError("no tasks")

    with pytest.raises(RuntimeError, match="no tasks"):
        collect(SimpleNamespace(stream=stream), Broken(TASKS, 0), config, 0)
    assert stream.log == ["put back", "pause"]


# -- the rule ------------------------------------------------------------------------------------------------------


def test_the_rule_by_hand():
    """Two groups per batch, at most one update old."""
    pace = Pace(num_groups=2, max_staleness=1, max_open=4, max_taken=2)
    assert [pace.room(*counts) for counts in [(0, 0), (1, 1), (0, 1), (2, 2)]] == [2, 1, 1, 0]
    assert pace.is_kept([5, 5, 6, 6], 5, 2)
    assert not pace.is_kept([5, 5, 5], 5, 2)  # batch 5 takes two
    assert not pace.is_kept([4], 5, 2)  # batch 4 is over
    assert not pace.is_kept([6, 6, 6], 5, 0)  # batch 6 takes two
    assert pace.may_start([5, 5], 5, 5, 2, None) and not pace.may_start([6, 6, 6, 6], 5, 5, 2, None)
    assert not pace.may_start([5, 5], 5, 5, 2, 0)  # the run ends with batch 5
    assert pace.may_take([5, 6, 6], 5, 5, 2)
    assert not pace.may_take([5, 6], 6, 5, 1)  # the place is for the group that is due


@pytest.mark.parametrize(("max_staleness", "expected"), [(0, 1), (1, 2), (2, 3), (3, 2.5), (4, 3), (8, 5)])
def test_batches_in_flight_follow_from_the_staleness(max_staleness, expected):
    assert config_of(max_staleness).num_in_flight == expected


def test_more_in_flight_than_can_be_trained_on_in_time_is_refused_with_both_values():
    with pytest.raises(SettingsError, match=r"in_flight=3.5 with training.max_staleness=2.*at most 3 batches"):
        config_of(2, 3.5)


def test_older_tokens_are_corrected_by_default():
    assert create_default_config().frozen().training.rollout_correction == "none"
    config = create_default_config(training={"max_staleness": 2})
    assert config.frozen().training.rollout_correction == "truncated"
    config.training.rollout_correction = "none"
    assert config.frozen().training.rollout_correction == "none"


def test_staleness_by_hand():
    def aged(*versions):
        trajectory = Trajectory(TASKS[0], [1])
        for version in versions:
            trajectory.add_sampled(token_of(version))
        return trajectory

    found = staleness([aged(1, 2, 3), aged(3)], 3)
    shares = {"staleness/share_0": 0.5, "staleness/share_1": 0.25, "staleness/share_2": 0.25}
    assert found == {"staleness/mean": 0.75, "staleness/max": 2, **shares}
    assert staleness([], 3) == {"staleness/mean": 0.0, "staleness/max": 0}
