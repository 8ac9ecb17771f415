"""Engine over model servers: requests, retries, load balancing, failover, deadlines, cancellation, weight updates.

The protocol of each kind of server is a subclass of `Server` in its own file. Does not depend on text, tools or rewards.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import random
import time
import warnings
from collections.abc import Awaitable, Callable, Sequence

from midthought.config.references import require_installed
from midthought.engines.external_engine import ExternalEngine
from midthought.engines.servers.connection import RetryPolicy, clean_addresses
from midthought.engines.servers.preparation import has_exact_logprobs, identify, prepare
from midthought.engines.servers.process import ServerProcess
from midthought.engines.servers.server import Requirements, Server
from midthought.engines.servers.streams import PartialCompletion, RetryableError
from midthought.engines.weight_publication import Publication
from midthought.errors import EngineError, ServersUnreachableError, SettingsError
from midthought.http.network import read_key
from midthought.types import Finish

logger = logging.getLogger(__name__)


class ServerPool:
    """The servers of one engine. A new episode goes to the server with the fewest requests. It stays on that server, whose
    prefix cache contains it, while the server works.

    After a failure a server pauses for `pause_seconds`; each further consecutive failure doubles the pause, up to
    `max_pause_seconds`, with jitter. If no server returns a token for `max_outage_seconds` after a failure, requests fail
    without waiting (`is_given_up`), until a server returns a token.
    """

    def __init__(self, servers: Sequence[Server], retry_policy: RetryPolicy) -> None:
        self.all = tuple(servers)
        for server in servers:
            server.on_token = functools.partial(self._succeeded, server)
        self._retry_policy = retry_policy
        self._outage_since = math.inf
        """Start time of the first failed request since the last token of any server."""
        self._home: dict[int, Server] = {}

    @property
    def is_given_up(self) -> bool:
        """Whether no server has returned a token for too long."""
        return self._outage_seconds_left <= 0

    @property
    def _outage_seconds_left(self) -> float:
        return self._outage_since + self._retry_policy.max_outage_seconds - time.monotonic()

    def is_free(self, server: Server) -> bool:
        """Whether a request may be sent now: the server does not pause, or all servers are given up."""
        return server.free_at <= time.monotonic() or self.is_given_up

    async def take(self, episode: int) -> Server:
        """Returns the server for this episode's next request. Waits while all servers pause."""
        while not (free := [server for server in self.all if self.is_free(server)]):
            rest = min(server.free_at for server in self.all) - time.monotonic()
            rest = max(0.0, rest) + random.uniform(0.0, self._retry_policy.pause_seconds)
            await asyncio.sleep(max(0.0, min(rest, self._outage_seconds_left)))
        server = self._home.get(episode)
        if server not in free:
            server = self._home[episode] = min(free, key=lambda each: each.num_taken)
        return server

    def forget(self, episode: int) -> None:
        """Releases the episode's server: the episode has ended, or a new one starts."""
        self._home.pop(episode, None)

    def _succeeded(self, server: Server) -> None:
        server.num_failures = 0
        self._outage_since = math.inf

    def failed(self, server: Server, fault: RetryableError, *, started_at: float) -> None:
        """Records the failure of a request sent at `started_at`, and pauses the server; simultaneous failures count once."""
        server.last_error = str(fault)
        self._outage_since = math.inf if fault.is_busy else min(self._outage_since, started_at)
        if started_at < server.failed_at:
            return
        logger.warning("%s: %s", server.url, fault)
        server.failed_at = time.monotonic()
        server.num_failures += 1
        longest = self._retry_policy.max_pause_seconds
        pause = self._retry_policy.pause_seconds * 2 ** min(server.num_failures - 1, 30)
        pause = min(pause, longest) * random.uniform(0.5, 1.0)
        server.free_at = server.failed_at + (min(fault.wait_seconds, longest) or pause)


class ServerEngine(ExternalEngine):
    """Samples from one model on one or several servers.

    Each token that arrives is kept and passed to the stopper at once. After a failed request the next one, to the same server
    or another, continues from the prompt and the tokens kept so far. So no token counts twice, and long completions fail no
    more often than short ones; but the rest is sampled with another seed. A request's seed depends only on (seed, position of
    its first token), not on the server: a run is as reproducible as the servers.

    Log-probabilities refer to the sampling distribution. At temperature 0 or 1 without filters every server returns them.
    Otherwise each server is probed once; if it returns others, the engine warns and records NaN, which excludes the
    token from the loss. NaN is also recorded for an end-of-sequence token that a server reports without a log-probability.
    With `training_temperature`, such a server is refused instead.

    Args:
        kind: the protocol of the servers.
        base_url: `http://HOST:PORT` of the server, or `unix:/PATH` of its socket, or several of the same model.
        model: its name on the server, or the path that it was loaded from.
        eos_token_ids: the tokens that end a sequence; the server's own ones are ignored.
        probe: a text and its ids in our tokenizer, to compare with the servers' tokenizers.
        max_seq_len: maximum tokens of a sequence, including the prompt; the server's own limit if that is smaller.
        max_num_seqs: maximum concurrent requests to each server; further ones wait here.
        api_key_env: environment variable with the servers' API key.
        process: a server that was started for this engine, used instead of `base_url`. After it has ended, samples fail at
            once; `shutdown` stops it.
        training_temperature: temperature of training rollouts; a server that does not return the log-probabilities of that
            distribution is refused with `SettingsError` at its first check.
    """

    def __init__(
        self,
        kind: type[Server],
        base_url: str | Sequence[str],
        model: str,
        *,
        eos_token_ids: Sequence[int] | frozenset[int],
        probe: tuple[str, Sequence[int]] | None = None,
        max_seq_len: int | None = None,
        max_num_seqs: int = 128,
        api_key_env: str | None = None,
        process: ServerProcess | None = None,
        retry_policy: RetryPolicy | None = None,
        training_temperature: float | None = None,
    ) -> None:
        require_installed(kind.name, "httpx")
        super().__init__(
            eos_token_ids=eos_token_ids, max_seq_len=max_seq_len, max_num_seqs=max_num_seqs, retry_policy=retry_policy
        )
        self.model = model
        if process is None:
            urls = clean_addresses([base_url] if isinstance(base_url, str) else base_url)
            key = read_key(api_key_env, *urls)
        else:
            urls, key = [process.url], process.key
        needed = Requirements(
            model=model, probe=probe, max_seq_len=max_seq_len, training_temperature=training_temperature
        )
        self._servers = ServerPool(
            [kind(url, needed, self.retry_policy, key=key, max_num_seqs=max_num_seqs) for url in urls],
            self.retry_policy,
        )
        self._publication: Publication | None = None
        """The weights that every server must load before it samples."""
        self._process = process

    def open(self, episode: int) -> None:
        """Starts a new sequence; any server may take it."""
        self._servers.forget(episode)

    def close(self, episode: int) -> None:
        self._servers.forget(episode)
        super().close(episode)

    def shutdown(self) -> None:
        """Also stops the server if it was started for this engine."""
        super().shutdown()
        if self._process is not None:
            self._process.stop()

    async def _check(self) -> None:
        """Checks the model and the tokenizer of all servers concurrently.

        Raises `EngineError` if no server answers (if only some do, warns, and checks the others when they answer),
        `SettingsError` if one serves another model or has another tokenizer.
        """
        await self._call_all(identify, "answers")

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

    async def _load(self, publication: Publication) -> None:
        """A server that cannot be reached loads the weights when it answers again, before it samples; so does a server whose
        connection broke, because it may have been restarted."""
        self._publication = publication
        give_up_at = time.monotonic() + self.retry_policy.max_outage_seconds
        while True:
            try:
                return await self._call_all(lambda server: prepare(server, publication), "takes the new weights")
            except ServersUnreachableError:
                if time.monotonic() >= give_up_at or self._exit_reason():
                    raise
            await asyncio.sleep(self.retry_policy.pause_seconds)

    def _exit_reason(self) -> str | None:
        """Returns how the server that was started for this engine has ended."""
        return None if self._process is None else self._process.exit_reason()

    @property
    def _adapter(self) -> str | None:
        """Name of the published adapter on the servers."""
        return None if self._publication is None else self._publication.adapter

    async def _complete(self, episode: int, draft: PartialCompletion) -> None:
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
                num_failures += not (fault.is_busy or fault.is_disconnected)
                if num_failures >= self.retry_policy.max_attempts:
                    raise self._failure(episode, draft, f"{num_failures} requests failed in a row") from None
                if self._servers.is_given_up:
                    seconds = self.retry_policy.max_outage_seconds
                    silence = f"no server returned a token for {seconds:g} s (inference.server_wait_seconds)"
                    raise self._failure(episode, draft, silence) from None
            finally:
                server.num_taken -= 1

    def _failure(self, episode: int, draft: PartialCompletion, what: str) -> EngineError:
        reasons = "; ".join(f"{server.url}: {server.last_error or 'no error'}" for server in self._servers.all)
        return EngineError(f"{super()._failure(episode, draft, what)} ({reasons})")

    async def _request(self, server: Server, draft: PartialCompletion) -> None:
        """Runs one request: finishes the draft, adds to it, or raises `RetryableError` and pauses the server."""
        async with server.slots:
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
