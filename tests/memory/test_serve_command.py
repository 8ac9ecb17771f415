"""`midthought memory serve` as a process: what it refuses, and how it ends."""

import http.client
import os
import signal
import time

import pytest
from command_process import CommandProcess
from episodes import episode

from midthought.memory.embedding import MiniLMEmbedder
from midthought.memory.store import MemoryStore


@pytest.fixture(scope="module")
def memory(tmp_path_factory):
    path = tmp_path_factory.mktemp("serve") / "memory"
    chunks = episode("t", (f"the tide is {number} hours late" for number in range(3)))
    MemoryStore.open(path, embedder=MiniLMEmbedder()).build(chunks)
    return path


def test_what_cannot_be_served_is_one_sentence(memory, tmp_path):
    for words, told in (
        (["--path", str(memory), "--host", "0.0.0.0"], "--token-env"),
        (["--path", str(memory), "--token-env", "NO_SUCH_TOKEN"], "NO_SUCH_TOKEN holds no token"),
        (["--path", str(tmp_path / "none")], "there is no memory"),
        (["--path", str(tmp_path / "none"), "--port", "70000"], "--port 70000"),  # before a memory is loaded
    ):
        serve = CommandProcess("memory", "serve", *words)
        assert serve.wait(120) == 2
        assert told in serve.errors and "Traceback" not in serve.errors, (words, serve.errors)


def test_it_answers_what_is_in_flight_before_it_ends(memory):
    environment = {**os.environ, "MEMORY_TOKEN": "a-token-that-nobody-guesses"}
    words = ["--path", str(memory), "--port", "0", "--token-env", "MEMORY_TOKEN"]
    process = CommandProcess("memory", "serve", *words, environment=environment)
    try:
        url = first_line(process).rpartition(" ")[2]
        words = ["--path", url, "--token-env", "MEMORY_TOKEN", "--k", "1"]
        search = CommandProcess("memory", "search", "2 hours", *words, environment=environment)
        assert search.wait(120) == 0 and "the tide is 2 hours late" in search.output
        port = int(url.rpartition(":")[2])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.putrequest("POST", "/search")
        body = b'{"query": "tide", "k": 1}'
        connection.putheader("Content-Type", "application/json")
        connection.putheader("Content-Length", str(len(body)))
        connection.putheader("Authorization", f"Bearer {environment['MEMORY_TOKEN']}")
        connection.endheaders(body[:10])
        time.sleep(0.5)  # the service reads the body
        process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        connection.send(body[10:])
        response = connection.getresponse()
        assert response.status == 200 and b"tide" in response.read()
        assert process.wait(60) == 0
        assert process.errors == ""
    finally:
        process.kill()


def first_line(process: CommandProcess) -> str:
    deadline = time.monotonic() + 60
    while "\n" not in process.output:
        assert process.returncode is None and time.monotonic() < deadline, process.errors
        time.sleep(0.01)
    return process.output.partition("\n")[0]
