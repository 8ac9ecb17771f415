"""The engine over model servers: requests, retries, fail-over, deadlines, back-pressure, cancellation.

Knows HTTP and token ids; how one kind of server is spoken to is a `Dialect`, in a file of its own. Nothing of text, tools
or rewards.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import hashlib
import importlib.util
import ipaddress
import math
import os
import re
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from midthought.errors import EngineError, MissingExtraError, SettingsError
from midthought.inference.endpoints import Endpoint, Endpoints, Recording
from midthought.inference.engine import Sampling, Stopper
from midthought.inference.server_checks import compare_tokenizers, find_model, try_recording, warn_of_recording
from midthought.inference.server_streams import Dialect, Draft, EventSplitter, Interrupted, refusal, take_events, words
from midthought.types import Completion, Finish

if TYPE_CHECKING:
    import httpx


@dataclass(frozen=True, kw_only=True, slots=True)
class Patience:
    """How long to wait for a server, and how often to try again. Everything that waits has a deadline."""

    connect_timeout_seconds: float = 10.0
    first_token_timeout_seconds: float = 300.0
    """From sending a request to its first token: the server's queue and the prompt."""
    next_token_timeout_seconds: float = 60.0
    """From one token to the next; also for answers that hold no tokens."""
    total_timeout_seconds: float = 3600.0
    """Of one `sample`, with its turn here, all its requests and the pauses between them."""
    max_attempts: int = 10
    """Requests in a row that fail without a single new token before `sample` gives up. Status 429 is no failure."""
    pause_seconds: float = 0.5
    """A server's rest after its first failure; see `Endpoints`."""
    max_pause_seconds: float = 30.0

    def __post_init__(self) -> None:
        for limit in dataclasses.fields(self):
            value = getattr(self, limit.name)
            if not (isinstance(value, int | float) and 0 < value < math.inf):
                raise SettingsError(f"{limit.name}={value!r}: give a finite number above 0")


class _Session:
    """What belongs to one event loop; an engine may outlive several."""

    def __init__(self, client: httpx.AsyncClient, endpoints: Sequence[Endpoint], max_num_seqs: int) -> None:
        self.client = client
        self.places = {endpoint: asyncio.Semaphore(max_num_seqs) for endpoint in endpoints}
        self.asking = {endpoint: asyncio.Lock() for endpoint in endpoints}


class ServerEngine:
    """Samples from one model that one or several servers hold. Implements `midthought.inference.engine.Engine`.

    Every token that arrives is kept and shown to the stopper at once. A request that breaks is not begun again: the next
    one, to the same server or another, continues from the prompt and the tokens kept so far. So no token counts twice, and
    long completions are not given up more often than short ones; but the rest has another seed than it would have had.
    Every request's seed follows from (seed, position of its first token): a run repeats as far as the server does.

    Log-probabilities are those of the distribution sampled from. At temperature 0 or 1 and top_p 1 every server gives
    them; for anything else each server is tried out once, and where it gives others a warning says so and NaN is
    recorded, which leaves the token out of the loss. NaN also stands for an end-of-sequence token that a server names
    but does not list.

    Args:
        base_url: `http://HOST:PORT` of the server, or several of the same model.
        model: the name that it is served under, or the path that it was loaded from.
        eos_token_ids: the tokens that end a sequence; what a server takes for one beside them does not count.
        probe: a text and its ids under our tokenizer, to compare with the servers'.
        max_seq_len: most tokens of a sequence, prompt included; the servers' own limit where that is smaller.
        max_num_seqs: most requests on their way to each server; further ones wait here.
        api_key_env: the environment variable that holds the servers' key.
    """

    dialect: ClassVar[Dialect]
    policy_version = 0

    def __init__(
        self,
        base_url: str | Sequence[str],
        model: str,
        *,
        eos_token_ids: Sequence[int] | frozenset[int],
        probe: tuple[str, Sequence[int]] | None = None,
        max_seq_len: int | None = None,
        max_num_seqs: int = 128,
        api_key_env: str | None = None,
        patience: Patience | None = None,
    ) -> None:
        self.require_httpx()
        if max_num_seqs < 1 or (max_seq_len is not None and max_seq_len < 2):
            raise SettingsError(
                f"max_num_seqs={max_num_seqs}, max_seq_len={max_seq_len}: "
                "an engine needs room for at least one sequence of two tokens"
            )
        self.model = model
        self.eos_token_ids = frozenset(eos_token_ids)
        self.patience = patience or Patience()
        self._endpoints = Endpoints(
            [base_url] if isinstance(base_url, str) else base_url,
            pause_seconds=self.patience.pause_seconds,
            max_pause_seconds=self.patience.max_pause_seconds,
        )
        self._probe = probe
        self._max_seq_len = max_seq_len
        self._max_num_seqs = max_num_seqs
        self._key = _key(api_key_env)
        self._sessions: dict[asyncio.AbstractEventLoop, _Session] = {}
        self._running: dict[int, asyncio.Task[Completion]] = {}

    @classmethod
    def require_httpx(cls) -> None:
        """Raise MissingExtraError where httpx is not installed."""
        if importlib.util.find_spec("httpx") is None:
            raise MissingExtraError("httpx", cls.dialect.name)

    # -- the contract ------------------------------------------------------------------------------------------

    async def sample(
        self, episode: int, token_ids: Sequence[int], sampling: Sampling, *, stopper: Stopper | None = None
    ) -> Completion:
        """Continue `token_ids` until the stopper, an end-of-sequence token, `max_tokens` or `max_seq_len` ends it.

        The request is closed there, which ends it on the server; whole tokens that had arrived beyond are cut and counted.
        Cancelling the caller cancels the request.

        Raises EngineError where `token_ids` is empty, the episode is being sampled already, a server refuses the request,
        or none completes it within the engine's patience.
        """
        if not token_ids:
            raise EngineError(f"episode {episode}: nothing to continue; give at least one token id")
        if episode in self._running:
            raise EngineError(f"episode {episode} is being sampled already; await its completion first")
        draft = Draft(list(token_ids), sampling, self.eos_token_ids, stopper)
        task = asyncio.ensure_future(self._complete(episode, draft))
        self._running[episode] = task
        try:
            return await task
        finally:
            del self._running[episode]

    def open(self, episode: int) -> None:
        """A new sequence; any server may have it."""
        self._endpoints.forget(episode)

    def close(self, episode: int) -> None:
        """The episode has ended. A sample that is still on its way is cancelled."""
        self._endpoints.forget(episode)
        if episode in self._running:
            self._running[episode].cancel()

    async def check(self) -> None:
        """Ask every server at once for its models and its tokenizer.

        Raises EngineError where none answers (where only some do, a warning: the others are asked when they do),
        SettingsError where one serves other models, or has another tokenizer.
        """
        session, endpoints = self._session(), self._endpoints.all
        asked = [self._get_to_know(session, endpoint) for endpoint in endpoints]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        silent = []
        for endpoint, answer in zip(endpoints, answers, strict=True):
            if isinstance(answer, Interrupted):
                silent.append(f"{endpoint.url}: {answer}")
            elif isinstance(answer, BaseException):
                raise answer
        if len(silent) == len(endpoints):
            raise EngineError(f"no server answers ({'; '.join(silent)}); start one, or give another base_url")
        if silent:
            warnings.warn(f"not all servers answer; going on without {'; '.join(silent)}", stacklevel=2)

    # -- one completion, of one or several requests ------------------------------------------------------------

    async def _complete(self, episode: int, draft: Draft) -> Completion:
        seconds = self.patience.total_timeout_seconds
        try:
            async with asyncio.timeout(seconds) as deadline:
                await self._request_until_finished(episode, draft)
        except TimeoutError:
            if not deadline.expired():
                raise
            raise self._failure(episode, draft, f"not complete after {seconds:g} s") from None
        assert draft.finish is not None
        return Completion(
            token_ids=tuple(draft.token_ids),
            sampled_logprobs=tuple(draft.logprobs),
            finish=draft.finish,
            policy_version=self.policy_version,
            num_cut=draft.num_cut,
        )

    async def _request_until_finished(self, episode: int, draft: Draft) -> None:
        num_failures = 0
        while draft.finish is None:
            num_kept = len(draft.token_ids)
            endpoint = await self._endpoints.take(episode)
            endpoint.num_taken += 1
            try:
                await self._request(endpoint, draft)
            except Interrupted as fault:
                num_failures = 0 if len(draft.token_ids) > num_kept else num_failures
                num_failures += not fault.is_busy
                if num_failures >= self.patience.max_attempts:
                    raise self._failure(episode, draft, f"{num_failures} requests failed in a row") from None
            finally:
                endpoint.num_taken -= 1

    def _failure(self, episode: int, draft: Draft, what: str) -> EngineError:
        reasons = "; ".join(f"{server.url}: {server.last_error or 'no error'}" for server in self._endpoints.all)
        return EngineError(f"episode {episode}: {what}; {len(draft.token_ids)} tokens came ({reasons})")

    async def _request(self, endpoint: Endpoint, draft: Draft) -> None:
        """One request in its turn: it finishes the draft, adds to it, or raises Interrupted and lets the server rest."""
        session = self._session()
        async with session.places[endpoint]:
            begun_at = time.monotonic()
            if endpoint.free_at > begun_at:
                return
            try:
                await self._know(session, endpoint)
                num_left = draft.sampling.max_tokens - len(draft.token_ids)
                room = min(num_left, endpoint.max_seq_len - len(draft.prompt) - len(draft.token_ids))
                if room <= 0:
                    draft.finish = Finish.LENGTH
                    return
                draft.is_exact = await self._records_exactly(session, endpoint, draft)
                await self._stream(session, endpoint, draft, room)
            except Interrupted as fault:
                self._endpoints.failed(
                    endpoint, str(fault), begun_at=begun_at, is_busy=fault.is_busy, wait_seconds=fault.wait_seconds
                )
                raise

    async def _stream(self, session: _Session, endpoint: Endpoint, draft: Draft, room: int) -> None:
        """Send one request and take its tokens as they come. Leaving closes the connection, which cancels the request."""
        import httpx

        num_before = num_kept = len(draft.token_ids)
        token_ids = [*draft.prompt, *draft.token_ids]
        seed = _request_seed(draft.sampling.seed, len(token_ids))
        sampling = dataclasses.replace(draft.sampling, max_tokens=room, seed=seed)
        body = self.dialect.body(endpoint.model or self.model, token_ids, sampling, sorted(draft.eos_token_ids))
        read = self.dialect.reader(token_ids)
        splitter, seconds = EventSplitter(), self.patience.first_token_timeout_seconds
        try:
            async with (
                asyncio.timeout(seconds) as deadline,
                session.client.stream("POST", endpoint.url + self.dialect.path, json=body) as response,
                contextlib.aclosing(response.aiter_bytes()) as pieces,  # type: ignore[type-var]
            ):
                if response.status_code != 200:
                    await response.aread()
                    raise refusal(response)
                async for piece in pieces:
                    has_ended = take_events(splitter.feed(piece), read, draft)
                    if len(draft.token_ids) > num_kept:
                        num_kept, seconds = len(draft.token_ids), self.patience.next_token_timeout_seconds
                        deadline.reschedule(asyncio.get_running_loop().time() + seconds)
                        self._endpoints.succeeded(endpoint)
                    if has_ended:
                        break
                else:
                    where = "in mid-line" if splitter.is_in_line else "before the completion did"
                    raise Interrupted(f"the stream ended {where}")
        except TimeoutError:
            if not deadline.expired():
                raise
            raise Interrupted(f"no token for {seconds:g} s") from None
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise Interrupted(_named(error)) from None
        if draft.finish is None and num_kept == num_before:
            raise Interrupted("the stream ended without a token")

    # -- what is known of a server -----------------------------------------------------------------------------

    async def _know(self, session: _Session, endpoint: Endpoint) -> None:
        """See that the server was asked for its model, once."""
        if endpoint.model is not None:
            return
        async with session.asking[endpoint]:
            try:
                if endpoint.model is None:
                    await self._get_to_know(session, endpoint)
            except SettingsError as error:
                if len(self._endpoints.all) == 1:
                    raise
                raise Interrupted(str(error)) from None

    async def _get_to_know(self, session: _Session, endpoint: Endpoint) -> None:
        ask = functools.partial(self._ask, session, endpoint)
        name, length = await find_model(ask, endpoint.url, self.model)
        if self._probe is not None:
            await compare_tokenizers(ask, endpoint.url, name, *self._probe)
        lengths = [length - self.dialect.num_spare_tokens] if length is not None else []
        lengths += [self._max_seq_len] if self._max_seq_len is not None else []
        if not lengths:
            raise SettingsError(f"{endpoint.url} does not say how long a sequence may be; give max_seq_len")
        endpoint.model, endpoint.max_seq_len = name, min(lengths)

    async def _records_exactly(self, session: _Session, endpoint: Endpoint, draft: Draft) -> bool:
        """Whether this server's log-probabilities are those of the distribution that the draft is sampled from."""
        if Recording(temperature=False, nucleus=False).covers(draft.sampling):
            return True
        async with session.asking[endpoint]:
            if endpoint.recording is None:
                logprob = functools.partial(self._logprob, session, endpoint)
                endpoint.recording = await try_recording(logprob, draft.prompt)
                if not endpoint.recording.covers(draft.sampling):
                    warn_of_recording(endpoint, draft.sampling.temperature, draft.sampling.top_p)
        return endpoint.recording.covers(draft.sampling)

    async def _logprob(
        self, session: _Session, endpoint: Endpoint, prompt: Sequence[int], temperature: float, top_p: float
    ) -> float:
        """What the server records for one token."""
        draft = Draft(prompt, Sampling(max_tokens=1, temperature=temperature, top_p=top_p), frozenset())
        await self._stream(session, endpoint, draft, room=1)
        return draft.logprobs[0]

    # -- HTTP --------------------------------------------------------------------------------------------------

    def _session(self) -> _Session:
        """The client of the running event loop."""
        import httpx

        loop = asyncio.get_running_loop()
        if loop not in self._sessions:
            self._sessions = {each: session for each, session in self._sessions.items() if not each.is_closed()}
            client = httpx.AsyncClient(
                headers={"Accept-Encoding": "identity"}
                | ({"Authorization": f"Bearer {self._key}"} if self._key else {}),
                timeout=httpx.Timeout(None, connect=self.patience.connect_timeout_seconds),
                # Nobody would close idle connections when the loop ends.
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
                # A proxy cannot reach this machine's own ports.
                trust_env=not all(_is_loopback(endpoint.url) for endpoint in self._endpoints.all),
            )
            self._sessions[loop] = _Session(client, self._endpoints.all, self._max_num_seqs)
        return self._sessions[loop]

    async def _ask(self, session: _Session, endpoint: Endpoint, method: str, path: str, body: Any) -> httpx.Response:
        """A question that is answered in one piece."""
        import httpx

        seconds = self.patience.next_token_timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                return await session.client.request(method, endpoint.url + path, json=body)
        except TimeoutError:
            raise Interrupted(f"no answer for {seconds:g} s") from None
        except httpx.HTTPError as error:
            raise Interrupted(_named(error)) from None


def _request_seed(seed: int, position: int) -> int:
    """63 bits that follow from an episode's seed and the position that a request samples first: spans must not share
    their random numbers, and servers know seeds of requests only."""
    return int.from_bytes(hashlib.blake2b(f"{seed} {position}".encode(), digest_size=8).digest()) >> 1


def _named(error: Exception) -> str:
    return words(f"{type(error).__name__}: {error}")


def _key(api_key_env: str | None) -> str:
    if api_key_env is None:
        return ""
    key = os.environ.get(api_key_env, "")
    if not re.fullmatch(r"[!-~]+", key):
        raise SettingsError(
            f"the environment variable {api_key_env} (api_key_env) is not set, or holds what no key holds "
            "(blanks, line ends); put the key there"
        )
    return key


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
