"""Assembles a completion from a model server's stream of server-sent events. Does not depend on connections or text."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from midthought.engines.engine import Sampling, Stopper
from midthought.errors import EngineError
from midthought.types import Completion, Finish

if TYPE_CHECKING:
    import httpx

MAX_LINE_BYTES = 64 * 2**20
"""A longer line is an error."""


class RetryableError(Exception):
    """A request failed or stopped early, but another one may succeed. The engine never raises it to its caller."""

    def __init__(
        self, reason: str, *, is_busy: bool = False, wait_seconds: float = 0.0, is_disconnected: bool = False
    ) -> None:
        super().__init__(reason)
        self.is_busy = is_busy
        """The server works, and asks for a pause."""
        self.wait_seconds = wait_seconds
        """Length of that pause; 0 if the server does not say."""
        self.is_disconnected = is_disconnected
        """The connection broke: the server may have ended, and a restarted one may answer later."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """Content of one event."""

    token_ids: Sequence[int]
    """New tokens only."""
    logprobs: Sequence[float]
    """One per token; NaN if the server returned none."""
    ended_by: Literal["length", "stop"] | None = None
    """Finish reason; None if more events may follow."""
    stop_token_id: int | None = None
    """The stop token, whether or not it is in `token_ids`; None if the server does not report it."""


@dataclass(frozen=True, slots=True)
class LogprobMode:
    """Which sampling settings a server's log-probabilities include."""

    temperature: bool = False
    truncation: bool = False
    """Normalized over the tokens that `top_p`, `top_k` and `min_p` keep."""

    def covers(self, sampling: Sampling) -> bool:
        """Whether the log-probabilities refer to the sampling distribution; for greedy sampling, at temperature 1."""
        if sampling.temperature == 0:
            return True
        is_whole = sampling.top_p == 1 and sampling.top_k == 0 and sampling.min_p == 0
        return (self.temperature or sampling.temperature == 1) and (self.truncation or is_whole)


@dataclass(slots=True)
class PartialCompletion:
    """An unfinished completion. Collects each token exactly once, over all requests that it needs."""

    prompt: Sequence[int]
    sampling: Sampling
    eos_token_ids: frozenset[int]
    stopper: Stopper | None = None
    is_exact: bool = True
    """False if the server's log-probabilities do not refer to the sampling distribution: NaN is recorded instead."""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: Finish | None = None
    num_cut: int = 0

    def add(self, chunk: Chunk) -> None:
        """Adds the tokens up to the one that ends the completion; later ones are cut and counted."""
        for token_id, logprob in zip(chunk.token_ids, chunk.logprobs, strict=True):
            if self.finish is None:
                self._add_token(token_id, logprob)
            else:
                self.num_cut += 1
        if self.finish is None and chunk.ended_by == "length":
            self.finish = Finish.LENGTH
        if self.finish is None and chunk.stop_token_id in self.eos_token_ids:
            self._add_token(chunk.stop_token_id, math.nan)

    def completion(self, policy_version: int) -> Completion:
        """Returns the finished completion."""
        assert self.finish is not None
        return Completion(
            token_ids=tuple(self.token_ids),
            sampled_logprobs=tuple(self.logprobs),
            finish=self.finish,
            policy_version=policy_version,
            num_cut=self.num_cut,
        )

    def _add_token(self, token_id: int, logprob: float) -> None:
        self.token_ids.append(token_id)
        self.logprobs.append(logprob if self.is_exact else math.nan)
        stopper = self.stopper  # another thread may remove it
        if token_id in self.eos_token_ids:
            self.finish = Finish.END
        elif stopper is not None and stopper.feed(token_id):
            self.finish = Finish.CALL
        elif len(self.token_ids) >= self.sampling.max_tokens:
            self.finish = Finish.LENGTH


class EventSplitter:
    """Splits a stream of bytes into the payloads of its events, whatever the size of the pieces.

    Only line feeds end lines: the JSON may contain U+2028 and other characters that text readers treat as line ends.
    """

    def __init__(self) -> None:
        self._line = bytearray()

    def feed(self, piece: bytes) -> list[bytes]:
        """Returns the payloads that this piece completes."""
        *lines, rest = piece.split(b"\n")
        if lines:
            lines[0] = bytes(self._line) + lines[0]
            self._line.clear()
        self._line += rest
        if len(self._line) > MAX_LINE_BYTES:
            raise RetryableError(f"a line of more than {MAX_LINE_BYTES} bytes")
        return [line[len(b"data:") :].strip() for line in lines if line.startswith(b"data:")]


def add_events(payloads: Sequence[bytes], read: Callable[[dict[str, Any]], Chunk], draft: PartialCompletion) -> bool:
    """Adds the events to the draft. Returns True if the rest of the stream is not needed.

    Raises `RetryableError` if an event reports a failure or cannot be read, `EngineError` if the server refuses the request.
    """
    has_ended = False
    for payload in payloads:
        try:
            chunk = _read(payload, read)
        except (RetryableError, EngineError):
            if has_ended:
                break
            raise
        draft.add(chunk)
        has_ended = has_ended or chunk.ended_by is not None or draft.finish is not None
    return has_ended


def _read(payload: bytes, read: Callable[[dict[str, Any]], Chunk]) -> Chunk:
    if payload == b"[DONE]":
        raise RetryableError("the stream ended before the completion did")
    try:
        event = json.loads(payload)
        if isinstance(event, dict) and (event.get("error") or event.get("object") == "error"):
            raise _error_in(event)
        chunk = read(event)
        if len(chunk.token_ids) != len(chunk.logprobs):
            raise ValueError(f"{len(chunk.token_ids)} tokens but {len(chunk.logprobs)} log-probabilities")
        if not all(type(token_id) is int and token_id >= 0 for token_id in chunk.token_ids):
            raise ValueError("a token id that is not a non-negative integer")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise RetryableError(
            f"an event that cannot be read ({words(str(error))}): {words(payload.decode(errors='replace'))}"
        ) from None
    return chunk


def _error_in(event: dict[str, Any]) -> Exception:
    """Returns the exception for an error event within a stream."""
    error = event["error"] if isinstance(event.get("error"), dict) else event
    code = error.get("code")
    is_refusal = isinstance(code, int) and 400 <= code < 500 and code not in (408, 429)
    message = words(str(error.get("message") or error))
    return EngineError(f"the server refuses the request ({code}): {message}") if is_refusal else RetryableError(message)


def response_error(response: httpx.Response) -> Exception:
    """Returns the exception for a status other than 200: `RetryableError` if another request may succeed, else `EngineError`."""
    status, url = response.status_code, response.request.url
    wait = response.headers.get("retry-after", "")
    wait_seconds = float(wait) if re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,3})?", wait) else 0.0
    if status in (401, 403):
        return EngineError(f"{url} requires an API key (status {status}); store it in a variable and set api_key_env")
    said = words(_message(response))
    if status in (408, 429) or status >= 500:
        is_busy = status == 429 or (status == 503 and wait_seconds > 0)
        return RetryableError(f"status {status}: {said}", is_busy=is_busy, wait_seconds=wait_seconds)
    return EngineError(f"{url} refuses the request (status {status}): {said}")


def _message(response: httpx.Response) -> str:
    try:
        answer = response.json()
        error = answer.get("error", answer)
        return str(error.get("message") or error) if isinstance(error, dict) else str(error)
    except (ValueError, AttributeError, RecursionError):
        return response.text


def words(text: str) -> str:
    """Returns the first 300 characters of a server's text, on one line."""
    return " ".join(text[:2000].split())[:300]
