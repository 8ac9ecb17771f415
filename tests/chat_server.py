"""An OpenAI-compatible server in a thread of the test: it answers as vLLM does, keeps what it was sent, and fails on command."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

FEEDBACK = "Step 2 is wrong: you lost a carry. Multiply 17 by 4 again."
LLAMA_3 = {128001: "<|end_of_text|>", 128009: "<|eot_id|>"}
QWEN = {128001: " Ordnung", 128009: "ätt"}


def chat(text: str | None, finish_reason: str = "stop") -> bytes:
    """A reply with one choice."""
    message = {"role": "assistant", "content": text}
    return json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": finish_reason}]}).encode()


class ChatServer(ThreadingHTTPServer):
    """A context manager; the settings may be changed while it runs.

    `faults` go wrong one after the other, then nothing does: a status, `stall`, `half` (JSON), `cut` (connection), `no_choice`.
    `replies` come instead, the last one again and again: bytes, (status, headers, bytes), or a function of the handler that gives
    one of them, or None if it has answered itself. `num_most`: requests that were under way at the same time. `delay`: seconds
    that each reply takes.
    `words` makes the reply from the request; `tokens` is the tokenizer, None for a server without its routes.
    """

    path = "/v1/chat/completions"
    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self,
        words: Callable[[Mapping[str, Any]], str] = lambda body: FEEDBACK,
        *,
        model: str = "critic",
        tokens: Mapping[int, str] | None = LLAMA_3,
    ) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.words, self.model, self.tokens = words, model, tokens
        self.faults: list[int | str] = []
        self.always: int | str | None = None
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.replies: list[Any] = []
        self.num_now = self.num_most = 0
        self.delay = 0.0
        self.released = threading.Event()
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def __enter__(self) -> ChatServer:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.released.set()
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that gave up is no error here."""

    def next_reply(self, body: Mapping[str, Any]) -> Any:
        with self.lock:
            return self.replies.pop(0) if len(self.replies) > 1 else next(iter(self.replies), None)

    def next_fault(self) -> int | str | None:
        with self.lock:
            return self.faults.pop(0) if self.faults else self.always


class _Handler(BaseHTTPRequestHandler):
    server: ChatServer
    is_under_way = False

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self._answer(200, {"data": [{"id": self.server.model}]} if self.path == "/v1/models" else {})

    def do_POST(self) -> None:
        server = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path in ("/tokenize", "/detokenize"):
            self._tokenizer(body)
            return
        assert self.path == server.path
        with server.lock:
            server.requests.append(body)
            server.headers.append(dict(self.headers))
            server.num_now += 1
            server.num_most = max(server.num_most, server.num_now)
            self.is_under_way = True
        try:
            self._reply(body)
        finally:
            self._end()

    def _end(self) -> None:
        """Before the reply is sent: then the client may send its next request."""
        with self.server.lock:
            self.server.num_now -= self.is_under_way
            self.is_under_way = False

    def _reply(self, body: Mapping[str, Any]) -> None:
        server = self.server
        time.sleep(server.delay)
        if (reply := server.next_reply(body)) is not None:
            if callable(reply):
                reply = reply(self)
            if reply is not None:
                self._answer(*((200, reply) if isinstance(reply, bytes) else (reply[0], reply[2], reply[1])))
            return
        fault = server.next_fault()
        reply = chat(server.words(body))
        if isinstance(fault, int):
            self._answer(fault, {"error": {"message": "out of order"}})
        elif fault == "stall":
            server.released.wait(30)
        elif fault == "half":
            self._answer(200, reply[:40])
        elif fault == "no_choice":
            self._answer(200, {"choices": []})
        elif fault == "cut":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
        else:
            self._answer(200, reply)

    def _tokenizer(self, body: Mapping[str, Any]) -> None:
        tokens = self.server.tokens
        if tokens is None:
            self._answer(404, {"detail": "Not Found"})
        elif self.path == "/detokenize":
            known = body["tokens"][0] in tokens
            self._answer(
                200 if known else 400, {"prompt": tokens[body["tokens"][0]]} if known else {"error": "no token"}
            )
        else:
            found = [number for number, text in tokens.items() if text == body["prompt"]]
            self._answer(200, {"tokens": found or [1, 2]})

    def _answer(self, status: int, content: Any, headers: Mapping[str, str] | None = None) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self._end()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)
