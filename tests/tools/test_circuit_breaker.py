"""Calls of an unreachable tool are refused; calls of a tool that only rejects a question are not."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import urllib.error
import urllib.request

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midthought.errors import McpServerError
from midthought.tools.circuit_breaker import CircuitBreaker, RefusedError, is_unreachable


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def circuit_breaker(clock: Clock, max_failures: float = 2) -> CircuitBreaker:
    return CircuitBreaker("look", max_failures=max_failures, pause_seconds=10.0, clock=clock)


def call(one: CircuitBreaker, error: BaseException | None = None) -> bool:
    """Whether the call was let through."""
    try:
        with contextlib.suppress(ConnectionError, ValueError, asyncio.CancelledError), one.call():
            if error is not None:
                raise error
    except RefusedError:
        return False
    return True


DIES = {"dies": ConnectionResetError(), "errs": ValueError("bad query"), "answers": None}


@given(st.integers(1, 4), st.lists(st.sampled_from([*DIES, "waits"]), max_size=40))
def test_a_call_is_refused_just_when_the_last_n_died_and_the_last_of_them_is_less_than_a_pause_ago(
    max_failures: int, acts: list[str]
) -> None:
    clock = Clock()
    one = circuit_breaker(clock, max_failures)
    num_died, died_at = 0, 0.0
    for act in acts:
        clock.now += 4.0 if act == "waits" else 0.0
        expected = num_died >= max_failures and clock.now - died_at < 10.0
        assert one.refuses() is expected
        if act != "waits":
            assert call(one, DIES[act]) is not expected
        if act == "dies" and not expected:
            num_died, died_at = num_died + 1, clock.now
        elif act in ("errs", "answers") and not expected:
            num_died = 0


def opened(clock: Clock) -> CircuitBreaker:
    one = circuit_breaker(clock)
    assert all(call(one, ConnectionError()) for _ in range(2)) and not call(one)
    return one


def test_while_the_trial_runs_nobody_else_is_let_through_and_its_answer_lets_all_through() -> None:
    clock = Clock()
    one = opened(clock)
    clock.now = 10.0
    with one.call():
        assert one.refuses() and not call(one)
    assert call(one) and call(one)


def test_a_trial_that_is_cancelled_says_nothing_and_the_next_call_is_the_trial() -> None:
    clock = Clock()
    one = opened(clock)
    clock.now = 10.0
    assert call(one, asyncio.CancelledError())
    with one.call():
        assert one.refuses()


def test_a_call_that_began_before_may_close_it_and_a_trial_that_then_dies_is_one_failure() -> None:
    clock = Clock()
    one = circuit_breaker(clock)
    early = one.call()
    early.__enter__()
    for _ in range(2):
        call(one, ConnectionError())
    clock.now = 10.0
    with contextlib.suppress(ConnectionError), one.call():
        early.__exit__(None, None, None)
        raise ConnectionError
    assert not one.refuses()
    call(one, ConnectionError())
    assert one.refuses()


def test_calls_that_began_before_and_die_do_not_make_the_pause_longer() -> None:
    clock = Clock()
    one = circuit_breaker(clock)
    with contextlib.suppress(ConnectionError), one.call():
        for _ in range(2):
            call(one, ConnectionError())
        clock.now = 9.0
        raise ConnectionError
    clock.now = 10.0
    assert not one.refuses()


def test_it_is_told_once_when_it_opens_and_once_when_it_closes(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    with caplog.at_level(logging.WARNING):
        one = opened(clock)
        clock.now = 10.0
        call(one, ConnectionError())
        clock.now = 20.0
        call(one)
    first, last = (record.getMessage() for record in caplog.records)
    assert first.startswith("tool 'look' has failed 2 times in a row and is not called for 10 seconds")
    assert last == "tool 'look' answers again"


def raised_from(outer: BaseException, inner: BaseException) -> BaseException:
    outer.__cause__ = inner
    return outer


def while_handling(outer: BaseException, inner: BaseException) -> BaseException:
    outer.__context__ = inner
    return outer


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConnectionRefusedError(), True),
        (TimeoutError(), True),
        (socket.gaierror(-2, "Name or service not known"), True),
        (OSError(errno.EHOSTUNREACH, "No route to host"), True),
        (McpServerError("gone"), True),
        (raised_from(RuntimeError("search failed"), BrokenPipeError()), True),
        (while_handling(OSError("request failed"), ConnectionAbortedError()), True),
        (ExceptionGroup("several", [ValueError(), ConnectionError()]), True),
        (ValueError("bad query"), False),
        (RuntimeError("500"), False),
        (FileNotFoundError(errno.ENOENT, "no such file"), False),
        (PermissionError(errno.EACCES, "not allowed"), False),
        (while_handling(ValueError("bad query"), ConnectionError("the cache is away")), False),
        (ExceptionGroup("several", [ValueError()]), False),
    ],
)
def test_only_what_says_that_nobody_was_reached_or_answered_in_time_counts(error: Exception, expected: bool) -> None:
    assert is_unreachable(error) is expected


def test_exceptions_in_a_circle_end() -> None:
    first, second = ValueError(), ValueError()
    first.__cause__, second.__cause__ = second, first
    assert not is_unreachable(first)


def test_a_refused_connection_counts_as_urllib_tells_it() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with pytest.raises(urllib.error.URLError) as refused:
        opener.open(f"http://127.0.0.1:{port}/", timeout=5)
    assert is_unreachable(refused.value)
