"""Tasks that environments begin with: drawn from seeds, alike in a group, played once or often; resets that fail or hang."""

import asyncio
import functools
import gc
import logging
import random
import threading
import weakref

import pytest
from stepping import Echo, do

from midthought.config import EnvironmentConfig
from midthought.env.environment import BaseEnvironment, EpisodeError
from midthought.env.environment_tasks import MAX_TRIES, EnvironmentTaskSampler
from midthought.errors import SettingsError
from midthought.trainer.trainer import Trainer


class Shared:
    """Data that copies of an environment share."""

    def __deepcopy__(self, memo):
        return self

    def __getstate__(self):
        raise AssertionError("it is large: it must not be pickled")


class Locked(Echo):
    """Cannot be copied."""

    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


def test_what_is_drawn_follows_from_seed_purpose_iteration_and_attempt_alone():
    def prompts(seed=0, purpose="train", iteration=0, attempt=0):
        sampler = EnvironmentTaskSampler(Echo, seed=seed, purpose=purpose)
        return tuple(task.prompt for task in sampler.draw(iteration, 3, attempt))

    assert prompts() == prompts()
    others = {prompts(), prompts(seed=1), prompts(purpose="held out"), prompts(iteration=1), prompts(attempt=1)}
    assert len(others) == 5


@pytest.mark.parametrize("source", [Echo, Echo(), lambda: Echo()])
def test_every_group_of_every_attempt_begins_alike_and_no_two_groups_do(source):
    sampler = EnvironmentTaskSampler(source, seed=7)
    tasks = [task for attempt in range(3) for task in sampler.draw(7, 2, attempt)]
    assert len({task.task_id for task in tasks}) == len({task.prompt for task in tasks}) == 6
    for task in tasks:
        one, other = sampler.episode(task).environment, sampler.episode(task).environment
        assert one is not other and one.start == other.start
        assert task.prompt == f"Say something.\nstart {one.start}" and task.answer == ""


def test_an_instance_that_was_given_stays_as_it_was():
    mine = Echo()
    mine.reset(seed=1)
    mine.step("hello")
    sampler = EnvironmentTaskSampler(mine, seed=0)
    world = sampler.episode(sampler.draw(0, 1)[0]).environment
    do(world, "one")
    do(world, "two")
    assert mine.get_step_count() == 1 and world.get_step_count() == 2


def test_an_environment_without_a_seed_is_copied_as_it_was_reset():
    class Seedless(Echo):
        def reset(self):
            return super().reset()

    sampler = EnvironmentTaskSampler(Seedless(), seed=0)
    first, second = sampler.draw(0, 2)
    starts = [sampler.episode(task).environment.start for task in (first, first, second, second)]
    assert starts[0] == starts[1] != starts[2] == starts[3]


def test_a_generator_that_begins_again_in_every_copy_is_warned_of_once(caplog):
    class Own(Echo):
        def __init__(self):
            super().__init__()
            self.random, self.data = random.Random(7), Shared()

        def reset(self):
            self.number = self.random.random()
            return "Guess my number."

    sampler = EnvironmentTaskSampler(Own(), seed=0)
    for iteration in range(2):
        sampler.draw(iteration, 3)
    EnvironmentTaskSampler(Echo, seed=0).draw(0, 3)
    (warning,) = caplog.messages
    assert warning.startswith("all 3 environments Own start in the same state.") and "parameter `seed`" in warning


def test_asynchronous_resets_run_side_by_side():
    waiting = []

    class Meeting(BaseEnvironment):
        async def reset(self, seed):
            waiting.append(seed)
            while len(waiting) < 4:
                await asyncio.sleep(0.001)
            return f"start {seed}"

        async def step(self, action):
            return "", 0.0, True, {}

    assert len({task.prompt for task in EnvironmentTaskSampler(Meeting, seed=0).draw(0, 4)}) == 4


def test_an_instance_that_cannot_be_copied_is_told_to_become_a_factory():
    with pytest.raises(EpisodeError, match=r"Locked cannot be copied \(TypeError: .*lock.*\); give a factory"):
        EnvironmentTaskSampler(Locked(), seed=0).draw(0, 2)


def test_what_can_neither_be_copied_nor_repeated_can_be_played_once():
    class Seedless(Locked):
        def reset(self):
            return super().reset()

    class Careless(Locked):
        def reset(self, seed):
            return super().reset()

    for source, message in ((Seedless, "its reset takes no seed"), (Careless, "returned another observation")):
        sampler = EnvironmentTaskSampler(source, seed=0)
        (task,) = sampler.draw(0, 1)
        assert do(sampler.episode(task).environment, "go")[0] == "heard 'go'"
        with pytest.raises(EpisodeError, match=f"{source.__name__} cannot be copied and .*{message}"):
            sampler.episode(task)


class Alike:
    """Has the methods of an environment, but does not extend it."""

    reset = step = Echo.step


def test_what_is_no_environment_is_refused_a_class_before_a_model_is_loaded():
    with pytest.raises(SettingsError, match="give a BaseEnvironment, or a function"):
        EnvironmentTaskSampler("FrozenLake-v1", seed=0)
    with pytest.raises(EpisodeError, match="the environment's factory returned a NoneType"):
        EnvironmentTaskSampler(lambda: None, seed=0).draw(0, 2)
    for environment in (Alike, functools.partial(Alike, config=None)):
        with pytest.raises(SettingsError, match=r"write class Alike\(BaseEnvironment\) with reset and step"):
            EnvironmentTaskSampler(environment, seed=0)
        with pytest.raises(SettingsError, match=r"write class Alike\(BaseEnvironment\)"):
            Trainer(model="/no/such/model", environment=environment)


def test_a_factory_that_returns_the_same_object_twice_is_refused():
    world, locked = Echo(), Locked()
    with pytest.raises(SettingsError, match="factory returned the same Echo twice; return a new one at every call"):
        EnvironmentTaskSampler(lambda: world, seed=0).draw(0, 2)
    sampler = EnvironmentTaskSampler(lambda: world, seed=0)
    sampler.draw(0, 1)
    sampler.draw(1, 1)  # the first one was closed
    with pytest.raises(SettingsError, match="the same Echo twice"):
        sampler.draw(1, 1, attempt=1)
    sampler = EnvironmentTaskSampler(lambda: locked, seed=0)
    (task,) = sampler.draw(0, 1)
    sampler.episode(task)
    with pytest.raises(SettingsError, match="the same Locked twice"):
        sampler.episode(task)


def test_environments_of_older_iterations_are_let_go():
    made = []

    def make():
        made.append(weakref.ref(world := Echo()))
        return world

    sampler = EnvironmentTaskSampler(make, seed=0)
    old = sampler.draw(0, 2) + sampler.draw(0, 2, attempt=1)
    gc.collect()
    assert len(made) == 4 and all(reference() is not None for reference in made)
    sampler.draw(1, 2)
    gc.collect()
    assert [reference() is None for reference in made] == [True] * 4 + [False] * 2
    with pytest.raises(EpisodeError, match="not of the newest iteration"):
        sampler.episode(old[0])


class Flaky(Echo):
    num_failures = 0

    @classmethod
    def fail(cls):
        if Flaky.num_failures > 0:
            Flaky.num_failures -= 1
            raise ConnectionError("the server is away")

    def reset(self, seed=None):
        self.fail()
        return super().reset(seed)


class AsyncFlaky(Flaky):
    async def reset(self, seed=None):
        return Flaky.reset(self, seed)


def flaky_factory():
    Flaky.fail()
    return Echo()


@pytest.mark.parametrize("kind", [Flaky, AsyncFlaky, flaky_factory])
def test_one_reset_that_fails_fails_its_group_and_no_other(kind, monkeypatch, caplog):
    caplog.set_level(logging.WARNING)
    usual = EnvironmentTaskSampler(kind, seed=0).draw(0, 3)
    monkeypatch.setattr(Flaky, "num_failures", 1)
    sampler = EnvironmentTaskSampler(kind, seed=0)
    tasks = sampler.draw(0, 3)
    assert tasks[1:] == usual[1:]
    for task in tasks[1:]:
        assert task.prompt.endswith(f"start {sampler.episode(task).environment.start}")
    failed = f"({kind.__name__}.reset|factory) raised ConnectionError: the server is away"
    with pytest.raises(EpisodeError, match=failed):
        sampler.episode(tasks[0])
    assert "1 of 3 environments not reset; the first" in caplog.text


def test_where_all_fail_they_are_reset_again_from_other_seeds_and_the_last_failure_is_an_error(monkeypatch, caplog):
    caplog.set_level(logging.WARNING)
    usual = EnvironmentTaskSampler(Flaky, seed=0).draw(0, 2)
    monkeypatch.setattr(Flaky, "num_failures", 2 * (MAX_TRIES - 1))
    sampler = EnvironmentTaskSampler(Flaky, seed=0)
    tasks = sampler.draw(0, 2)
    assert len(tasks) == 2 and {task.prompt for task in tasks}.isdisjoint(task.prompt for task in usual)
    assert tasks[1].prompt.endswith(f"start {sampler.episode(tasks[1]).environment.start}")
    assert caplog.text.count("the server is away") == MAX_TRIES - 1
    monkeypatch.setattr(Flaky, "num_failures", 100)
    with pytest.raises(EpisodeError, match=r"the server is away \(6 resets in a row failed\)"):
        sampler.draw(0, 2)


def test_a_reset_that_hangs_is_given_up_at_its_deadline():
    release = threading.Event()

    class Hanging(Echo):
        def reset(self, seed=None):
            release.wait(60)

    class HangingLater(Hanging):
        async def reset(self, seed=None):
            super().reset(seed)

    try:
        for kind in (Hanging, HangingLater):
            with pytest.raises(EpisodeError, match=rf"{kind.__name__}\.reset did not finish within 0.05 seconds"):
                hurried = functools.partial(kind, EnvironmentConfig(step_timeout_seconds=0.05))
                EnvironmentTaskSampler(hurried, seed=0).draw(0, 2)
    finally:
        release.set()
