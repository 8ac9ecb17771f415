"""A model server in a thread of the test: it follows the documented protocols of vLLM and SGLang, and fails on command.

Run as a program (`python fake_server.py -m vllm.… --uds …`) it is a server of its own process, for what starts servers.
"""

import argparse
import contextlib
import hashlib
import json
import math
import socket
import socketserver
import struct
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal, Self

Policy = Callable[[list[int]], int]
"""The ids so far -> the next one."""
Logits = Callable[[list[int]], Sequence[float]]
"""The ids so far -> the logits of the next one."""

LINE_ENDS = "line\u2028ends\x85in\x0btext"
"""What text readers take for line ends stands unescaped in the servers' JSON."""


BLOCK = 4
"""Tokens that a prefix cache keeps together."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What goes wrong in one request for a completion."""

    kind: Literal[
        "status", "cut", "half_line", "clean_end", "garbage", "abort", "error_event", "stall", "slow_start", "no_tokens"
    ]
    after: int = 0
    """Whole tokens that are sent before."""
    status: int = 500
    headers: dict[str, str] = field(default_factory=dict)
    message: str = "out of order"
    seconds: float = 0.0


def hashed(context: Sequence[int], num_tokens: int) -> int:
    """A policy without any state: the next token follows from all ids so far."""
    return int.from_bytes(hashlib.blake2b(repr(list(context)).encode(), digest_size=8).digest()) % num_tokens


@dataclass(eq=False)
class FakeServer:
    """A context manager. Settings may be changed while it runs."""

    kind: Literal["vllm", "sglang"] = "vllm"
    """Whose protocol."""
    policy: Policy = lambda context: hashed(context, 50)
    _: KW_ONLY
    model: str = "tiny"
    root: str = "/models/tiny"
    max_model_len: int | None = 4096
    logprob: float = -0.5
    logits: Sequence[float] | Logits | None = None
    """The server samples and records from softmax(logits) instead, whatever `policy` says."""
    records: Literal["model", "temperature", "processed"] = "model"
    """With logits: the probabilities of the model, those with its temperature, or those of all that is sampled from."""
    server_eos: Sequence[int] = ()
    """Its own end-of-sequence tokens."""
    chunk_size: int = 1
    token_seconds: float = 0.0
    tokenize: Callable[[str], list[int]] | None = None
    """For `/tokenize`; without it there is none."""
    key: str = ""
    port: int = 0
    uds: str = ""
    load: Callable[[str], Logits] | None = None
    """Takes the path of new weights or adapters and gives the logits that they make; without it there are no routes for them,
    as on a server that was not started for training."""
    faults: list[Fault | None] = field(default_factory=list)
    """One for each of the next requests for a completion, in their order; None lets one pass."""
    always: Fault | None = None
    """For every request that `faults` says nothing of."""
    alter: Callable[[dict[str, Any]], dict[str, Any]] = lambda event: event
    """Changes every event before it is sent."""

    def __post_init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        """The bodies of the requests for completions."""
        self.num_broken_off = 0
        """Completions that the client did not wait for."""
        self.num_running = self.max_running = 0
        self.adapters: dict[str, Logits] = {}
        self.prefix_cache: dict[tuple[int, ...], Sequence[float]] = {}
        """What was computed for whole blocks of BLOCK tokens, by these and all before; new weights leave it as it is."""
        self.is_paused = False
        self.orders: list[str] = []
        """Paths of the requests that change the server, in their order."""
        self.released = threading.Event()
        self.lock = threading.Lock()
        if not self.uds:  # other processes get other ports while this object lives, whether it serves or not
            self._reserved = socket.socket()
            self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            self._reserved.bind(("127.0.0.1", self.port))
            self.port = int(self._reserved.getsockname()[1])
            weakref.finalize(self, self._reserved.close)

    @property
    def url(self) -> str:
        return f"unix:{self.uds}" if self.uds else f"http://127.0.0.1:{self.port}"

    @property
    def prompts(self) -> list[list[int]]:
        return [body["prompt" if self.kind == "vllm" else "input_ids"] for body in self.requests]

    def __enter__(self) -> Self:
        fake = self

        class Handler(_Handler):
            server_of_ours = fake

        class Server(ThreadingHTTPServer):
            request_queue_size = 256
            daemon_threads = True
            allow_reuse_address = allow_reuse_port = not self.uds
            address_family = socket.AF_UNIX if self.uds else socket.AF_INET

            def server_bind(self) -> None:  # without looking up the host's name
                socketserver.TCPServer.server_bind(self)

        self.released.clear()
        self._http = Server(self.uds or ("127.0.0.1", self.port), Handler)  # type: ignore[arg-type]
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.released.set()
        self._http.shutdown()
        self._http.server_close()

    def count_out(self) -> None:
        """One request less is running."""
        with self.lock:
            self.num_running -= 1

    def next_fault(self) -> Fault | None:
        with self.lock:
            return self.faults.pop(0) if self.faults else self.always

    def draw(self, context: list[int], params: dict[str, Any], adapter: str | None = None) -> tuple[int, float]:
        """The next token and what is recorded for it."""
        if self.logits is None:
            return self.policy(context), self.logprob
        logits = self.look_up(context, adapter)
        temperature = params["temperature"]
        warm = _log_softmax([logit / (temperature or 1.0) for logit in logits])
        order = sorted(range(len(warm)), key=lambda token_id: -warm[token_id])
        order = order[: params["top_k"] if params["top_k"] > 0 else None]
        order = [each for each in order if warm[each] >= warm[order[0]] + math.log(params["min_p"] or 1e-300)]
        kept, mass = [], 0.0
        total = sum(math.exp(warm[token_id]) for token_id in order)
        for token_id in order if temperature else order[:1]:
            if mass < params["top_p"]:
                kept.append(token_id)
            mass += math.exp(warm[token_id]) / total
        seed = params.get("seed", params.get("sampling_seed"))
        token_id = kept[hashed([seed, *context], len(kept))]
        whole = sum(math.exp(warm[other]) for other in kept) if temperature else 1.0
        recorded = {"model": _log_softmax(logits)[token_id], "temperature": warm[token_id]}
        return token_id, recorded.get(self.records, warm[token_id] - math.log(whole))

    def look_up(self, context: list[int], adapter: str | None) -> Sequence[float]:
        """The logits after a context; from the cache if it is a cached prefix."""
        compute = self.adapters[adapter] if adapter else self.logits
        if not callable(compute):
            assert compute is not None
            return compute
        block = tuple(context[: len(context) // BLOCK * BLOCK])
        if len(block) == len(context) and not adapter:
            return self.prefix_cache.setdefault(block, compute(context))
        return compute(context)


class _Handler(BaseHTTPRequestHandler):
    server_of_ours: FakeServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        fake = self.server_of_ours
        if self.path == "/health":
            self._answer(200, {})
        elif self.path == "/v1/models" and self._has_key():
            card = {"id": fake.model, "object": "model", "root": fake.root, "max_model_len": fake.max_model_len}
            self._answer(200, {"object": "list", "data": [card]})
        else:
            self._answer(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        fake = self.server_of_ours
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"] or 0)) or b"null")
        if not self._has_key():
            return
        if self.path == "/tokenize" and fake.tokenize is not None:
            self._answer(200, {"tokens": fake.tokenize(body["prompt"])})
        elif self.path == ("/v1/completions" if fake.kind == "vllm" else "/generate"):
            with fake.lock:
                fake.requests.append(body)
                fake.num_running += 1
                fake.max_running = max(fake.max_running, fake.num_running)
            with contextlib.ExitStack() as running:
                running.callback(fake.count_out)
                try:
                    self._complete(body, fake.next_fault(), running)
                except (BrokenPipeError, ConnectionResetError):
                    fake.num_broken_off += 1
        elif fake.load is not None and (ordered := _ordered(fake, self.path, body)) is not None:
            fake.orders += [self.path] if ordered[0] == 200 else []
            self._answer(*ordered)
        else:
            self._answer(404, {"detail": "Not Found"})

    def _has_key(self) -> bool:
        key = self.server_of_ours.key
        if key and self.headers.get("Authorization") != f"Bearer {key}":
            self._answer(401, {"error": "Unauthorized"})
            return False
        return True

    def _complete(self, body: dict[str, Any], fault: Fault | None, running: contextlib.ExitStack) -> None:
        """`running` is closed before the last event is sent: its reader may begin the next request at once."""
        fake = self.server_of_ours
        if fault is not None and fault.kind == "status":
            self._answer(fault.status, {"error": {"message": fault.message}}, fault.headers)
            return
        if refused := _why_refused(fake, body):
            self._answer(refused[0], {"error": {"message": refused[1]}})
            return
        if fault is not None and fault.kind == "slow_start":
            fake.released.wait(fault.seconds)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        events = _vllm_events(fake, body) if fake.kind == "vllm" else _sglang_events(fake, body)
        num_sent = 0
        for num_tokens, event in events:
            if fault is not None and fault.kind != "slow_start" and num_sent >= fault.after:
                self._fail(fault, event)
                return
            fake.released.wait(fake.token_seconds * num_tokens)
            if event["choices"][0]["finish_reason"] if fake.kind == "vllm" else event["meta_info"]["finish_reason"]:
                running.close()
            self._send(_line(fake.alter(event)))
            num_sent += num_tokens
        self._send(b"data: [DONE]\n\n")
        self._send(b"")

    def _fail(self, fault: Fault, event: dict[str, Any]) -> None:
        half = _line(event)[: len(json.dumps(event)) // 2]
        pieces = {
            "half_line": [half, b""],
            "clean_end": [b""],
            "no_tokens": [b"data: [DONE]\n\n", b""],
            "garbage": [half + b"\n\n"],
            "abort": [_line(_aborted(self.server_of_ours, event))],
            "error_event": [_line({"error": {"message": fault.message, "code": fault.status}})],
        }
        for piece in pieces.get(fault.kind, []):
            self._send(piece)
        if fault.kind == "cut":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif fault.kind == "stall":
            self.server_of_ours.released.wait(60)
        self.close_connection = True

    def _send(self, piece: bytes) -> None:
        self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        self.wfile.flush()

    def _answer(self, status: int, content: Any, headers: dict[str, str] | None = None) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)


def _line(event: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(event, ensure_ascii=False).encode() + b"\n\n"


def _ordered(fake: FakeServer, path: str, body: Any) -> tuple[int, Any] | None:
    """Do what changes the server; None where this kind of server has no such route."""
    assert fake.load is not None
    done: tuple[int, dict[str, Any]] = (200, {"success": True, "message": "done"})
    try:
        if path in ("/v1/load_lora_adapter", "/load_lora_adapter") and path.startswith("/v1") == (fake.kind == "vllm"):
            fake.adapters[body["lora_name"]] = fake.load(body["lora_path"])
            return done
        if path in ("/v1/unload_lora_adapter", "/unload_lora_adapter"):
            del fake.adapters[body["lora_name"]]
            return done
        if fake.kind == "sglang" and path == "/update_weights_from_disk":
            fake.logits = fake.load(body["model_path"])
            if body["flush_cache"]:
                fake.prefix_cache.clear()
            return done
        if fake.kind == "sglang" and path == "/flush_cache":
            if fake.num_running:
                return 400, "Failed to flush cache: requests are running."
            fake.prefix_cache.clear()
            return 200, "Cache flushed."
        if fake.kind == "vllm" and path == "/collective_rpc" and body["method"] == "reload_weights":
            assert fake.is_paused and fake.num_running == 0
            fake.logits = fake.load(body["kwargs"]["weights_path"])
            return 200, {"results": [None]}
    except OSError as error:
        return (500 if fake.kind == "vllm" else 400), {"success": False, "error": {"message": str(error)}}
    if fake.kind == "vllm" and path in ("/pause?mode=wait", "/resume"):
        fake.is_paused = path != "/resume"
        return 200, {"status": "done"}
    if fake.kind == "vllm" and path == "/reset_prefix_cache":
        fake.prefix_cache.clear()
        return done
    return None


def _why_refused(fake: FakeServer, body: dict[str, Any]) -> tuple[int, str] | None:
    """What the real servers refuse."""
    if fake.kind == "vllm":
        params, prompt, wanted = body, body["prompt"], body["max_tokens"]
        if body["model"] != fake.model and body["model"] not in fake.adapters:
            return 404, f"The model `{body['model']}` does not exist."
        longest = fake.max_model_len or math.inf
    else:
        params, prompt = body["sampling_params"], body["input_ids"]
        wanted = params["max_new_tokens"]
        longest = (fake.max_model_len or math.inf) - 1
    if wanted < 1:
        return 400, f"max_tokens must be at least 1, got {wanted}."
    if len(prompt) + wanted > longest:
        return 400, f"This model's maximum context length is {longest} tokens."
    if not 0 <= params["temperature"] <= 2 or not 0 < params["top_p"] <= 1:
        return 400, "temperature must be in [0, 2], top_p in (0, 1]"
    return None


def _chunks(
    fake: FakeServer, prompt: list[int], params: dict[str, Any], num_most: int, adapter: str | None
) -> Iterator[list[tuple[int, float, str | None]]]:
    """Of each token: id, log-probability, and why it is the last."""
    context, chunk = list(prompt), []
    own = () if params["ignore_eos"] else fake.server_eos
    stops = set(own) | (set() if params["ignore_eos"] and fake.kind == "sglang" else set(params["stop_token_ids"]))
    for number in range(num_most):
        token_id, logprob = fake.draw(context, params, adapter)
        context.append(token_id)
        reason = "stop" if token_id in stops else "length" if number == num_most - 1 else None
        chunk.append((token_id, logprob, reason))
        if len(chunk) >= fake.chunk_size or reason:
            yield chunk
            chunk = []
        if reason:
            return


def _vllm_events(fake: FakeServer, body: dict[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    is_first = True
    adapter = body["model"] if body["model"] in fake.adapters else None
    for chunk in _chunks(fake, body["prompt"], body, body["max_tokens"], adapter):
        reason = chunk[-1][2]
        is_ours = chunk[-1][0] in body["stop_token_ids"]
        choice = {
            "index": 0,
            "text": LINE_ENDS,
            "logprobs": {"token_logprobs": [max(logprob, -9999.0) for _, logprob, _ in chunk]},
            "finish_reason": reason,
            "stop_reason": chunk[-1][0] if reason == "stop" and is_ours else None,
            "prompt_token_ids": body["prompt"] if is_first else None,
            "token_ids": [token_id for token_id, _, _ in chunk],
        }
        is_first = False
        yield len(chunk), {"id": "cmpl-1", "object": "text_completion", "model": fake.model, "choices": [choice]}


def _sglang_events(fake: FakeServer, body: dict[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    params = body["sampling_params"]
    listed: list[list[Any]] = []
    for chunk in _chunks(fake, body["input_ids"], params, params["max_new_tokens"], body.get("lora_path")):
        listed += [[logprob, token_id, None] for token_id, logprob, _ in chunk]
        reason = chunk[-1][2]
        finish: dict[str, Any] | None = None
        if reason == "stop":
            finish = {"type": "stop", "matched": chunk[-1][0]}
        elif reason == "length":
            finish = {"type": "length", "length": params["max_new_tokens"]}
        meta = {
            "id": "1",
            "finish_reason": finish,
            "prompt_tokens": len(body["input_ids"]),
            "completion_tokens": len(listed),
            "output_token_logprobs": list(listed),
        }
        yield len(chunk), {"text": LINE_ENDS, "output_ids": [entry[1] for entry in listed], "meta_info": meta}


def _aborted(fake: FakeServer, event: dict[str, Any]) -> dict[str, Any]:
    if fake.kind == "vllm":
        choice = {**event["choices"][0], "finish_reason": "abort"}
        return {**event, "choices": [choice]}
    finish = {"type": "abort", "message": "shutting down", "status_code": 503}
    return {**event, "meta_info": {**event["meta_info"], "finish_reason": finish}}


def _log_softmax(logits: Sequence[float]) -> list[float]:
    total = math.log(sum(math.exp(logit) for logit in logits))
    return [logit - total for logit in logits]


def main() -> None:
    """Serve until killed, as the server that -m names; words that it does not know are taken and left alone."""
    parser = argparse.ArgumentParser()
    parser.add_argument("-m", dest="module", required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--uds", default="")
    parser.add_argument("--config")
    parser.add_argument("--served-model-name", required=True)
    known, _ = parser.parse_known_args()
    print("started with", *sys.argv[1:], flush=True)
    key = json.loads(Path(known.config).read_text())["api-key"] if known.config else ""
    print("its key is", key, flush=True)
    kind: Any = known.module.partition(".")[0]
    place: Any = {"port": known.port, "uds": known.uds}
    server = FakeServer(kind, model=known.served_model_name, key=key, **place)
    with server, contextlib.suppress(KeyboardInterrupt):
        while True:
            time.sleep(1)


if __name__ == "__main__":
    main()
