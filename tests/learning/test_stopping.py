"""Ctrl-C: the first one lets a step end, the second one does not wait."""

import signal
import threading

import pytest

from midthought.learning.stopping import StopRequest


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_only_asks_and_says_what_a_second_one_does_and_the_check_between_steps_stops(number, capfd):
    with StopRequest() as stop:
        stop.check()
        signal.raise_signal(number)
        assert stop.requested
        with pytest.raises(KeyboardInterrupt):
            stop.check()
    assert "after the present step" in (told := capfd.readouterr().err) and "second signal stops at once" in told


def test_the_second_signal_interrupts_at_once():
    with StopRequest() as stop:
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert stop.requested


def test_afterwards_signals_do_what_they_did_before():
    seen = []
    before = signal.signal(signal.SIGTERM, lambda *_: seen.append("mine"))
    at_ctrl_c = signal.getsignal(signal.SIGINT)  # shells that start jobs in the background let them ignore it
    try:
        with StopRequest():
            signal.raise_signal(signal.SIGTERM)
        assert seen == []
        signal.raise_signal(signal.SIGTERM)
        assert seen == ["mine"]
        assert signal.getsignal(signal.SIGINT) is at_ctrl_c
    finally:
        signal.signal(signal.SIGTERM, before)


def test_in_another_thread_it_leaves_signals_alone_and_does_not_fail():
    found = []

    def work():
        with StopRequest() as stop:
            stop.check()
            found.append(stop.requested)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [False]
