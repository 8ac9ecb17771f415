"""Whatever a coroutine does, its caller continues after the deadline, and the event loop can end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from midthought.tools.concurrency import TooLateError, within


async def uncancellable() -> None:
    """Never ends, whatever anybody says."""
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue


def ends(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Returns the result of `asyncio.run`, clean-up included; fails if it does not end."""
    outcome: list[Any] = []

    def work() -> None:
        try:
            outcome.append(asyncio.run(coroutine))
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(10)
    assert outcome, "asyncio.run hangs"
    return outcome[0]


def test_the_result_and_the_errors_go_through() -> None:
    async def give(value: int) -> int:
        await asyncio.sleep(0)
        if value < 0:
            raise KeyError(value)
        return value

    assert ends(within(5, give(3))) == 3
    assert repr(ends(within(5, give(-3)))) == "KeyError(-3)"


@pytest.mark.parametrize(
    ("stop", "words"),
    [
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (SystemExit(3), "SystemExit: 3"),
        (GeneratorExit(), "GeneratorExit"),
        (asyncio.CancelledError(), "cancelled itself"),
    ],
)
def test_one_that_tries_to_leave_the_program_has_only_failed(stop: BaseException, words: str) -> None:
    async def leave() -> None:
        await asyncio.sleep(0)
        raise stop

    error = ends(within(5, leave()))
    assert type(error) is RuntimeError and str(error) == words


def test_one_that_swallows_its_cancellation_for_ever_is_left_behind_and_the_loop_still_ends() -> None:
    assert type(ends(within(0.01, uncancellable()))) is TooLateError


@pytest.mark.parametrize("num_cancels", [1, 2])
def test_so_it_is_when_the_one_who_waits_is_cancelled_also_again_while_it_cleans_up(num_cancels: int) -> None:
    async def give_up() -> str:
        waiting = asyncio.create_task(within(60, uncancellable()))
        for _ in range(num_cancels):
            await asyncio.sleep(0.01)
            waiting.cancel()
        await asyncio.wait({waiting})
        return "cancelled" if waiting.cancelled() else "not cancelled"

    assert ends(give_up()) == "cancelled"


def test_one_that_tidies_up_when_cancelled_has_the_time_for_it() -> None:
    tidied: list[str] = []

    async def tidy() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            tidied.append("done")

    assert type(ends(within(0.01, tidy()))) is TooLateError and tidied == ["done"]
