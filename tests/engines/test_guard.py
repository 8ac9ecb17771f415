"""A server that we start ends with us, also where we are killed and can end nothing ourselves."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys

import pytest
from server_engines import is_alive, until

from midthought.engines.servers.process import start_guarded

STARTERS = {
    "ServerProcess": (
        "import sys, time; from midthought.engines.servers.process import ServerProcess\n"
        "server = ServerProcess([sys.executable, '-c', {server!r}], 'http://127.0.0.1:1')\n"
        "time.sleep(600)\n"
    ),
    "serve": (
        "import os, sys; from midthought.engines.servers.process import run_in_foreground\n"
        "run_in_foreground([sys.executable, '-c', {server!r}], dict(os.environ))\n"
    ),
}
SERVER = """
import os, signal, subprocess, sys, time
{first}
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
with open({path!r} + ".part", "w") as file:
    file.write(f"{{os.getpid()}} {{worker.pid}}")
os.rename({path!r} + ".part", {path!r})
time.sleep(600)
"""


@pytest.mark.parametrize(
    "first",
    [
        pytest.param("", id="heeds"),
        pytest.param("signal.signal(signal.SIGTERM, signal.SIG_IGN)", id="deaf", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("starter", STARTERS)
def test_a_server_and_its_workers_end_when_the_run_is_killed(starter, first, tmp_path):
    told = tmp_path / "pids"
    server = SERVER.format(first=first, path=str(told))
    run = subprocess.Popen([sys.executable, "-c", STARTERS[starter].format(server=server)], cwd=tmp_path)
    try:
        asyncio.run(until(told.exists))
        pids = [int(pid) for pid in told.read_text().split()]
        assert all(map(is_alive, pids))
    finally:
        run.send_signal(signal.SIGKILL)
        run.wait()
    asyncio.run(until(lambda: not any(map(is_alive, pids)), seconds=5.0 + (5.0 if first else 0.0)))


def test_a_server_that_ends_by_itself_leaves_its_exit_code():
    assert start_guarded([sys.executable, "-c", "import sys; sys.exit(7)"]).wait(30) == 7
