import gc
import logging
import weakref

import pytest

from midthought.env.environment import BaseEnvironment, EpisodeError
from midthought.env.environment_tasks import MAX_TRIES, EnvironmentTaskSampler


class Numbers(BaseEnvironment):
    def reset(self, seed: int = 0) -> str:
        self.seed = seed
        return f"Start {seed}."

    def step(self, action: str) -> tuple[str, float, bool, dict]:
        return "", 1.0, True, {}


def test_what_is_drawn_follows_from_seed_purpose_iteration_and_attempt_alone():
    def prompts(seed=0, purpose="train", iteration=0, attempt=0):
        stream = EnvironmentTaskSampler(Numbers, seed=seed, purpose=purpose)
        return tuple(task.prompt for task in stream.draw(iteration, 3, attempt))

    assert prompts() == prompts()
    others = {prompts(), prompts(seed=1), prompts(purpose="held out"), prompts(iteration=1), prompts(attempt=1)}
    assert len(others) == 5


def test_tasks_of_every_attempt_of_the_iteration_still_have_episodes():
    stream = EnvironmentTaskSampler(Numbers, seed=0)
    batches = [stream.draw(7, 2, attempt) for attempt in range(3)]
    tasks = [task for batch in batches for task in batch]
    assert len({task.task_id for task in tasks}) == 6
    for task in tasks:
        one, other = stream.episode(task).environment, stream.episode(task).environment
        assert one is not other
        assert task.prompt == f"Start {one.seed}." == f"Start {other.seed}."


def test_environments_of_older_iterations_are_let_go():
    made: list[weakref.ref[Numbers]] = []

    def make() -> Numbers:
        numbers = Numbers()
        made.append(weakref.ref(numbers))
        return numbers

    stream = EnvironmentTaskSampler(make, seed=0)
    old = stream.draw(0, 2) + stream.draw(0, 2, attempt=1)
    gc.collect()
    assert len(made) == 4 and all(reference() is not None for reference in made)
    stream.draw(1, 2)
    gc.collect()
    assert [reference() is None for reference in made] == [True] * 4 + [False] * 2
    with pytest.raises(EpisodeError, match="not of the newest iteration"):
        stream.episode(old[0])


class Flaky(Numbers):
    num_failures = 0

    def reset(self, seed: int = 0) -> str:
        if Flaky.num_failures > 0:
            Flaky.num_failures -= 1
            raise ConnectionError("the server is away")
        return super().reset(seed)


class AsyncFlaky(Flaky):
    async def reset(self, seed: int = 0) -> str:
        return Flaky.reset(self, seed)


def flaky_factory():
    if Flaky.num_failures > 0:
        Flaky.num_failures -= 1
        raise ConnectionError("the server is away")
    return Numbers()


@pytest.mark.parametrize("kind", [Flaky, AsyncFlaky, flaky_factory])
def test_one_reset_that_fails_fails_its_group_and_no_other(kind, monkeypatch, caplog):
    caplog.set_level(logging.WARNING)
    usual = EnvironmentTaskSampler(kind, seed=0).draw(0, 3)
    monkeypatch.setattr(Flaky, "num_failures", 1)
    stream = EnvironmentTaskSampler(kind, seed=0)
    tasks = stream.draw(0, 3)
    assert tasks[1:] == usual[1:]
    for task in tasks[1:]:
        assert stream.episode(task).environment.seed > 0
    with pytest.raises(
        EpisodeError, match=f"({kind.__name__}.reset|factory) raised ConnectionError: the server is away"
    ):
        stream.episode(tasks[0])
    assert "1 of 3 environments not reset; the first" in caplog.text


def test_where_all_fail_they_are_reset_again_from_other_seeds(monkeypatch, caplog):
    caplog.set_level(logging.WARNING)
    usual = EnvironmentTaskSampler(Flaky, seed=0).draw(0, 2)
    monkeypatch.setattr(Flaky, "num_failures", 2 * (MAX_TRIES - 1))
    stream = EnvironmentTaskSampler(Flaky, seed=0)
    tasks = stream.draw(0, 2)
    assert len(tasks) == 2
    assert {task.prompt for task in tasks}.isdisjoint(task.prompt for task in usual)
    assert stream.episode(tasks[1]).environment.seed > 0
    assert caplog.text.count("the server is away") == MAX_TRIES - 1


def test_where_all_fail_every_time_the_draw_is_an_error(monkeypatch):
    monkeypatch.setattr(Flaky, "num_failures", 100)
    with pytest.raises(EpisodeError, match=r"the server is away \(6 resets in a row failed\)"):
        EnvironmentTaskSampler(Flaky, seed=0).draw(0, 2)
