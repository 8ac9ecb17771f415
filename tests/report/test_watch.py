"""`midthought watch`: what a run does is read from its folder, from outside, and every end of a run is recognized."""

import http.client
import io
import json
import socket
import struct
import sys
import threading
import time
from pathlib import Path

import pytest

from midthought.activity import ACTIVITY
from midthought.cli import main
from midthought.report.console import Console
from midthought.report.live_status import LiveStatus, read_live
from midthought.report.run_folder import RunFolder
from midthought.report.run_lock import RunLock
from midthought.report.watch import RunState, RunWatcher, follow, status_line, status_lines
from midthought.report.watch_page import WatchServer


@pytest.fixture
def run(tmp_path):
    """A run folder that this process works in, with five iterations."""
    with RunFolder(tmp_path / "run", trackers=()).create() as folder:
        for step in range(1, 6):
            folder.log("ppo", step, {"zeta": 1.0, "reward/mean": step / 10, "time/seconds": 2.0})
        yield folder


def console_of(run: RunFolder) -> Console:
    console = Console(quiet=True, num_stages=6)
    console.live = LiveStatus(run)
    return console


def test_the_progress_within_an_iteration_is_seen_from_outside(run):
    with console_of(run).stage("Training", total=10, unit="iterations") as bar, ACTIVITY.in_phase("sampling"):
        bar.advance(5, reward=0.5)
        with ACTIVITY.episodes(8, None) as finished, ACTIVITY.tools(3):
            for _ in range(5):
                finished(None)
            ACTIVITY.num_tokens += 1200
            deadline = time.monotonic() + 30
            while read_live(run.path)["activity"]["num_tokens"] < 1200 and time.monotonic() < deadline:
                time.sleep(0.05)
            watched = RunWatcher(run.path, lambda _: ["entropy_collapse: entropy fell"]).look()
    assert watched.state is RunState.RUNNING
    text = "\n".join(status_lines(watched))
    for part in ("[1/6] Training  5/10 iterations", "sampling: 5/8 episodes · 1,200 tokens", "3 tools running"):
        assert part in text
    assert "█" * 30 + "░" * 30 in text and "! entropy_collapse: entropy fell" in text
    assert text.index("reward/mean") < text.index("zeta") and "0.5  ▁▃▄▆█" in text
    assert "[1/6] Training" in status_line(watched) and "reward/mean 0.5" in status_line(watched)


def end_by(run: RunFolder, error: type[BaseException] | None) -> None:
    with console_of(run).stage("Training", total=1) as bar:
        bar.advance(1)
        if error is not None:
            raise error("the disk is full")


@pytest.mark.parametrize(
    ("error", "state"),
    [(ValueError, RunState.FAILED), (KeyboardInterrupt, RunState.STOPPED), (None, RunState.FINISHED)],
)
def test_the_end_of_a_run_is_recognized(run, error, state):
    if error is None:
        end_by(run, None)
        run.write_summary({"reward/mean": 0.5})
    else:
        with pytest.raises(error):
            end_by(run, error)
    assert RunWatcher(run.path).look().state is RunState.RUNNING, "its process still holds the folder"
    run.unlock()
    watched = RunWatcher(run.path).look()
    assert watched.state is state and watched.reason == ("ValueError: the disk is full" if error is ValueError else "")


def test_a_killed_run_and_a_silent_one_are_recognized(run):
    (run.path / "live.json").write_text(json.dumps({"state": "running", "time": time.time() - 600}))
    assert "no sign of life for 10 min" in status_line(RunWatcher(run.path).look())
    run.unlock()
    assert RunWatcher(run.path).look().state is RunState.KILLED
    (run.path / "live.json").write_text("{")
    assert RunWatcher(run.path).look().state is RunState.NOT_STARTED


@pytest.mark.parametrize("size", [(80, 24), (40, 8)])
def test_the_view_fits_into_the_terminal_and_shows_no_control_characters(run, size):
    run.log("ppo", 6, {"reward/mean": 1.0, **{f"part/{number}/\x1b[2J{'x' * 90}": 1.0 for number in range(40)}})
    with console_of(run).stage("Tr\x1b[31maining\nwith a title" + "y" * 90, total=3):
        pass
    lines = status_lines(RunWatcher(run.path, lambda _: ["finding"] * 9).look(), *size)
    assert len(lines) <= size[1] and max(map(len, lines)) <= size[0]
    assert not any(set("\x1b\n") & set(line) for line in lines)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_a_run_is_followed_until_its_end(run, kind):
    def end() -> None:
        end_by(run, None)
        run.write_summary({})
        run.unlock()

    timer = threading.Timer(0.3, end)
    timer.start()
    out = kind()
    watched = follow(RunWatcher(run.path), interval_seconds=0.1, out=out)
    timer.join()
    assert watched.state is RunState.FINISHED
    assert "running" in out.getvalue() and "finished" in out.getvalue()
    assert ("\x1b" in out.getvalue()) == (kind is Terminal)
    assert kind is Terminal or 2 <= out.getvalue().count("\n") <= 4


def test_a_run_that_ends_while_it_is_looked_at_was_not_killed(run, monkeypatch):
    with console_of(run).stage("Training", total=1):
        assert RunWatcher(run.path).look().state is RunState.RUNNING
    said, is_held = (run.path / "live.json").read_text("utf-8").replace('"done"', '"running"'), RunLock.is_held
    (run.path / "live.json").write_text(said, "utf-8")

    def ends_now(path):
        end_by(run, None)
        run.write_summary({})
        run.unlock()
        return is_held(path)

    monkeypatch.setattr(RunLock, "is_held", ends_now)
    assert RunWatcher(run.path).look().state is RunState.FINISHED


def test_the_page_is_for_this_machine_only(run):
    with console_of(run).stage("<script>alert(1)</script>"):
        pass
    with WatchServer(RunWatcher(run.path), 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()

        def get(path: str, **headers: str) -> tuple[int, str]:
            connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=30)
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

        status, page = get("/")
        assert status == 200 and 'http-equiv="refresh"' in page and "&lt;script&gt;" in page and "<script>" not in page
        assert get("/report")[0] == 200 and "<h1>run</h1>" in get("/report")[1]
        assert get("/", Host="attacker.example:80")[0] == 403
        assert get("/config.yaml")[0] == 404
        run.write_summary({})
        run.unlock()
        assert "http-equiv" not in get("/")[1] and "finished" in get("/")[1]
        server.shutdown()


def test_the_command_ends_with_the_state_of_the_run(run, monkeypatch, capsys):
    def call(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["midthought", "watch", *words])
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capsys.readouterr()
        return int(stop.value.code or 0), captured.out + captured.err

    code, text = call(str(run.path), "--once")
    assert code == 0 and "running" in text and "No guard has a finding." in text
    with pytest.raises(ValueError):
        end_by(run, ValueError)
    run.unlock()
    code, text = call(str(run.path))
    assert code == 1 and "failed" in text and "the disk is full" in text
    code, text = call("nowhere")
    assert code == 2 and "nowhere is no run folder" in text
    assert not Path("nowhere").exists()


def test_a_client_that_sends_nothing_or_leaves_is_given_up_without_a_word(run, monkeypatch, capfd):
    with WatchServer(RunWatcher(run.path), 0) as server:
        monkeypatch.setattr(server.RequestHandlerClass, "timeout", 0.2)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = server.server_address[0], server.server_address[1]
        with socket.create_connection(address, timeout=30) as silent:
            assert silent.recv(1) == b""
        with socket.create_connection(address, timeout=30) as leaving:
            leaving.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closing resets
            leaving.sendall(b"GET / HTTP/1.1\r\n")
        with socket.create_connection(address, timeout=30) as honest:
            honest.sendall(b"GET / HTTP/1.1\r\nHost: localhost:1\r\n\r\n")
            assert honest.recv(12) == b"HTTP/1.0 200"
        server.shutdown()
    assert capfd.readouterr().err == ""
