"""Equal calls run once, in any order of callers, waits, cancellations and failures; time is counted in loop iterations."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midthought.tools.executor_state import ResultCache, key_of


async def ticks(num: int) -> None:
    for _ in range(num):
        await asyncio.sleep(0)


class Work:
    """Number of started runs of each key, and the keys of which two ran at once."""

    def __init__(self) -> None:
        self.num_begun: Counter[str] = Counter()
        self.under_way: Counter[str] = Counter()
        self.twice: set[str] = set()

    def begin(self, key: str, num_ticks: int = 3, outcome: str = "good") -> Callable[[], Coroutine[Any, Any, str]]:
        async def run() -> str:
            self.num_begun[key] += 1
            self.under_way[key] += 1
            self.twice |= {key} if self.under_way[key] > 1 else set()
            try:
                await ticks(num_ticks)
                if outcome == "bad":
                    raise KeyError(key)
                return f"{outcome} {key}"
            finally:
                self.under_way[key] -= 1

        return run


async def asked(calls: ResultCache[str], key: str, compute: Callable[[], Coroutine[Any, Any, str]]) -> tuple[Any, bool]:
    """Returns the result of the run, or its exception, and whether it is shared."""
    run, is_shared = await calls.get(key, compute)
    return run.exception() or run.result(), is_shared


class Ask(NamedTuple):
    after: int
    key: str
    leaves_after: int | None


ASKS = st.lists(
    st.builds(Ask, st.integers(0, 8), st.sampled_from("abc"), st.none() | st.integers(0, 6)), min_size=1, max_size=16
)


@given(ASKS, st.lists(st.integers(0, 5), min_size=3, max_size=3), st.sets(st.sampled_from("abc")), st.booleans())
def test_every_one_who_stays_gets_the_answer_of_the_only_run_under_way(
    asks: list[Ask], num_ticks: list[int], failing: set[str], in_rollout: bool
) -> None:
    work, calls = Work(), ResultCache[str]()
    takes = dict(zip("abc", num_ticks, strict=True))

    async def ask(one: Ask) -> tuple[str, bool]:
        await ticks(one.after)
        outcome = "bad" if one.key in failing else "good"
        return await asked(calls, one.key, work.begin(one.key, takes[one.key], outcome))

    async def leave(asking: asyncio.Task[Any], one: Ask) -> None:
        if one.leaves_after is not None:
            await ticks(one.after + one.leaves_after)
            asking.cancel()

    async def everybody() -> list[Any]:
        asking = [asyncio.create_task(ask(one)) for one in asks]
        leaving = [asyncio.create_task(leave(task, one)) for task, one in zip(asking, asks, strict=True)]
        done = await asyncio.gather(*asking, return_exceptions=True)
        await asyncio.gather(*leaving)
        return done

    async def run() -> list[Any]:
        if not in_rollout:
            return await everybody()
        with calls.rollout():
            return await everybody()

    done = asyncio.run(run())
    assert not work.twice
    num_own = Counter()
    for one, result in zip(asks, done, strict=True):
        if one.leaves_after is None:
            assert result[0] == f"good {one.key}" if one.key not in failing else isinstance(result[0], KeyError)
            num_own[one.key] += not result[1]
    assert all(num_own[key] <= work.num_begun[key] for key in num_own)
    if in_rollout and all(one.leaves_after is None for one in asks):
        good = {one.key for one in asks} - failing
        assert all(work.num_begun[key] == num_own[key] == 1 for key in good)


def test_results_are_kept_until_the_last_rollout_ends_and_failures_never() -> None:
    work, calls = Work(), ResultCache[str]()

    async def run() -> None:
        assert await asked(calls, "a", work.begin("a")) == ("good a", False)
        with calls.rollout():
            assert await asked(calls, "a", work.begin("a")) == ("good a", False)
            with calls.rollout():
                assert await asked(calls, "a", work.begin("a")) == ("good a", True)
            assert await asked(calls, "a", work.begin("a")) == ("good a", True)
            for _ in range(2):
                both = await asyncio.gather(*(asked(calls, "b", work.begin("b", outcome="bad")) for _ in range(2)))
                assert [(repr(error), is_shared) for error, is_shared in both] == [
                    ("KeyError('b')", is_shared) for is_shared in (False, True)
                ]
        assert await asked(calls, "a", work.begin("a")) == ("good a", False)

    asyncio.run(run())
    assert work.num_begun == {"a": 3, "b": 2}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"k": 1}, {"k": 1.0}),
        ({"k": 1}, {"k": True}),
        ({"k": 0.0}, {"k": -0.0}),
        ({"k": None}, {}),
        ({"k": "1"}, {"k": 1}),
        ({"k": ["a", "b"]}, {"k": ["b", "a"]}),
        ({"k": "é"}, {"k": "e\u0301"}),
    ],
)
def test_calls_that_differ_in_anything_have_keys_of_their_own(one: dict, other: dict) -> None:
    assert key_of("look", one) != key_of("look", other) and key_of("look", one) != key_of("loo", one)
    assert key_of("look", {"a": 1, **one}) == key_of("look", {**one, "a": 1}), "the order makes no other call"


def test_what_json_cannot_say_exactly_has_no_key() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for value in (float("nan"), {1, 2}, (1, 2), {1: "a"}, object(), 10**5000, deep, b"x"):
        assert key_of("look", {"k": value}) is None
