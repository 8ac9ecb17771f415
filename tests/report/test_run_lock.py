"""One process writes in a run folder at a time; the lock of a killed process does not block."""

import errno
import fcntl
import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from midthought.errors import RunLockedError
from midthought.report.run_folder import RunFolder
from midthought.report.run_lock import RunLock

HOLD = """
import os, sys, time
from pathlib import Path
from midthought.report.run_lock import RunLock

RunLock.acquire(Path(sys.argv[1]))
if len(sys.argv) > 3 and os.fork() == 0:  # a process that outlives the holder
    print("held", flush=True)
    time.sleep(float(sys.argv[3]))
    os._exit(0)
if len(sys.argv) == 3:
    print("held", flush=True)
time.sleep(float(sys.argv[2]))
"""


def hold(folder: Path, *seconds: float) -> subprocess.Popen[str]:
    """Another process that holds the lock of a folder."""
    command = [sys.executable, "-c", HOLD, str(folder), *map(str, seconds)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def test_a_second_process_is_refused_with_the_first_ones_name(tmp_path: Path) -> None:
    holder = hold(tmp_path, 60)
    try:
        assert RunLock.is_held(tmp_path)
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


@pytest.mark.parametrize("lives_on", [(), (2,)], ids=["alone", "with a forked process that lives on"])
@pytest.mark.parametrize("is_reaped", [True, False])
def test_the_lock_of_a_killed_process_is_taken_over_at_once(tmp_path: Path, is_reaped: bool, lives_on: tuple) -> None:
    holder = hold(tmp_path, 60, *lives_on)
    holder.send_signal(signal.SIGKILL)
    if is_reaped:
        holder.wait()
    else:
        time.sleep(0.2)
    assert not RunLock.is_held(tmp_path)
    lock = RunLock.acquire(tmp_path)
    assert json.loads((tmp_path / ".lock").read_text())["pid"] == os.getpid() and RunLock.is_held(tmp_path)
    lock.release()
    holder.wait()


def test_without_locks_of_the_file_system_the_run_starts_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with caplog.at_level(logging.WARNING):
        RunLock.acquire(tmp_path).release()
    assert "has no locks" in caplog.text and "start no second run" in caplog.text and not RunLock.is_held(tmp_path)


def test_two_users_in_one_process_share_the_lock(tmp_path: Path) -> None:
    first, second = RunFolder(tmp_path), RunFolder(tmp_path)
    first.create()
    second.create()
    first.unlock()
    assert (tmp_path / ".lock").read_text() != "" and RunLock.is_held(tmp_path)
    second.unlock()
    assert (tmp_path / ".lock").read_text() == "" and not RunLock.is_held(tmp_path)


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
