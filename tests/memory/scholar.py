"""A real HTTP server that answers JSON, and a model behind it that writes questions and answers them."""

import hashlib
import http.server
import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from midthought.data.abstention import NO_ANSWER, UNANSWERABLE
from midthought.http.json_requests import EndpointSettings
from midthought.memory.llm_questions.structured_output import StructuredOutputModel

SAID = {
    "tide": [
        "The clock has one copper hand.",
        "It was built in 1911.",
        "Herring scales were found in it.",
        "We wound it daily.",
    ],
    "bell": ["The bell is of bronze.", "Nobody rings it.", "It came from Lisbon.", "A storm broke its yoke."],
}


def question_of(episode: str, number: int) -> str:
    """Different words for each."""
    digest = hashlib.sha256(f"{episode} {number}".encode()).hexdigest()
    return f"Why {' '.join(digest[start : start + 5] for start in range(0, 40, 5))}?"


class JsonServer(http.server.ThreadingHTTPServer):
    """Answers with `reply(body)`, unless `upset_by(body)` returns (status, headers, content)."""

    daemon_threads = True
    path = ""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[dict] = []
        self.keys: list[str | None] = []
        self.num_now = self.num_most = 0
        self.delay = 0.0
        self.lock = threading.Lock()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def handle_error(self, request, client_address) -> None:
        """A disconnected client is not an error here."""


class Scholar(JsonServer):
    """A model that writes pairs about an episode's first and last part, and answers from passages alone. `upsets` come first."""

    path = "/v1/chat/completions"

    def __init__(self) -> None:
        super().__init__()
        self.upsets: list = []
        self.takes_schema = True
        self.knows_all = False
        self.guesses_blind = False
        self.changes: dict = {}
        """Of every pair that it writes."""

    def upset_by(self, body: dict):
        upset = self.upsets.pop(0) if self.upsets else None
        if "response_format" in body and not self.takes_schema:
            upset = (400, {}, b'{"error": {"message": "response_format is not supported"}}')
        return upset

    def pairs(self, material: dict) -> list[dict]:
        """Of each kind as many as requested, about the first and the last part."""
        parts = [part.partition(": ")[2] for part in material["transcript"]]
        numbers = [int(part.partition(".")[0]) for part in material["transcript"]]
        kinds = [kind for kind, wanted in material["kinds"].items() for _ in range(wanted["num_pairs"])]
        assert len(kinds) == material["num_pairs"]
        num_asked = len(material["already_asked"])
        return [
            {
                "kind": kind,
                "question": question_of(f"{material['transcript']}{kind}", num_asked + n)
                + (" The unheard?" if kind == UNANSWERABLE else ""),
                "answer": NO_ANSWER if kind == UNANSWERABLE else f"{parts[0]} And: {parts[-1]}",
                "evidence": [numbers[0], numbers[-1]],
                "difficulty": "hard",
                "requires_synthesis": True,
            }
            | self.changes
            for n, kind in enumerate(kinds)
        ]

    def reply(self, body: dict) -> bytes:
        return chat(json.dumps(self.answer(body)))

    def answer(self, body: dict) -> dict:
        system, material = (message["content"] for message in body["messages"])
        material = json.loads(material)
        if system.startswith("You write"):
            return {"qa_pairs": self.pairs(material)}
        if system.startswith("Answer"):
            said = [*material["passages"], *(["I know."] if self.knows_all else [])]
            if self.guesses_blind and body["temperature"] > 0:
                said = ["I know."]
            is_false = "unheard" in material["question"]
            return {"known": bool(said) and not is_false, "answer": " ".join(said)}
        if material["answer"] == "I know.":
            return {"same": True}
        wanted = re.findall(r"\w+", material["reference"].replace("And:", ""))
        return {"same": self.knows_all or set(wanted) <= set(re.findall(r"\w+", material["answer"]))}


class Handler(http.server.BaseHTTPRequestHandler):
    server: JsonServer

    def do_POST(self) -> None:
        server, body = self.server, json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.path == server.path
        with server.lock:
            server.requests.append(body)
            server.keys.append(self.headers["Authorization"])
            server.num_now += 1
            server.num_most = max(server.num_most, server.num_now)
            upset = server.upset_by(body)
        time.sleep(server.delay)
        upset = server.reply(body) if upset is None else upset
        with server.lock:
            server.num_now -= 1
        status, headers, content = upset if isinstance(upset, tuple) else (200, {}, upset)
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments) -> None:
        pass


def chat(text: str, finish_reason: str = "stop") -> bytes:
    message = {"role": "assistant", "content": text}
    return json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": finish_reason}]}).encode()


def model_at(scholar: Scholar, cache: Path | None = None, **settings) -> StructuredOutputModel:
    values = {"timeout_seconds": 20.0, "retries": 4, "backoff_seconds": 0.001, "max_concurrency": 4, **settings}
    return StructuredOutputModel("m", EndpointSettings(base_url=scholar.base_url, api_key_env=None, **values), cache)


@contextmanager
def running(server: JsonServer) -> Iterator[JsonServer]:
    with server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()
