"""A server that has ended by itself: its process id may belong to another process before the tools are closed."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("mcp")

from midthought.tools.mcp import mcp_tools

LAST_PID = Path("/proc/sys/kernel/ns_last_pid")
SERVER = r"""
import json, os, sys
for line in sys.stdin:
    asked = json.loads(line)
    if asked.get("method") == "initialize":
        info = {"name": "test", "version": "1"}
        found = {"protocolVersion": asked["params"]["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": info}
    elif asked.get("method") == "tools/list":
        found = {"tools": [{"name": "look", "inputSchema": {"type": "object"}}]}
    elif "id" in asked:  # without a reply, the client waits 10 seconds for one
        error = {"code": -32601, "message": "Method not found"}
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "error": error}), flush=True)
        continue
    else:
        continue
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": found}), flush=True)
    if asked["method"] == "tools/list":
        with open(sys.argv[1], "w") as file:
            file.write(str(os.getpid()))
        os._exit(0)
"""


def process_with_id(number: int) -> subprocess.Popen[bytes]:
    """Starts a process of its own group that has this id."""
    for _ in range(200):
        try:
            LAST_PID.write_text(str(number - 1))
        except OSError as error:
            pytest.skip(f"the next process id cannot be chosen here: {error}")
        process = subprocess.Popen(["sleep", "600"], start_new_session=True)
        if process.pid == number:
            return process
        process.kill()
        process.wait()
    pytest.skip(f"other processes took the id {number} or the ids before it")


def test_a_process_that_gets_the_id_of_a_server_that_has_ended_is_left_alone(tmp_path):
    place = tmp_path / "pid"
    with mcp_tools(command=[sys.executable, "-c", SERVER, str(place)]):
        while not (place.exists() and place.read_text()):
            time.sleep(0.01)
        number = int(place.read_text())
        while Path(f"/proc/{number}").exists():
            time.sleep(0.01)
        time.sleep(0.5)  # the end is noticed
        other = process_with_id(number)
    try:
        time.sleep(0.2)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
