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


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (None, "None"),
        (KeyError(-3), "KeyError(-3)"),
        (KeyboardInterrupt(), "RuntimeError('KeyboardInterrupt')"),
        (SystemExit(3), "RuntimeError('SystemExit: 3')"),
        (GeneratorExit(), "RuntimeError('GeneratorExit')"),
        (asyncio.CancelledError(), "RuntimeError('cancelled itself')"),
    ],
)
def test_results_and_errors_go_through_and_one_that_tries_to_leave_the_program_has_only_failed(
    raised: BaseException | None, told: str
) -> None:
    async def end() -> str:
        await asyncio.sleep(0)
        if raised is not None:
            raise raised
        return "None"

    ended = ends(within(5, end()))
    assert (ended if raised is None else repr(ended)) == told


def test_one_that_swallows_its_cancellation_for_ever_is_left_behind_and_the_loop_still_ends() -> None:
    assert type(ends(within(0.01, uncancellable()))) is TooLateError

    async def give_up(num_cancels: int) -> bool:
        waiting = asyncio.create_task(within(60, uncancellable()))
        for _ in range(num_cancels):
            await asyncio.sleep(0.01)
            waiting.cancel()
        await asyncio.wait({waiting})
        return waiting.cancelled()

    assert ends(give_up(1)) is ends(give_up(2)) is True, "also if it is cancelled again while it cleans up"


def test_one_that_tidies_up_when_cancelled_has_the_time_for_it() -> None:
    tidied: list[str] = []

    async def tidy() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            tidied.append("done")

    assert type(ends(within(0.01, tidy()))) is TooLateError and tidied == ["done"]
