"""Base of the engines outside the learner's process, whose weights are replaced while they run (model servers, vLLM).

At most one sample per episode runs at a time, and no sample runs while the weights change.
"""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from midthought.engines.engine import Sampling, Stopper
from midthought.engines.servers.connection import RetryPolicy
from midthought.engines.servers.streams import PartialCompletion
from midthought.engines.weight_publication import Publication
from midthought.errors import EngineError, SettingsError
from midthought.types import Completion

_POLL_SECONDS = 0.01


class ReloadableEngine(ABC):
    """Implements `midthought.engines.engine.Engine`, except for the computing.

    Args:
        eos_token_ids: the tokens that end a sequence; the own ones of its model are ignored.
        max_seq_len: maximum tokens of a sequence, including the prompt; None: the model's limit.
        max_num_seqs: maximum concurrent sequences.
    """

    reads_memory = False
    """Whether it gets whole models as `SharedTensors`; else from a folder."""
    policy_version = 0
    is_asleep = False
    """Whether it has released its memory, so that it must load the weights again before it samples."""

    def __init__(
        self,
        *,
        eos_token_ids: Sequence[int] | frozenset[int],
        max_seq_len: int | None,
        max_num_seqs: int,
        retry_policy: RetryPolicy,
    ) -> None:
        if max_num_seqs < 1 or (max_seq_len is not None and max_seq_len < 2):
            raise SettingsError(
                f"max_num_seqs={max_num_seqs}, max_seq_len={max_seq_len}: "
                "an engine needs room for at least one sequence of two tokens"
            )
        self.eos_token_ids = frozenset(eos_token_ids)
        self.retry_policy = retry_policy
        self._samples: dict[int, asyncio.Task[Completion]] = {}
        self._update_lock = UpdateLock()

    async def sample(
        self, episode: int, token_ids: Sequence[int], sampling: Sampling, *, stopper: Stopper | None = None
    ) -> Completion:
        """Samples after `token_ids` until the stopper, an end-of-sequence token, `max_tokens` or the maximum length ends it.

        Then the request ends; later tokens that have arrived are cut and counted. Cancelling the caller cancels the request.

        Raises `EngineError` if `token_ids` is empty, the episode is being sampled already, the request is refused, or it is
        not completed within the limits of the retry policy.
        """
        if not token_ids:
            raise EngineError(f"episode {episode}: nothing to continue; give at least one token id")
        if episode in self._samples:
            raise EngineError(f"episode {episode} is being sampled already; await its completion first")
        draft = PartialCompletion(list(token_ids), sampling, self.eos_token_ids, stopper)
        self._samples[episode] = asyncio.ensure_future(self._sample(episode, draft))
        try:
            return await self._samples[episode]
        finally:
            del self._samples[episode]

    def open(self, episode: int) -> None:  # noqa: B027  # prefix caches work without it
        """Starts a new sequence."""

    def close(self, episode: int) -> None:
        """Ends the episode and cancels its running sample."""
        if episode in self._samples:
            self._samples[episode].cancel()

    @abstractmethod
    async def check(self) -> None:
        """Checks that it can be used. Raises `EngineError` or `SettingsError`."""

    @abstractmethod
    def shutdown(self) -> None:
        """Stops what was started for it. May be called twice."""

    async def publish(self, publication: Publication, policy_version: int) -> None:
        """Loads the weights and checks that it computes with them; completions then carry `policy_version`.

        Running samples are awaited first and new ones wait, so no completion mixes weights. Wakes up from `sleep`.

        Raises `EngineError` if the engine does not load them or computes something else.
        """
        async with self._update_lock.changing(self.retry_policy.total_timeout_seconds):
            await self._load(publication)
            self.policy_version, self.is_asleep = policy_version, False

    async def sleep(self) -> None:  # noqa: B027  # most engines keep their memory
        """Releases its memory until the next `publish`, if it can; then `is_asleep`. Waits for running samples."""

    async def _sample(self, episode: int, draft: PartialCompletion) -> Completion:
        seconds = self.retry_policy.total_timeout_seconds
        try:
            async with asyncio.timeout(seconds) as deadline, self._update_lock.sampling():
                version = self.policy_version
                await self._complete(episode, draft)
        except TimeoutError:
            if not deadline.expired():
                raise
            raise self._failure(episode, draft, f"not complete after {seconds:g} s") from None
        return draft.completion(version)

    def _failure(self, episode: int, draft: PartialCompletion, what: str) -> EngineError:
        return EngineError(f"episode {episode}: {what}; {len(draft.token_ids)} tokens received")

    @abstractmethod
    async def _complete(self, episode: int, draft: PartialCompletion) -> None:
        """Finishes the draft; no weights change meanwhile."""

    @abstractmethod
    async def _load(self, publication: Publication) -> None:
        """Loads the weights and checks that it computes with them; nothing is sampled meanwhile."""


class UpdateLock:
    """Allows many concurrent samples or one weight update, which has priority over new samples. Works across event loops and
    threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_sampling = 0
        self._is_shut = False

    @asynccontextmanager
    async def sampling(self) -> AsyncIterator[None]:
        """Waits until no update is running; no update runs inside."""
        while True:
            with self._lock:
                if not self._is_shut:
                    self._num_sampling += 1
                    break
            await asyncio.sleep(_POLL_SECONDS)
        try:
            yield
        finally:
            with self._lock:
                self._num_sampling -= 1

    @asynccontextmanager
    async def changing(self, timeout_seconds: float) -> AsyncIterator[None]:
        """Blocks new samples and waits for running ones. Raises `EngineError` if they do not end in time."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            with self._lock:
                if not self._is_shut:
                    self._is_shut = True
                    break
            await _until(deadline, timeout_seconds)
        try:
            while self._num_sampling:
                await _until(deadline, timeout_seconds)
            yield
        finally:
            self._is_shut = False


async def _until(deadline: float, timeout_seconds: float) -> None:
    if time.monotonic() > deadline:
        raise EngineError(f"the weights cannot be changed: samples were still running after {timeout_seconds:g} s")
    await asyncio.sleep(_POLL_SECONDS)
