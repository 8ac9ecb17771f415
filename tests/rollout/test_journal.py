"""A run that is killed at any event goes on as if nothing had happened: with scripted tokens, a journal, and a checkpoint now and
then. Weights are numbers here, and each token remembers those that sampled it."""

from __future__ import annotations

import contextlib
import copy
import json
import time
from types import SimpleNamespace

import pytest
from test_in_flight import Bench, Question, task

from midthought.config import RecipeConfig
from midthought.rollout.groups import Pace
from midthought.rollout.in_flight import NOTHING_OPEN
from midthought.rollout.resuming import Journal
from midthought.rollout.selection import collect
from midthought.types import Reward

NUM_ITERS, SAVE_EVERY = 8, 3


def some(number):
    """Every third is long, every fourth calls a tool."""
    return task(number, f"{90 if number % 3 == 1 else 9 + number % 7}{' slowly' if number % 4 == 0 else ''}")


class Killed(Exception):
    pass


class Disk(Journal):
    """What a process leaves that is killed at the next event after `num_events`: everything before, and half of that one."""

    def __init__(self, folder, num_events):
        super().__init__(folder)
        self.num_left, self.finished = num_events, []

    def _append(self, event):
        self.num_left -= 1
        if self.num_left < 0:
            if self.num_left == -1:
                with self._file.path.open("a") as file:
                    file.write(json.dumps(event)[:20])
            raise Killed
        super()._append(event)
        if "episodes" in event:
            self.finished.append([episode["seed"] for episode in event["episodes"]])


class Paying(Question):
    """Every third group has no variance, and every fifth fails."""

    async def score(self, trajectory):
        if trajectory.group % 5 == 4:
            raise ValueError("too long")
        return Reward(parts={"paid": float(trajectory.seed % 97 if trajectory.group % 3 else 0)})


class Run:
    """A run in processes that are killed. `history`: what has happened to the weights that survive."""

    def __init__(self, folder, renderer):
        self._folder, self._renderer = folder, renderer
        self.history = {"weights": {0: 1}, "iterations": []}
        self._saved = copy.deepcopy(self.history), NOTHING_OPEN
        self.finished, self._written_by, self._pace = [], {}, None

    def draw(self, position, num_groups, attempt=0):
        return [some(position)]

    def live(self, num_events=10**6, *, dies_in_save=False, salt=0, max_staleness=2, num_groups=4):
        """One process, until it is killed or the run is done."""
        training = {"adv_estimator": "grpo", "group_size": 2, "batch_size": 2 * num_groups, "max_dynamic_batches": 2}
        config = RecipeConfig(training={**training, "max_staleness": max_staleness}).frozen()
        disk, (history, state) = Disk(self._folder, num_events), copy.deepcopy(self._saved)
        bench = Bench(self._renderer, environment=Paying, journal=disk)
        stream, engine, weights = bench.stream, bench.engine, history["weights"]
        stream.overlaps = True
        if self._pace not in (None, Pace.of(config)):  # as `Trainer` does
            disk.clear()
        self._pace = Pace.of(config)
        stream.pace, engine.policy_version, engine.weights = Pace.of(config), max(weights), weights[max(weights)]
        engine.written_by |= self._written_by
        self.history, is_killed = history, True
        try:
            stream.restore(json.loads(json.dumps(state)), some)
            assert stream.num_unfinished <= 2 * stream.pace.max_open
            while (iteration := len(history["iterations"])) < NUM_ITERS:
                batch = collect(SimpleNamespace(stream=stream), self, config, iteration, NUM_ITERS - iteration - 1)
                self._check(batch, weights, engine, max_staleness)
                num_dropped = batch.metrics["staleness/num_dropped"]
                history["iterations"].append(([t.seed for t in batch.data], [t.group for t in batch.data], num_dropped))
                time.sleep(0.002)  # the learner
                if batch.usable:
                    with stream.between_tokens():
                        engine.policy_version += 1
                        engine.weights = hash((engine.weights, salt, *(t.seed for t in batch.usable)))
                        weights[engine.policy_version] = engine.weights
                if (iteration + 1) % SAVE_EVERY == 0:
                    state = stream.state(in_run=True)
                    if dies_in_save:
                        raise Killed
                    self._saved = copy.deepcopy(history), state
                    disk.keep(self._saved[1]["journal"])
            is_killed = False
            assert (stream.num_open, stream.num_unfinished) == (0, 0)
        except Killed:
            pass
        finally:
            bench.close()
        again = [group for group in self.finished if engine.log.keys() & set(group)]
        self._written_by = engine.written_by
        self.finished += [group for group in disk.finished if group not in self.finished]
        return is_killed, again

    def _check(self, batch, weights, engine, max_staleness):
        """Every token was sampled by the weights that its version has in this history, and is not too old."""
        for trajectory in batch.data:
            (segment,) = trajectory.segments
            for place in (place for place, is_own in enumerate(segment.loss_mask) if is_own):
                version = segment.policy_versions[place]
                assert weights[version] == engine.written_by[trajectory.seed, place]
                assert 0 <= batch.data.policy_version - version <= max_staleness

    def check_groups(self):
        """Every group was taken once and whole."""
        groups = [group for _, groups, _ in self.history["iterations"] for group in groups]
        assert sorted(groups) == [number for number in range(max(groups) + 1) for _ in range(2)]
        assert len(self.history["iterations"]) == NUM_ITERS


@pytest.fixture
def run(tmp_path, renderer):
    return Run(tmp_path / "journal", renderer)


@pytest.mark.parametrize("num_events", [0, 5, 12, 26, 41, 58])
def test_killed_at_any_event_a_run_plays_no_finished_group_again_and_repeats_its_batches(num_events, run):
    before = None
    for later in (0, 1, 5):  # killed again soon
        is_killed, again = run.live(later or num_events)
        assert is_killed and again == []
        if before is not None:  # what was repeated is the same, in the same order
            known = min(len(before), len(run.history["iterations"]))
            assert run.history["iterations"][:known] == before[:known]
        before = run.history["iterations"] if not later or len(run.history["iterations"]) >= len(before) else before
    is_killed, again = run.live()
    assert not is_killed and again == [] and run.history["iterations"][: len(before)] == before
    run.check_groups()
    assert sum(num_dropped for _, _, num_dropped in run.history["iterations"]) == 0


def test_killed_while_it_saves_a_run_repeats_all_batches_since_the_checkpoint_before(run):
    assert run.live(dies_in_save=True) == (True, [])
    before = run.history["iterations"]
    assert run.live() == (False, [])
    assert len(before) == SAVE_EVERY and run.history["iterations"][:SAVE_EVERY] == before
    run.check_groups()


@pytest.mark.parametrize("num_events", [20, 34, 52])
def test_groups_of_weights_that_are_lost_start_again_and_are_counted(num_events, run):
    """The updates of the second process have other results, as on another machine or with another learning rate."""
    assert run.live(num_events)[0]
    assert run.live(6, salt=1)[0]
    is_killed, again = run.live(salt=1)
    assert not is_killed
    run.check_groups()
    assert len(again) <= sum(num_dropped for _, _, num_dropped in run.history["iterations"])


@pytest.mark.parametrize("changes", [{"max_staleness": 1}, {"num_groups": 3}, {"num_groups": 2, "max_staleness": 1}])
@pytest.mark.parametrize("num_events", [9, 38, 52])
def test_with_another_staleness_or_batch_what_does_not_fit_starts_again(num_events, changes, run):
    assert run.live(num_events, max_staleness=4)[0]
    run.live(12, **changes)  # killed soon, unless it waits for its next checkpoint to write the journal
    assert not run.live(**changes)[0]
    run.check_groups()


@pytest.fixture
def bench_of(renderer):
    """Makes the stream of one process."""
    with contextlib.ExitStack() as stack:
        yield lambda journal: stack.enter_context(contextlib.closing(Bench(renderer, journal=journal)))


def test_after_weights_that_are_lost_one_checkpoint_is_enough(tmp_path, bench_of):
    for weights, needs in (([1, 2, 3], [False, False, False]), ([7, 8, 9], [True, False, False])):
        bench = bench_of(Journal(tmp_path))
        bench.stream.restore(NOTHING_OPEN, some)
        for number, need in zip(weights, needs, strict=True):
            with bench.stream.between_tokens():
                bench.engine.policy_version += 1
                bench.engine.weights = number
            assert bench.stream.journal.needs_checkpoint == need
            if need:
                bench.stream.state(in_run=True)


def test_groups_of_lost_weights_are_not_counted_as_too_old(tmp_path, bench_of, caplog):
    for weights, num_dropped in (1, 0), (2, 1):
        bench = bench_of(Journal(tmp_path))
        bench.engine.weights = weights
        assert bench.stream.restore(NOTHING_OPEN, some) == 0
        assert bench.stream.num_dropped == num_dropped
        bench.stream.begin_batch(0)
        bench.stream.begin(some, 1)
        bench.stream.take(0, 4)
        bench.stream.pause()
    assert caplog.messages == ["1 groups start again: the weights that sampled them, from version 0, are lost"]


class Full(Journal):
    """A disk without room for one event."""

    has_room = True

    def _append(self, event):
        if "episodes" in event and self.has_room:
            self.has_room = False
            raise OSError("no space left on device")
        super()._append(event)


def test_after_an_event_that_could_not_be_written_the_journal_waits_for_a_checkpoint(tmp_path, bench_of):
    bench, other = bench_of(Full(tmp_path)), bench_of(Journal(tmp_path))
    bench.stream.restore(NOTHING_OPEN, some)
    bench.stream.begin_batch(0)
    bench.stream.begin(some, 1)
    with pytest.raises(OSError, match="no space left"):
        bench.stream.take(0, 4)
    assert [group[0].group for group in bench.stream.take(0, 4)] == [0]
    assert bench.stream.journal.needs_checkpoint
    bench.stream.pause()
    assert other.stream.restore(NOTHING_OPEN, some) == 0
    other.stream.begin(some, 1)
    assert [group[0].group for group in other.stream.take(0, 4)] == [0]
