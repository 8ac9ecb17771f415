"""The engine over model servers: requests, retries, fail-over, deadlines, back-pressure, cancellation, new weights.

Knows token ids and what servers do; how one kind of server is spoken to is a `Dialect`, in a file of its own. Nothing of
text, tools or rewards.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import hashlib
import math
import time
import warnings
from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar

from midthought.engines.engine import Sampling, Stopper
from midthought.engines.servers.checks import compare_tokenizers, find_model, try_recording, why_not_exact
from midthought.engines.servers.connection import Connections, RetryPolicy, Session, named, require_httpx
from midthought.engines.servers.dialect import Dialect
from midthought.engines.servers.endpoints import Endpoint, Endpoints, Recording
from midthought.engines.servers.publication import Publication
from midthought.engines.servers.streams import EventSplitter, Interrupted, PartialCompletion, refusal, take_events
from midthought.engines.servers.update_lock import UpdateLock
from midthought.errors import EngineError, ServersUnreachableError, SettingsError
from midthought.types import Completion, Finish


class ServerEngine:
    """Samples from one model that one or several servers hold. Implements `midthought.engines.engine.Engine`.

    Every token that arrives is kept and shown to the stopper at once. A request that breaks is not begun again: the next
    one, to the same server or another, continues from the prompt and the tokens kept so far. So no token counts twice, and
    long completions are not given up more often than short ones; but the rest has another seed than it would have had.
    Every request's seed follows from (seed, position of its first token): a run repeats as far as the server does.

    Log-probabilities are those of the distribution sampled from. At temperature 0 or 1, with nothing else changed, every
    server gives them; for anything else each server is tried out once, and where it gives others a warning says so and NaN is
    recorded, which leaves the token out of the loss. NaN also stands for an end-of-sequence token that a server names
    but does not list. With `trains_at`, such a server is refused instead.

    Args:
        base_url: `http://HOST:PORT` of the server, or several of the same model.
        model: the name that it is served under, or the path that it was loaded from.
        eos_token_ids: the tokens that end a sequence; what a server takes for one beside them does not count.
        probe: a text and its ids under our tokenizer, to compare with the servers'.
        max_seq_len: most tokens of a sequence, prompt included; the servers' own limit where that is smaller.
        max_num_seqs: most requests on their way to each server; further ones wait here.
        api_key_env: the environment variable that holds the servers' key.
        trains_at: the temperature of training rollouts; a server that does not return the log-probabilities of that
            distribution is refused with SettingsError when it is first asked for its model.
        max_silence_seconds: how long servers that cannot be reached are waited for while none of them gives a token. A sample
            that fails after that time fails for good. None: `RetryPolicy.max_attempts` alone bounds the wait.
        how_it_ended: says so of a single server that is gone for good, as whoever started it knows; None while it is there.
            Samples fail at once then, where other servers are waited for.
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
        patience: RetryPolicy | None = None,
        trains_at: float | None = None,
        max_silence_seconds: float | None = None,
        how_it_ended: Callable[[], str | None] | None = None,
    ) -> None:
        require_httpx(self.dialect.name)
        if max_num_seqs < 1 or (max_seq_len is not None and max_seq_len < 2):
            raise SettingsError(
                f"max_num_seqs={max_num_seqs}, max_seq_len={max_seq_len}: "
                "an engine needs room for at least one sequence of two tokens"
            )
        self.model = model
        self.eos_token_ids = frozenset(eos_token_ids)
        self.patience = patience or RetryPolicy()
        self._endpoints = Endpoints(
            [base_url] if isinstance(base_url, str) else base_url,
            pause_seconds=self.patience.pause_seconds,
            max_pause_seconds=self.patience.max_pause_seconds,
            max_silence_seconds=math.inf if max_silence_seconds is None else max_silence_seconds,
        )
        self._max_silence_seconds = max_silence_seconds
        self._probe = probe
        self._trains_at = trains_at
        self._max_seq_len = max_seq_len
        self._connections = Connections(
            self._endpoints.all, self.patience, max_num_seqs=max_num_seqs, api_key_env=api_key_env
        )
        self._running: dict[int, asyncio.Task[Completion]] = {}
        self._gate = UpdateLock()
        self._publication: Publication | None = None
        self._how_it_ended = how_it_ended or (lambda: None)

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
        draft = PartialCompletion(list(token_ids), sampling, self.eos_token_ids, stopper)
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
        await self._ask_all(self._get_to_know, "answers")

    async def _ask_all(self, ask: Callable[[Session, Endpoint], Awaitable[None]], what: str) -> None:
        """All servers at once. EngineError where none can be reached, a warning where some cannot; what else goes wrong is
        raised as it is."""
        session, endpoints = self._connections.session(), self._endpoints.all
        asked = [ask(session, endpoint) for endpoint in endpoints]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        silent = []
        for endpoint, answer in zip(endpoints, answers, strict=True):
            if isinstance(answer, Interrupted):
                silent.append(f"{endpoint.url}: {answer}")
            elif isinstance(answer, BaseException):
                raise answer
        if len(silent) == len(endpoints):
            raise ServersUnreachableError(
                f"no server {what} ({'; '.join(silent)}); start one, or give another base_url"
            )
        if silent:
            warnings.warn(f"not every server {what}; going on without {'; '.join(silent)}", stacklevel=2)

    async def publish(self, publication: Publication, policy_version: int) -> None:
        """Have every server load these weights and prove that it computes with them; from now on they are sampled from,
        and completions say so by their `policy_version`.

        New samples wait meanwhile, and those on their way are waited for first: no completion mixes weights. A server that
        cannot be reached loads them when it answers again, before anything is sampled from it; so does one whose
        connections broke, for another process may answer there.

        Raises EngineError where a server refuses or computes something else, or none can be reached for `max_silence_seconds`.
        """
        async with self._gate.changing(self.patience.total_timeout_seconds):
            self._publication = publication
            give_up_at = time.monotonic() + (self._max_silence_seconds or 0.0)
            while True:
                try:
                    await self._ask_all(self._know, "takes the new weights")
                    break
                except ServersUnreachableError:
                    if time.monotonic() >= give_up_at or self._how_it_ended():
                        raise
                await asyncio.sleep(self.patience.pause_seconds)
            self.policy_version = policy_version

    # -- one completion, of one or several requests ------------------------------------------------------------

    async def _complete(self, episode: int, draft: PartialCompletion) -> Completion:
        seconds = self.patience.total_timeout_seconds
        try:
            async with asyncio.timeout(seconds) as deadline, self._gate.sampling():
                version = self.policy_version
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
            policy_version=version,
            num_cut=draft.num_cut,
        )

    async def _request_until_finished(self, episode: int, draft: PartialCompletion) -> None:
        num_failures = 0
        while draft.finish is None:
            if end := self._how_it_ended():
                raise self._failure(episode, draft, end)
            num_kept = len(draft.token_ids)
            endpoint = await self._endpoints.take(episode)
            endpoint.num_taken += 1
            try:
                await self._request(endpoint, draft)
            except Interrupted as fault:
                num_failures = 0 if len(draft.token_ids) > num_kept else num_failures
                # While a server is away the time counts, not the attempts.
                is_counted = not fault.is_busy and not (fault.is_gone and self._max_silence_seconds is not None)
                num_failures += is_counted
                if num_failures >= self.patience.max_attempts:
                    raise self._failure(episode, draft, f"{num_failures} requests failed in a row") from None
                if self._endpoints.is_given_up:
                    silence = (
                        f"no server gave a token for {self._max_silence_seconds:g} s (inference.server_wait_seconds)"
                    )
                    raise self._failure(episode, draft, silence) from None
            finally:
                endpoint.num_taken -= 1

    def _failure(self, episode: int, draft: PartialCompletion, what: str) -> EngineError:
        reasons = "; ".join(f"{server.url}: {server.last_error or 'no error'}" for server in self._endpoints.all)
        return EngineError(f"episode {episode}: {what}; {len(draft.token_ids)} tokens came ({reasons})")

    async def _request(self, endpoint: Endpoint, draft: PartialCompletion) -> None:
        """One request in its turn: it finishes the draft, adds to it, or raises Interrupted and lets the server rest."""
        session = self._connections.session()
        async with session.places[endpoint]:
            begun_at = time.monotonic()
            if not self._endpoints.is_free(endpoint):
                return
            try:
                await self._trust(session, endpoint)
                num_left = draft.sampling.max_tokens - len(draft.token_ids)
                room = min(num_left, endpoint.max_seq_len - len(draft.prompt) - len(draft.token_ids))
                if room <= 0:
                    draft.finish = Finish.LENGTH
                    return
                draft.is_exact = await self._records_exactly(session, endpoint, draft)
                await self._stream(session, endpoint, draft, room)
            except Interrupted as fault:
                if fault.is_gone:
                    endpoint.holds = None
                self._endpoints.failed(
                    endpoint, str(fault), begun_at=begun_at, is_busy=fault.is_busy, wait_seconds=fault.wait_seconds
                )
                raise

    async def _stream(self, session: Session, endpoint: Endpoint, draft: PartialCompletion, room: int) -> None:
        """Send one request and take its tokens as they come. Leaving closes the connection, which cancels the request."""
        import httpx

        num_before = num_kept = len(draft.token_ids)
        token_ids = [*draft.prompt, *draft.token_ids]
        seed = request_seed(draft.sampling.seed, len(token_ids))
        sampling = dataclasses.replace(draft.sampling, max_tokens=room, seed=seed)
        adapter = self._publication.adapter if self._publication is not None else None
        body = self.dialect.body(
            endpoint.model or self.model, token_ids, sampling, sorted(draft.eos_token_ids), adapter
        )
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
            raise Interrupted(named(error), is_gone=True) from None
        if draft.finish is None and num_kept == num_before:
            raise Interrupted("the stream ended without a token")

    # -- what is known of a server -----------------------------------------------------------------------------

    async def _trust(self, session: Session, endpoint: Endpoint) -> None:
        """See that the server is the right one and holds the right weights; where others may do better, go to them."""
        try:
            await self._know(session, endpoint)
        except (SettingsError, EngineError) as error:
            if len(self._endpoints.all) == 1:
                raise
            raise Interrupted(str(error)) from None

    async def _know(self, session: Session, endpoint: Endpoint) -> None:
        """Ask the server for its model and have it load what was published, each once."""
        if endpoint.model is not None and endpoint.holds is self._publication:
            return
        async with session.asking[endpoint]:
            if endpoint.model is None:
                await self._get_to_know(session, endpoint)
            if self._publication is not None and endpoint.holds is not self._publication:
                await self._load(session, endpoint, self._publication)

    async def _get_to_know(self, session: Session, endpoint: Endpoint) -> None:
        ask = functools.partial(self._connections.ask, endpoint)
        name, length = await find_model(ask, endpoint.url, self.model)
        if self._probe is not None:
            await compare_tokenizers(ask, endpoint.url, name, *self._probe)
        lengths = [length - self.dialect.num_spare_tokens] if length is not None else []
        lengths += [self._max_seq_len] if self._max_seq_len is not None else []
        if not lengths:
            raise SettingsError(f"{endpoint.url} does not say how long a sequence may be; give max_seq_len")
        endpoint.model, endpoint.max_seq_len = name, min(lengths)
        if self._trains_at is not None and self._probe is not None:
            draft = PartialCompletion(
                list(self._probe[1]), Sampling(max_tokens=1, temperature=self._trains_at), frozenset()
            )
            if not (await self._recording_of(session, endpoint, draft)).covers(draft.sampling):
                endpoint.model = None
                raise SettingsError(why_not_exact(endpoint, draft.sampling))

    async def _load(self, session: Session, endpoint: Endpoint, new: Publication) -> None:
        """Have one server load what was published, and prove it."""
        old, endpoint.holds = endpoint.holds, None
        post = functools.partial(self._connections.post, endpoint)
        try:
            if new.adapter is None:
                await self.dialect.load_weights(post, str(new.path))
            else:
                await self.dialect.load_adapter(post, new.adapter, str(new.path))
        except EngineError as error:
            raise EngineError(f"{endpoint.url} does not take new weights: {error}") from None
        drawn = []
        for number, length in enumerate(new.proof.lengths):
            if length < endpoint.max_seq_len:
                draft = PartialCompletion(
                    new.proof.token_ids[:length], Sampling(max_tokens=1, seed=number), frozenset()
                )
                await self._stream(session, endpoint, draft, room=1)
                drawn.append((draft.token_ids[0], draft.logprobs[0]))
        new.proof.check(endpoint.url, drawn, new.likely_cause)
        endpoint.holds = new
        if old is not None and old.adapter is not None:
            with contextlib.suppress(EngineError):  # it may have dropped it by itself
                await self.dialect.unload_adapter(post, old.adapter)

    async def _records_exactly(self, session: Session, endpoint: Endpoint, draft: PartialCompletion) -> bool:
        """Whether this server's log-probabilities are those of the distribution that the draft is sampled from."""
        if Recording().covers(draft.sampling):
            return True
        async with session.asking[endpoint]:
            recording = await self._recording_of(session, endpoint, draft)
            if not recording.covers(draft.sampling) and not endpoint.was_warned_of:
                endpoint.was_warned_of = True
                warnings.warn(
                    f"{why_not_exact(endpoint, draft.sampling)}. NaN is recorded instead, and training leaves such tokens "
                    "out",
                    stacklevel=2,
                )
        return recording.covers(draft.sampling)

    async def _recording_of(self, session: Session, endpoint: Endpoint, draft: PartialCompletion) -> Recording:
        """What the server's log-probabilities take into account; it is tried out once, if the draft is not plain."""
        if Recording().covers(draft.sampling):
            return Recording()
        if endpoint.recording is None:
            logprob = functools.partial(self._logprob, session, endpoint)
            endpoint.recording = await try_recording(
                logprob, draft.prompt, penalises_prompt=self.dialect.penalises_prompt
            )
        return endpoint.recording

    async def _logprob(self, session: Session, endpoint: Endpoint, prompt: Sequence[int], sampling: Sampling) -> float:
        """What the server records for one token."""
        draft = PartialCompletion(prompt, sampling, frozenset())
        await self._stream(session, endpoint, draft, room=1)
        return draft.logprobs[0]


def request_seed(seed: int, position: int) -> int:
    """63 bits that follow from an episode's seed and the position that a request samples first: spans must not share
    their random numbers, and servers know seeds of requests only."""
    return int.from_bytes(hashlib.blake2b(f"{seed} {position}".encode(), digest_size=8).digest()) >> 1
