"""Episodes are shared out by whole groups; what dead workers leave is run again, alone where it kills."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midthought.cluster.ray.work_queue import MAX_WORKER_DEATHS, WorkQueue, split_by_group
from midthought.errors import EngineError
from midthought.rollout.episode import EpisodeStart
from midthought.types import Task, Trajectory


def starts(*group_sizes: int) -> list[EpisodeStart]:
    task = Task(task_id="t", prompt="?", answer="!")
    groups = [group for group, size in enumerate(group_sizes) for _ in range(size)]
    return [EpisodeStart(task=task, seed=index, group=group) for index, group in enumerate(groups)]


def done() -> Trajectory:
    return Trajectory(Task(task_id="t", prompt="?", answer="!"), [1])


@given(st.lists(st.integers(1, 9), max_size=30), st.integers(1, 12))
def test_every_episode_is_in_one_share_with_all_of_its_group(group_sizes, num_workers):
    given_out = starts(*group_sizes)
    shares = split_by_group(given_out, num_workers)
    assert [index for share in shares for index in share] == list(range(len(given_out)))
    assert len(shares) <= num_workers
    groups = [{given_out[index].group for index in share} for share in shares]
    assert sum(map(len, groups)) == len(group_sizes)
    if shares:
        fair = len(given_out) / min(num_workers, len(group_sizes))
        assert max(map(len, shares)) <= fair + max(group_sizes)


def test_what_a_dead_worker_left_waits_as_it_was_and_then_in_halves():
    shares = WorkQueue(starts(*[1] * 5), 1)
    share = shares.take()
    shares.end(2, done())
    assert shares.lose(share, "killed") == []
    assert shares.take() == (0, 1, 3, 4)
    assert shares.lose((0, 1, 3, 4), "killed") == []
    assert [shares.take(), shares.take()] == [(0, 1), (3, 4)]


def test_an_episode_fails_when_it_killed_its_worker_alone():
    shares = WorkQueue(starts(1), 1)
    for _ in range(MAX_WORKER_DEATHS - 1):
        assert shares.lose(shares.take(), "killed") == []
    assert shares.lose(shares.take(), "killed") == [0]
    assert not shares.is_complete  # its record is still to come
    shares.end(0, done())
    assert shares.is_complete


@given(st.integers(1, 40), st.integers(1, 5), st.sets(st.integers(0, 39), max_size=3))
def test_whatever_kills_workers_all_others_end_once(num_episodes, num_workers, killers):
    """Workers die at the first killer of their share, after all that stands before it has ended."""
    shares = WorkQueue(starts(*[1] * num_episodes), num_workers)
    failed = set()
    while shares.num_waiting:
        share = shares.take()
        killer = next((number for number, index in enumerate(share) if index in killers), None)
        for index in share[:killer]:
            shares.end(index, done())
        if killer is not None:
            for index in shares.lose(share, "killed"):
                failed.add(index)
                shares.end(index, done())
    assert shares.is_complete
    assert failed == {index for index in killers if index < num_episodes}
    assert len(shares.trajectories()) == num_episodes


def test_workers_that_die_without_end_are_an_error_that_says_why():
    shares = WorkQueue(starts(*[1] * 64), 2)
    with pytest.raises(EngineError, match=r"11 workers died in a row .* out of memory"):
        while shares.num_waiting:
            for index in shares.lose(shares.take(), "out of memory"):
                shares.end(index, done())


def test_nothing_counts_twice():
    shares = WorkQueue(starts(1), 1)
    shares.end(0, done())
    with pytest.raises(EngineError, match="twice"):
        shares.end(0, done())
