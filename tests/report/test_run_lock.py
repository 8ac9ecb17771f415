"""One process writes in a run folder at a time; the lock of a killed process does not block."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from midthought.errors import RunLockedError
from midthought.report import run_lock
from midthought.report.run_folder import RunFolder
from midthought.report.run_lock import RunLock

HOLD = """
import sys, time
from pathlib import Path
from midthought.report.run_lock import RunLock

RunLock.acquire(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(float(sys.argv[2]))
"""


def hold(folder: Path, seconds: float = 60) -> subprocess.Popen[str]:
    """Another process that holds the lock of a folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder), str(seconds)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def test_a_second_process_is_refused_with_the_first_ones_name(tmp_path: Path) -> None:
    holder = hold(tmp_path)
    try:
        with pytest.raises(
            RunLockedError, match=rf"is in use by process {holder.pid} on host .* since 20.*wait until it ends"
        ):
            RunLock.acquire(tmp_path)
    finally:
        holder.kill()
        holder.wait()


def test_of_many_processes_that_start_at_once_one_gets_the_lock(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path), "2"]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    ended = [(process.communicate(timeout=60), process.returncode) for process in processes]
    assert sorted(code for _, code in ended) == [0, 1, 1, 1]
    assert all("RunLockedError" in errors for (_, errors), code in ended if code)


@pytest.mark.parametrize("is_reaped", [True, False])
def test_the_lock_of_a_killed_process_is_taken_over_at_once(tmp_path: Path, is_reaped: bool) -> None:
    holder = hold(tmp_path)
    holder.send_signal(signal.SIGKILL)
    if is_reaped:
        holder.wait()
    else:
        time.sleep(0.2)
    lock = RunLock.acquire(tmp_path)
    assert json.loads((tmp_path / ".lock").read_text())["pid"] == os.getpid()
    lock.release()
    holder.wait()


def test_another_process_with_the_same_number_is_not_the_holder_and_another_machine_of_the_same_name_is(
    tmp_path: Path,
) -> None:
    hold(tmp_path, 0).wait()
    assert (tmp_path / ".lock").read_text() == "", "it has ended by itself"
    lock = RunLock.acquire(tmp_path)
    record = json.loads((tmp_path / ".lock").read_text())
    lock.release()
    (tmp_path / ".lock").write_text(json.dumps({**record, "process_started": "another boot 17"}))
    lock = RunLock.acquire(tmp_path)
    assert json.loads((tmp_path / ".lock").read_text())["process_started"] == record["process_started"]
    lock.release()
    (tmp_path / ".lock").write_text(json.dumps({**record, "machine": "another", "process_started": "then"}))
    with pytest.raises(RunLockedError, match=r"remove .*\.lock"):
        RunLock.acquire(tmp_path)


def test_the_lock_of_another_host_is_named_with_the_remedy_until_it_is_silent_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lock, "HEARTBEAT_SECONDS", 0.1)
    lock = RunLock.acquire(tmp_path)
    record = json.loads((tmp_path / ".lock").read_text())
    lock.release()
    (tmp_path / ".lock").write_text(json.dumps({**record, "host": "node17", "pid": 4711}))
    with pytest.raises(RunLockedError, match=r"process 4711 on host node17 since .*remove .*\.lock"):
        RunLock.acquire(tmp_path)
    long_ago = time.time() - run_lock.SILENCE_SECONDS - 5
    os.utime(tmp_path / ".lock", (long_ago, long_ago))
    RunLock.acquire(tmp_path).release()


@pytest.mark.parametrize("jump", [-1e6, 1e6])
@pytest.mark.parametrize("lives", [True, False])
def test_a_jump_of_the_clock_does_not_end_the_lock_of_a_living_holder_on_another_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump: float, lives: bool
) -> None:
    monkeypatch.setattr(run_lock, "HEARTBEAT_SECONDS", 0.1)
    file = tmp_path / ".lock"
    file.write_text(json.dumps({"host": "node17", "machine": "m", "pid": 4711, "since": "now"}))
    before = time.time() + jump
    os.utime(file, (before, before))
    heartbeat = threading.Timer(0.05, os.utime, [file])
    if not lives:
        RunLock.acquire(tmp_path).release()
        return
    heartbeat.start()
    with pytest.raises(RunLockedError, match="process 4711 on host node17"):
        RunLock.acquire(tmp_path)
    heartbeat.join()


def test_the_holder_gives_signs_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_lock, "HEARTBEAT_SECONDS", 0.02)
    lock = RunLock.acquire(tmp_path)
    os.utime(tmp_path / ".lock", (1, 1))
    deadline = time.monotonic() + 10
    while (tmp_path / ".lock").stat().st_mtime < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    lock.release()


def test_without_flock_the_file_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    def refuse(*_: object) -> None:
        raise OSError("no locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    RunLock.acquire(tmp_path).release()

    def overtaken(_: float) -> None:
        (tmp_path / ".lock").write_text('{"host": "node17", "pid": 4711, "since": "now"}')

    monkeypatch.setattr(time, "sleep", overtaken)
    with pytest.raises(RunLockedError, match="process 4711 on host node17"):
        RunLock.acquire(tmp_path)


def test_two_users_in_one_process_share_the_lock(tmp_path: Path) -> None:
    first, second = RunFolder(tmp_path), RunFolder(tmp_path)
    first.create()
    second.create()
    first.unlock()
    assert (tmp_path / ".lock").read_text() != ""
    second.unlock()
    assert (tmp_path / ".lock").read_text() == ""


def test_a_run_that_is_refused_holds_no_lock_and_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years")
    with pytest.raises(FileExistsError):
        RunFolder(tmp_path).begin(resume=True)
    assert os.listdir(tmp_path) == ["thesis.tex"]


def test_a_named_pipe_in_place_of_the_lock_is_refused_and_does_not_block(tmp_path: Path):
    os.mkfifo(tmp_path / ".lock")
    assert not RunLock.is_held(tmp_path)
    with pytest.raises(RunLockedError, match=r"\.lock is not a file; remove it"):
        RunLock.acquire(tmp_path)
