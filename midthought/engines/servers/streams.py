"""What comes back from a model server: server-sent events, read by the server's `Dialect`, become one completion.

Knows bytes, JSON and token ids; nothing of connections, retries or text.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from midthought.engines.engine import Sampling, Stopper
from midthought.errors import EngineError
from midthought.types import Finish

if TYPE_CHECKING:
    import httpx

MAX_LINE_BYTES = 64 * 2**20
"""A longer line is taken as broken."""


class Interrupted(Exception):
    """A request that came to nothing, or not to its end; another one may do better. Never leaves the engine."""

    def __init__(self, reason: str, *, is_busy: bool = False, wait_seconds: float = 0.0, is_gone: bool = False) -> None:
        super().__init__(reason)
        self.is_busy = is_busy
        """The server is well, and asks to be left alone for a while."""
        self.wait_seconds = wait_seconds
        """How long; 0 where it does not say."""
        self.is_gone = is_gone
        """The connection broke: the server may have ended, and another one, begun anew, may answer there later."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """What one event says."""

    token_ids: Sequence[int]
    """New tokens only."""
    logprobs: Sequence[float]
    """As many; NaN where the server gave none."""
    ended_by: Literal["length", "stop"] | None = None
    """Why nothing follows; None where something may."""
    stop_token_id: int | None = None
    """The token that stopped it, listed in `token_ids` or not; None where the server does not say."""


@dataclass(slots=True)
class PartialCompletion:
    """A completion on its way. Tokens are kept as they come, each exactly once, over all requests that it takes."""

    prompt: Sequence[int]
    sampling: Sampling
    eos_token_ids: frozenset[int]
    stopper: Stopper | None = None
    is_exact: bool = True
    """False where the log-probabilities that come are not those of the distribution that is sampled from."""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: Finish | None = None
    num_cut: int = 0

    def add(self, chunk: Chunk) -> None:
        """Keep the tokens up to the one that ends the completion; those after it are cut and counted."""
        for token_id, logprob in zip(chunk.token_ids, chunk.logprobs, strict=True):
            if self.finish is None:
                self._add_token(token_id, logprob)
            else:
                self.num_cut += 1
        if self.finish is None and chunk.ended_by == "length":
            self.finish = Finish.LENGTH
        if self.finish is None and chunk.stop_token_id in self.eos_token_ids:
            self._add_token(chunk.stop_token_id, math.nan)

    def _add_token(self, token_id: int, logprob: float) -> None:
        self.token_ids.append(token_id)
        self.logprobs.append(logprob if self.is_exact else math.nan)
        if token_id in self.eos_token_ids:
            self.finish = Finish.END
        elif self.stopper is not None and self.stopper.feed(token_id):
            self.finish = Finish.CALL
        elif len(self.token_ids) >= self.sampling.max_tokens:
            self.finish = Finish.LENGTH


class EventSplitter:
    """Cuts a stream of bytes into the payloads of its events, however it arrives.

    Lines end at line feeds only: the JSON in them may hold U+2028 and other characters that text readers take for one.
    """

    def __init__(self) -> None:
        self._line = bytearray()

    def feed(self, piece: bytes) -> list[bytes]:
        """The payloads that this piece completes."""
        *lines, rest = piece.split(b"\n")
        if lines:
            lines[0] = bytes(self._line) + lines[0]
            self._line.clear()
        self._line += rest
        if len(self._line) > MAX_LINE_BYTES:
            raise Interrupted(f"a line of more than {MAX_LINE_BYTES} bytes")
        return [line[len(b"data:") :].strip() for line in lines if line.startswith(b"data:")]

    @property
    def is_in_line(self) -> bool:
        """Whether a line has begun that has not ended."""
        return bool(self._line)


def take_events(payloads: Sequence[bytes], read: Callable[[dict[str, Any]], Chunk], draft: PartialCompletion) -> bool:
    """Add what arrived together to the draft; True where nothing more of this stream is wanted.

    Raises Interrupted where it says that it broke, or cannot be read; EngineError where the server refuses.
    """
    has_ended = False
    for payload in payloads:
        try:
            chunk = _read(payload, read)
        except (Interrupted, EngineError):
            if has_ended:
                break
            raise
        draft.add(chunk)
        has_ended = has_ended or chunk.ended_by is not None or draft.finish is not None
    return has_ended


def _read(payload: bytes, read: Callable[[dict[str, Any]], Chunk]) -> Chunk:
    if payload == b"[DONE]":
        raise Interrupted("the stream ended before the completion did")
    try:
        event = json.loads(payload)
        if isinstance(event, dict) and (event.get("error") or event.get("object") == "error"):
            raise _error_in(event)
        chunk = read(event)
        if len(chunk.token_ids) != len(chunk.logprobs):
            raise ValueError(f"{len(chunk.token_ids)} tokens but {len(chunk.logprobs)} log-probabilities")
        if not all(type(token_id) is int and token_id >= 0 for token_id in chunk.token_ids):
            raise ValueError("a token id that is no whole number")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise Interrupted(
            f"an event that cannot be read ({words(str(error))}): {words(payload.decode(errors='replace'))}"
        ) from None
    return chunk


def _error_in(event: dict[str, Any]) -> Exception:
    """What an error that arrives within a stream means."""
    error = event["error"] if isinstance(event.get("error"), dict) else event
    code = error.get("code")
    is_refusal = isinstance(code, int) and 400 <= code < 500 and code not in (408, 429)
    message = words(str(error.get("message") or error))
    return EngineError(f"the server refuses the request ({code}): {message}") if is_refusal else Interrupted(message)


def refusal(response: httpx.Response) -> Exception:
    """What a status other than 200 means: Interrupted where another request may do better, else EngineError."""
    status, url = response.status_code, response.request.url
    wait = response.headers.get("retry-after", "")
    wait_seconds = float(wait) if re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,3})?", wait) else 0.0
    if status in (401, 403):
        return EngineError(f"{url} wants a key (status {status}); name the variable that holds it as api_key_env")
    said = words(_message(response))
    if status in (408, 429) or status >= 500:
        is_busy = status == 429 or (status == 503 and wait_seconds > 0)
        return Interrupted(f"status {status}: {said}", is_busy=is_busy, wait_seconds=wait_seconds)
    return EngineError(f"{url} refuses the request (status {status}): {said}")


def _message(response: httpx.Response) -> str:
    try:
        answer = response.json()
        error = answer.get("error", answer)
        return str(error.get("message") or error) if isinstance(error, dict) else str(error)
    except (ValueError, AttributeError, RecursionError):
        return response.text


def words(text: str) -> str:
    """The beginning of a text from outside, on one line."""
    return " ".join(text[:2000].split())[:300]
