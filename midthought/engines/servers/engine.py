"""Engine over model servers: requests, retries, failover, deadlines, back-pressure, cancellation, weight updates.

The protocol of each kind of server is a `Dialect` in its own file. Does not depend on text, tools or rewards.
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
from midthought.engines.running_samples import RunningSamples
from midthought.engines.servers.checks import compare_tokenizers, find_model, probe_logprob_mode, why_not_exact
from midthought.engines.servers.connection import Connections, RetryPolicy, Session, named, require_httpx
from midthought.engines.servers.dialect import Dialect
from midthought.engines.servers.endpoints import Endpoint, Endpoints, LogprobMode
from midthought.engines.servers.streams import (
    EventSplitter,
    PartialCompletion,
    RetryableError,
    add_events,
    response_error,
)
from midthought.engines.weight_sync.publication import Publication
from midthought.engines.weight_sync.update_lock import UpdateLock
from midthought.errors import EngineError, ServersUnreachableError, SettingsError
from midthought.types import Completion, Finish


class ServerEngine:
    """Samples from one model on one or several servers. Implements `midthought.engines.engine.Engine`.

    Each token that arrives is kept and passed to the stopper at once. After a failed request the next one, to the same server
    or another, continues from the prompt and the tokens kept so far. So no token counts twice, and long completions fail
    no more often than short ones; but the rest is sampled with another seed. A request's seed depends only on (seed, position
    of its first token): a run is as reproducible as the server.

    Log-probabilities refer to the sampling distribution. At temperature 0 or 1 without filters every server returns them.
    Otherwise each server is probed once; if it returns others, the engine warns and records NaN, which excludes the
    token from the loss. NaN is also recorded for an end-of-sequence token that a server reports without a log-probability.
    With `training_temperature`, such a server is refused instead.

    Args:
        base_url: `http://HOST:PORT` of the server, or several of the same model.
        model: its name on the server, or the path that it was loaded from.
        eos_token_ids: the tokens that end a sequence; the server's own ones are ignored.
        probe: a text and its ids in our tokenizer, to compare with the servers' tokenizers.
        max_seq_len: maximum tokens of a sequence, including the prompt; the server's own limit if that is smaller.
        max_num_seqs: maximum concurrent requests to each server; further ones wait here.
        api_key_env: environment variable with the servers' API key.
        training_temperature: temperature of training rollouts; a server that does not return the log-probabilities of that
            distribution is refused with `SettingsError` at its first check.
        max_outage_seconds: how long to wait for unreachable servers while none returns a token; then samples fail.
            None: only `RetryPolicy.max_attempts` limits the wait.
        exit_reason: returns why a server started by this process has ended, None while it runs. Samples then fail at once
            instead of waiting for it.
    """

    dialect: ClassVar[Dialect]
    policy_version = 0
    reads_shared_memory = False
    is_asleep = False

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
        retry_policy: RetryPolicy | None = None,
        training_temperature: float | None = None,
        max_outage_seconds: float | None = None,
        exit_reason: Callable[[], str | None] | None = None,
    ) -> None:
        require_httpx(self.dialect.name)
        if max_num_seqs < 1 or (max_seq_len is not None and max_seq_len < 2):
            raise SettingsError(
                f"max_num_seqs={max_num_seqs}, max_seq_len={max_seq_len}: "
                "an engine needs room for at least one sequence of two tokens"
            )
        self.model = model
        self.eos_token_ids = frozenset(eos_token_ids)
        self.retry_policy = retry_policy or RetryPolicy()
        self._endpoints = Endpoints(
            [base_url] if isinstance(base_url, str) else base_url,
            pause_seconds=self.retry_policy.pause_seconds,
            max_pause_seconds=self.retry_policy.max_pause_seconds,
            max_outage_seconds=math.inf if max_outage_seconds is None else max_outage_seconds,
        )
        self._max_outage_seconds = max_outage_seconds
        self._probe = probe
        self._training_temperature = training_temperature
        self._max_seq_len = max_seq_len
        self._connections = Connections(
            self._endpoints.all, self.retry_policy, max_num_seqs=max_num_seqs, api_key_env=api_key_env
        )
        self._running = RunningSamples()
        self._update_lock = UpdateLock()
        self._publication: Publication | None = None
        self._exit_reason = exit_reason or (lambda: None)

    # -- the contract ------------------------------------------------------------------------------------------

    async def sample(
        self, episode: int, token_ids: Sequence[int], sampling: Sampling, *, stopper: Stopper | None = None
    ) -> Completion:
        """Samples after `token_ids` until the stopper, an end-of-sequence token, `max_tokens` or `max_seq_len` ends it.

        Then the connection is closed, which ends the request on the server; later tokens that have arrived are cut and
        counted. Cancelling the caller cancels the request.

        Raises `EngineError` if `token_ids` is empty, the episode is being sampled already, a server refuses the request, or
        no server completes it within the limits of the retry policy.
        """
        self._running.require_free(episode, token_ids)
        draft = PartialCompletion(list(token_ids), sampling, self.eos_token_ids, stopper)
        return await self._running.run(episode, self._complete(episode, draft))

    def open(self, episode: int) -> None:
        """Starts a new sequence; any server may take it."""
        self._endpoints.forget(episode)

    def close(self, episode: int) -> None:
        """Ends the episode and cancels its running sample."""
        self._endpoints.forget(episode)
        self._running.cancel(episode)

    async def check(self) -> None:
        """Checks the model and the tokenizer of all servers concurrently.

        Raises `EngineError` if no server answers (if only some do, warns, and checks the others when they answer),
        `SettingsError` if one serves another model or has another tokenizer.
        """
        await self._call_all(self._identify, "answers")

    async def _call_all(self, ask: Callable[[Session, Endpoint], Awaitable[None]], what: str) -> None:
        """Calls `ask` for all servers concurrently. Raises `EngineError` if none can be reached, warns if some cannot.

        Other errors are raised unchanged.
        """
        session, endpoints = self._connections.session(), self._endpoints.all
        asked = [ask(session, endpoint) for endpoint in endpoints]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        silent = []
        for endpoint, answer in zip(endpoints, answers, strict=True):
            if isinstance(answer, RetryableError):
                silent.append(f"{endpoint.url}: {answer}")
            elif isinstance(answer, BaseException):
                raise answer
        if len(silent) == len(endpoints):
            raise ServersUnreachableError(
                f"no server {what} ({'; '.join(silent)}); start one, or give another base_url"
            )
        if silent:
            warnings.warn(f"not every server {what}; continuing without {'; '.join(silent)}", stacklevel=2)

    async def publish(self, publication: Publication, policy_version: int) -> None:
        """Makes every server load these weights and checks that it uses them. Completions then carry `policy_version`.

        Running samples are awaited first and new ones wait, so no completion mixes weights. A server that cannot be reached
        loads them when it answers again, before it samples; so does a server whose connection broke, because it may have
        been restarted.

        Raises `EngineError` if a server refuses, computes something else, or none can be reached for `max_outage_seconds`.
        """
        async with self._update_lock.changing(self.retry_policy.total_timeout_seconds):
            self._publication = publication
            give_up_at = time.monotonic() + (self._max_outage_seconds or 0.0)
            while True:
                try:
                    await self._call_all(self._prepare, "takes the new weights")
                    break
                except ServersUnreachableError:
                    if time.monotonic() >= give_up_at or self._exit_reason():
                        raise
                await asyncio.sleep(self.retry_policy.pause_seconds)
            self.policy_version = policy_version

    async def sleep(self) -> None:
        """Does nothing: a server has its own memory."""

    # -- one completion, of one or several requests ------------------------------------------------------------

    async def _complete(self, episode: int, draft: PartialCompletion) -> Completion:
        seconds = self.retry_policy.total_timeout_seconds
        try:
            async with asyncio.timeout(seconds) as deadline, self._update_lock.sampling():
                version = self.policy_version
                await self._request_until_finished(episode, draft)
        except TimeoutError:
            if not deadline.expired():
                raise
            raise self._failure(episode, draft, f"not complete after {seconds:g} s") from None
        return draft.completion(version)

    async def _request_until_finished(self, episode: int, draft: PartialCompletion) -> None:
        num_failures = 0
        while draft.finish is None:
            if end := self._exit_reason():
                raise self._failure(episode, draft, end)
            num_kept = len(draft.token_ids)
            endpoint = await self._endpoints.take(episode)
            endpoint.num_taken += 1
            try:
                await self._request(endpoint, draft)
            except RetryableError as fault:
                num_failures = 0 if len(draft.token_ids) > num_kept else num_failures
                # During an outage the time is limited, not the number of attempts.
                is_counted = not fault.is_busy and not (fault.is_disconnected and self._max_outage_seconds is not None)
                num_failures += is_counted
                if num_failures >= self.retry_policy.max_attempts:
                    raise self._failure(episode, draft, f"{num_failures} requests failed in a row") from None
                if self._endpoints.is_given_up:
                    silence = (
                        f"no server returned a token for {self._max_outage_seconds:g} s (inference.server_wait_seconds)"
                    )
                    raise self._failure(episode, draft, silence) from None
            finally:
                endpoint.num_taken -= 1

    def _failure(self, episode: int, draft: PartialCompletion, what: str) -> EngineError:
        reasons = "; ".join(f"{server.url}: {server.last_error or 'no error'}" for server in self._endpoints.all)
        return EngineError(f"episode {episode}: {what}; {len(draft.token_ids)} tokens received ({reasons})")

    async def _request(self, endpoint: Endpoint, draft: PartialCompletion) -> None:
        """Runs one request: finishes the draft, adds to it, or raises `RetryableError` and pauses the server."""
        session = self._connections.session()
        async with session.slots[endpoint]:
            started_at = time.monotonic()
            if not self._endpoints.is_free(endpoint):
                return
            try:
                await self._ensure_ready(session, endpoint)
                num_left = draft.sampling.max_tokens - len(draft.token_ids)
                room = min(num_left, endpoint.max_seq_len - len(draft.prompt) - len(draft.token_ids))
                if room <= 0:
                    draft.finish = Finish.LENGTH
                    return
                draft.is_exact = await self._has_exact_logprobs(session, endpoint, draft)
                await self._stream(session, endpoint, draft, room)
            except RetryableError as fault:
                if fault.is_disconnected:
                    endpoint.loaded = None
                self._endpoints.failed(
                    endpoint, str(fault), started_at=started_at, is_busy=fault.is_busy, wait_seconds=fault.wait_seconds
                )
                raise

    async def _stream(self, session: Session, endpoint: Endpoint, draft: PartialCompletion, room: int) -> None:
        """Sends one request and adds its tokens as they arrive. Returning early closes the connection, which cancels it."""
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
        splitter, seconds = EventSplitter(), self.retry_policy.first_token_timeout_seconds
        try:
            async with (
                asyncio.timeout(seconds) as deadline,
                session.client.stream("POST", endpoint.url + self.dialect.path, json=body) as response,
                contextlib.aclosing(response.aiter_bytes()) as pieces,  # type: ignore[type-var]
            ):
                if response.status_code != 200:
                    await response.aread()
                    raise response_error(response)
                async for piece in pieces:
                    has_ended = add_events(splitter.feed(piece), read, draft)
                    if len(draft.token_ids) > num_kept:
                        num_kept, seconds = len(draft.token_ids), self.retry_policy.next_token_timeout_seconds
                        deadline.reschedule(asyncio.get_running_loop().time() + seconds)
                        self._endpoints.succeeded(endpoint)
                    if has_ended:
                        break
                else:
                    where = "inside a line" if splitter.is_in_line else "before the completion did"
                    raise RetryableError(f"the stream ended {where}")
        except TimeoutError:
            if not deadline.expired():
                raise
            raise RetryableError(f"no token for {seconds:g} s") from None
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise RetryableError(named(error), is_disconnected=True) from None
        if draft.finish is None and num_kept == num_before:
            raise RetryableError("the stream ended without a token")

    # -- checks and weight updates of a server -----------------------------------------------------------------

    async def _ensure_ready(self, session: Session, endpoint: Endpoint) -> None:
        """Checks the server and its weights. If it fails and there are other servers, raises `RetryableError`."""
        try:
            await self._prepare(session, endpoint)
        except (SettingsError, EngineError) as error:
            if len(self._endpoints.all) == 1:
                raise
            raise RetryableError(str(error)) from None

    async def _prepare(self, session: Session, endpoint: Endpoint) -> None:
        """Checks the server and makes it load the published weights, each once."""
        if endpoint.model is not None and endpoint.loaded is self._publication:
            return
        async with session.locks[endpoint]:
            if endpoint.model is None:
                await self._identify(session, endpoint)
            if self._publication is not None and endpoint.loaded is not self._publication:
                await self._load(session, endpoint, self._publication)

    async def _identify(self, session: Session, endpoint: Endpoint) -> None:
        ask = functools.partial(self._connections.ask, endpoint)
        name, length = await find_model(ask, endpoint.url, self.model)
        if self._probe is not None:
            await compare_tokenizers(ask, endpoint.url, name, *self._probe)
        lengths = [length - self.dialect.num_reserved_tokens] if length is not None else []
        lengths += [self._max_seq_len] if self._max_seq_len is not None else []
        if not lengths:
            raise SettingsError(f"{endpoint.url} does not report its maximum sequence length; set max_seq_len")
        endpoint.model, endpoint.max_seq_len = name, min(lengths)
        if self._training_temperature is not None and self._probe is not None:
            draft = PartialCompletion(
                list(self._probe[1]), Sampling(max_tokens=1, temperature=self._training_temperature), frozenset()
            )
            if not (await self._logprob_mode_of(session, endpoint, draft)).covers(draft.sampling):
                endpoint.model = None
                raise SettingsError(why_not_exact(endpoint, draft.sampling))

    async def _load(self, session: Session, endpoint: Endpoint, new: Publication) -> None:
        """Makes one server load the weights, and checks that it uses them."""
        old, endpoint.loaded = endpoint.loaded, None
        post = functools.partial(self._connections.post, endpoint)
        try:
            if new.adapter is None:
                await self.dialect.load_weights(post, str(new.path))
            else:
                await self.dialect.load_adapter(post, new.adapter, str(new.path))
        except EngineError as error:
            raise EngineError(f"{endpoint.url} does not take new weights: {error}") from None
        sampled = []
        for number, length in enumerate(new.proof.lengths):
            if length < endpoint.max_seq_len:
                draft = PartialCompletion(
                    new.proof.token_ids[:length], Sampling(max_tokens=1, seed=number), frozenset()
                )
                await self._stream(session, endpoint, draft, room=1)
                sampled.append((draft.token_ids[0], draft.logprobs[0]))
        new.proof.check(endpoint.url, sampled, new.likely_cause)
        endpoint.loaded = new
        if old is not None and old.adapter is not None:
            with contextlib.suppress(EngineError):  # it may have unloaded it itself
                await self.dialect.unload_adapter(post, old.adapter)

    async def _has_exact_logprobs(self, session: Session, endpoint: Endpoint, draft: PartialCompletion) -> bool:
        """Whether this server's log-probabilities refer to the draft's sampling distribution."""
        if LogprobMode().covers(draft.sampling):
            return True
        async with session.locks[endpoint]:
            logprob_mode = await self._logprob_mode_of(session, endpoint, draft)
            if not logprob_mode.covers(draft.sampling) and not endpoint.has_warned:
                endpoint.has_warned = True
                warnings.warn(
                    f"{why_not_exact(endpoint, draft.sampling)}. NaN is recorded instead, and training excludes such "
                    "tokens",
                    stacklevel=2,
                )
        return logprob_mode.covers(draft.sampling)

    async def _logprob_mode_of(self, session: Session, endpoint: Endpoint, draft: PartialCompletion) -> LogprobMode:
        """Returns which sampling settings the log-probabilities include; probes the server once, if that matters."""
        if LogprobMode().covers(draft.sampling):
            return LogprobMode()
        if endpoint.logprob_mode is None:
            logprob = functools.partial(self._logprob, session, endpoint)
            endpoint.logprob_mode = await probe_logprob_mode(
                logprob, draft.prompt, penalizes_prompt=self.dialect.penalizes_prompt
            )
        return endpoint.logprob_mode

    async def _logprob(self, session: Session, endpoint: Endpoint, prompt: Sequence[int], sampling: Sampling) -> float:
        """Returns the server's log-probability of one sampled token."""
        draft = PartialCompletion(prompt, sampling, frozenset())
        await self._stream(session, endpoint, draft, room=1)
        return draft.logprobs[0]


def request_seed(seed: int, position: int) -> int:
    """Returns a 63-bit seed from an episode's seed and the position of a request's first token.

    Each request needs its own seed, because servers seed requests, not positions: two spans must not share random numbers.
    """
    return int.from_bytes(hashlib.blake2b(f"{seed} {position}".encode(), digest_size=8).digest()) >> 1
