"""Engine over model servers: requests, retries, failover, deadlines, back-pressure, cancellation, weight updates.

The protocol of each kind of server is a subclass of `Server` in its own file. Does not depend on text, tools or rewards.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
import warnings
from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar

from midthought.engines.engine import Sampling, Stopper
from midthought.engines.running_samples import RunningSamples
from midthought.engines.servers.connection import RetryPolicy, require_httpx
from midthought.engines.servers.pool import ServerPool, clean_addresses
from midthought.engines.servers.preparation import has_exact_logprobs, identify, prepare
from midthought.engines.servers.server import Requirements, Server
from midthought.engines.servers.streams import PartialCompletion, RetryableError
from midthought.engines.weight_sync.transport import FOLDER, WeightTransport
from midthought.engines.weight_sync.update_lock import UpdateLock
from midthought.engines.weight_sync.weight_check import Publication, Reads
from midthought.errors import EngineError, ServersUnreachableError, SettingsError
from midthought.http.network import read_key
from midthought.types import Completion, Finish

logger = logging.getLogger(__name__)


class ServerEngine:
    """Samples from one model on one or several servers. Implements `midthought.engines.engine.Engine`.

    Each token that arrives is kept and passed to the stopper at once. After a failed request the next one, to the same server
    or another, continues from the prompt and the tokens kept so far. So no token counts twice, and long completions fail no
    more often than short ones; but the rest is sampled with another seed. A request's seed depends only on (seed, position of
    its first token), not on the server: a run is as reproducible as the servers.

    Log-probabilities refer to the sampling distribution. At temperature 0 or 1 without filters every server returns them.
    Otherwise each server is probed once; if it returns others, the engine warns and records NaN, which excludes the
    token from the loss. NaN is also recorded for an end-of-sequence token that a server reports without a log-probability.
    With `training_temperature`, such a server is refused instead.

    Args:
        base_url: `http://HOST:PORT` of the server, or `unix:/PATH` of its socket, or several of the same model.
        model: its name on the server, or the path that it was loaded from.
        eos_token_ids: the tokens that end a sequence; the server's own ones are ignored.
        probe: a text and its ids in our tokenizer, to compare with the servers' tokenizers.
        max_seq_len: maximum tokens of a sequence, including the prompt; the server's own limit if that is smaller.
        max_num_seqs: maximum concurrent requests to each server; further ones wait here.
        api_key_env: environment variable with the servers' API key.
        own_key: key of a server started by this process, used instead.
        training_temperature: temperature of training rollouts; a server that does not return the log-probabilities of that
            distribution is refused with `SettingsError` at its first check.
        max_outage_seconds: how long to wait for unreachable servers while none returns a token; then samples fail.
            None: only `RetryPolicy.max_attempts` limits the wait.
        exit_reason: returns why a server started by this process has ended, None while it runs. Samples then fail at once
            instead of waiting for it.
        transport: how whole models reach the servers.
        can_sleep: whether `sleep` releases the servers' memory; they must be started for that.
    """

    server_class: ClassVar[type[Server]]
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
        own_key: str = "",
        retry_policy: RetryPolicy | None = None,
        training_temperature: float | None = None,
        max_outage_seconds: float | None = None,
        exit_reason: Callable[[], str | None] | None = None,
        transport: WeightTransport = FOLDER,
        can_sleep: bool = False,
    ) -> None:
        require_httpx(self.server_class.name)
        if max_num_seqs < 1 or (max_seq_len is not None and max_seq_len < 2):
            raise SettingsError(
                f"max_num_seqs={max_num_seqs}, max_seq_len={max_seq_len}: "
                "an engine needs room for at least one sequence of two tokens"
            )
        self.model = model
        self.eos_token_ids = frozenset(eos_token_ids)
        self.retry_policy = retry_policy or RetryPolicy()
        urls = clean_addresses([base_url] if isinstance(base_url, str) else base_url)
        key = own_key or read_key(api_key_env, *urls)
        needed = Requirements(
            model=model, probe=probe, max_seq_len=max_seq_len, training_temperature=training_temperature
        )
        self._servers = ServerPool(
            [
                self.server_class(
                    url, needed, self.retry_policy, transport=transport.name, key=key, max_num_seqs=max_num_seqs
                )
                for url in urls
            ],
            self.retry_policy,
            max_outage_seconds=math.inf if max_outage_seconds is None else max_outage_seconds,
        )
        self._max_outage_seconds = max_outage_seconds
        self._publication: Publication | None = None
        """The weights that every server must load before it samples."""
        self._transport = transport
        self._can_sleep = can_sleep
        self.is_asleep = False
        self._running = RunningSamples()
        self._update_lock = UpdateLock()
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
        self._servers.forget(episode)

    def close(self, episode: int) -> None:
        """Ends the episode and cancels its running sample."""
        self._servers.forget(episode)
        self._running.cancel(episode)

    async def check(self) -> None:
        """Checks the model and the tokenizer of all servers concurrently.

        Raises `EngineError` if no server answers (if only some do, warns, and checks the others when they answer),
        `SettingsError` if one serves another model or has another tokenizer.
        """
        await self._call_all(identify, "answers")
        if self._transport.sends_tensors and self._transport.may_be_refused:
            await self._ask_for_refusals()

    @property
    def reads(self) -> Reads:
        """How it reads whole models."""
        return "tensors" if self._transport.sends_tensors else "folder"

    async def _ask_for_refusals(self) -> None:
        """Uses folders instead if a server cannot receive tensors. Raises `EngineError` if the settings forbid that."""
        refusals: list[str] = []

        async def ask(server: Server) -> None:
            if reason := await server.weight_sender().refusal(server):
                refusals.append(f"{server.url} does not receive weights by {self._transport.name}: {reason}")

        await self._call_all(ask, "answers")
        if refusals and self._transport.is_required:
            raise EngineError(refusals[0])
        if refusals:
            logger.warning("%s. They go through a folder instead", refusals[0])
            self._transport = FOLDER

    async def _call_all(self, ask: Callable[[Server], Awaitable[None]], what: str) -> None:
        """Calls `ask` for all servers concurrently. Raises `EngineError` if none can be reached, warns if some cannot.

        Other errors are raised unchanged.
        """
        servers = self._servers.all
        answers = await asyncio.gather(*map(ask, servers), return_exceptions=True)
        silent = []
        for server, answer in zip(servers, answers, strict=True):
            if isinstance(answer, RetryableError):
                silent.append(f"{server.url}: {answer}")
            elif isinstance(answer, BaseException):
                raise answer
        if len(silent) == len(servers):
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
                    await self._call_all(lambda server: prepare(server, publication), "takes the new weights")
                    break
                except ServersUnreachableError:
                    if time.monotonic() >= give_up_at or self._exit_reason():
                        raise
                await asyncio.sleep(self.retry_policy.pause_seconds)
            self.policy_version, self.is_asleep = policy_version, False

    async def sleep(self) -> None:
        """Makes the servers release their GPU memory until the next `publish`, if they were started for that.

        Waits for running samples.
        """
        if self._can_sleep and not self.is_asleep:
            async with self._update_lock.changing(self.retry_policy.total_timeout_seconds):
                self.is_asleep = True
                keeps_weights = self._adapter is not None
                await self._call_all(lambda server: server.sleep(keeps_weights=keeps_weights), "releases its memory")

    @property
    def _adapter(self) -> str | None:
        """Name of the published adapter on the servers."""
        return None if self._publication is None else self._publication.adapter

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
            server = await self._servers.take(episode)
            server.num_taken += 1
            try:
                await self._request(server, draft)
            except RetryableError as fault:
                num_failures = 0 if len(draft.token_ids) > num_kept else num_failures
                # During an outage the time is limited, not the number of attempts.
                is_counted = not fault.is_busy and not (fault.is_disconnected and self._max_outage_seconds is not None)
                num_failures += is_counted
                if num_failures >= self.retry_policy.max_attempts:
                    raise self._failure(episode, draft, f"{num_failures} requests failed in a row") from None
                if self._servers.is_given_up:
                    silence = (
                        f"no server returned a token for {self._max_outage_seconds:g} s (inference.server_wait_seconds)"
                    )
                    raise self._failure(episode, draft, silence) from None
            finally:
                server.num_taken -= 1

    def _failure(self, episode: int, draft: PartialCompletion, what: str) -> EngineError:
        reasons = "; ".join(f"{server.url}: {server.last_error or 'no error'}" for server in self._servers.all)
        return EngineError(f"episode {episode}: {what}; {len(draft.token_ids)} tokens received ({reasons})")

    async def _request(self, server: Server, draft: PartialCompletion) -> None:
        """Runs one request: finishes the draft, adds to it, or raises `RetryableError` and pauses the server."""
        async with server.session().slots:
            started_at = time.monotonic()
            if not self._servers.is_free(server):
                return
            try:
                await self._ensure_ready(server)
                num_left = draft.sampling.max_tokens - len(draft.token_ids)
                room = min(num_left, server.max_seq_len - len(draft.prompt) - len(draft.token_ids))
                if room <= 0:
                    draft.finish = Finish.LENGTH
                    return
                draft.is_exact = await has_exact_logprobs(server, draft, self._adapter)
                await server.stream(draft, room, self._adapter)
            except RetryableError as fault:
                if fault.is_disconnected:
                    server.loaded = None
                self._servers.failed(server, fault, started_at=started_at)
                raise

    async def _ensure_ready(self, server: Server) -> None:
        """Checks the server and its weights. If it fails and there are other servers, raises `RetryableError`."""
        try:
            await prepare(server, self._publication)
        except (SettingsError, EngineError) as error:
            if len(self._servers.all) == 1:
                raise
            raise RetryableError(str(error)) from None
