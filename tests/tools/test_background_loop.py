"""Coroutines from synchronous code: in notebooks, inside other loops, through interrupts and shutdowns."""

import asyncio
import concurrent.futures
import threading
import time

import pytest

from midthought.errors import EngineError
from midthought.tools.background_loop import BackgroundLoop

NAME = "test-private-loop"


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == NAME]


def wait_until(condition) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def loop():
    loop = BackgroundLoop(NAME)
    yield loop
    loop.close()
    wait_until(lambda: not threads())


async def give(value):
    await asyncio.sleep(0)
    return value


async def fail(error):
    await asyncio.sleep(0)
    raise error


def test_it_gives_what_the_coroutine_gives_and_raises_what_it_raises(loop):
    async def inside():
        return loop.run(give(5))

    loop.close()  # before anything ran
    assert loop.run(give(3)) == 3
    with pytest.raises(ZeroDivisionError, match="by hand"):
        loop.run(fail(ZeroDivisionError("by hand")))
    assert asyncio.run(inside()) == 5, "in a running event loop, as in a notebook"
    loop.close()
    loop.close()
    assert loop.run(give(4)) == 4, "a later call starts again"


def test_several_threads_may_wait_at_once(loop):
    meeting = asyncio.Event()

    async def wait_for_the_other():
        await asyncio.wait_for(meeting.wait(), 30)
        return "met"

    async def release():
        meeting.set()

    with concurrent.futures.ThreadPoolExecutor() as pool:
        waiting = pool.submit(loop.run, wait_for_the_other())
        loop.run(release())
        assert waiting.result(timeout=30) == "met"


def test_a_coroutine_that_wants_to_end_the_program_or_waits_for_its_own_loop_fails_and_not_the_loop(loop):
    for stop in (SystemExit("enough"), KeyboardInterrupt()):
        with pytest.raises(type(stop)):
            loop.run(fail(stop))
        assert loop.run(give(6)) == 6

    async def inner():
        return loop.run(give(7))

    with pytest.raises(EngineError, match="plain function"):
        loop.run(inner())
    assert loop.run(give(8)) == 8


def test_closing_cancels_what_is_running_so_that_nobody_waits_for_ever(loop):
    begun = threading.Event()

    async def hang():
        begun.set()
        await asyncio.sleep(3600)

    with concurrent.futures.ThreadPoolExecutor() as pool:
        waiting = pool.submit(loop.run, hang())
        assert begun.wait(30)
        loop.close()
        with pytest.raises(concurrent.futures.CancelledError):
            waiting.result(timeout=30)


def test_all_calls_share_one_thread_which_starts_with_the_first_and_ends_when_nobody_holds_the_loop():
    async def where():
        return threading.current_thread()

    loop = BackgroundLoop(NAME)
    assert threads() == []
    assert loop.run(where()) is loop.run(where()) and len(threads()) == 1
    del loop
    wait_until(lambda: not threads())
