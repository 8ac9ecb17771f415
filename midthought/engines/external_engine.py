"""Base of the engines outside the learner's process (model servers, vLLM): one that follows a policy loads each of its updates.

Everything runs on the engine's own event loop, stoppers included; callers may be on any loop and thread. At most one sample per
episode runs at a time, and no sample runs while the weights change.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Self

from midthought.engines.engine import Sampling, Stopper
from midthought.engines.servers.connection import RetryPolicy
from midthought.engines.servers.streams import PartialCompletion
from midthought.engines.weight_publication import Publication, PublishedPolicy
from midthought.errors import EngineError, SettingsError
from midthought.tools.background_loop import BackgroundLoop
from midthought.types import Completion

_POLL_SECONDS = 0.01


class ExternalEngine(ABC):
    """Implements `midthought.engines.engine.TrainedEngine`, except for the computing.

    Args:
        eos_token_ids: the tokens that end a sequence; the own ones of its model are ignored.
        max_seq_len: maximum tokens of a sequence, including the prompt; None: the model's limit.
        max_num_seqs: maximum concurrent sequences.
    """

    reads_memory = False
    """Whether it gets whole models as `SharedTensors`; else from a folder."""
    policy_version = 0
    can_sleep = is_asleep = False
    """Whether it can release its memory, and whether it has: then it must load the weights again before it samples."""

    def __init__(
        self,
        *,
        eos_token_ids: Sequence[int] | frozenset[int],
        max_seq_len: int | None,
        max_num_seqs: int,
        retry_policy: RetryPolicy | None,
    ) -> None:
        if max_num_seqs < 1 or (max_seq_len is not None and max_seq_len < 2):
            raise SettingsError(
                f"max_num_seqs={max_num_seqs}, max_seq_len={max_seq_len}: "
                "an engine needs room for at least one sequence of two tokens"
            )
        self.eos_token_ids = frozenset(eos_token_ids)
        self.max_seq_len = max_seq_len or 0
        """0: not known here."""
        self.retry_policy = retry_policy or RetryPolicy()
        self._samples: dict[int, concurrent.futures.Future[Completion]] = {}
        self._num_sampling, self.is_changing, self._is_shut_down = 0, False, False
        """`is_changing`: new samples wait, because the weights change, or wait for running samples."""
        self._loop = BackgroundLoop(f"midthought-{type(self).__name__}")
        self._policy: PublishedPolicy | None = None
        self._updates, self._waking = threading.Lock(), asyncio.Lock()

    # -- samples -----------------------------------------------------------------------------------------------

    async def sample(
        self, episode: int, token_ids: Sequence[int], sampling: Sampling, *, stopper: Stopper | None = None
    ) -> Completion:
        """Samples after `token_ids` until the stopper, an end-of-sequence token, `max_tokens` or the maximum length ends it.

        Then the request ends; later tokens that have arrived are cut and counted. Cancelling the caller cancels the request.
        Each completion comes from one version of the weights.

        Raises `EngineError` if `token_ids` is empty, the episode is being sampled already, the request is refused, it is not
        completed within the limits of the retry policy, or the engine is shut down.
        """
        self._require_running()
        if not token_ids:
            raise EngineError(f"episode {episode}: nothing to continue; give at least one token id")
        if episode in self._samples:
            raise EngineError(f"episode {episode} is being sampled already; await its completion first")
        draft = PartialCompletion(list(token_ids), sampling, self.eos_token_ids, stopper)
        self._samples[episode] = running = self._loop.start(self._sample(episode, draft))
        try:
            return await asyncio.wrap_future(running)
        except asyncio.CancelledError:
            if not self._is_shut_down or ((task := asyncio.current_task()) is not None and task.cancelling()):
                raise
            raise EngineError(f"episode {episode}: the engine was shut down") from None
        finally:
            draft.stopper = None  # of a cancelled sample, which ends later
            del self._samples[episode]

    def open(self, episode: int) -> None:  # noqa: B027  # prefix caches work without it
        """Starts a new sequence."""

    def close(self, episode: int) -> None:
        """Ends the episode and cancels its running sample."""
        if (running := self._samples.get(episode)) is not None:
            running.cancel()

    @property
    def progress(self) -> object:
        """Always another object: servers and vLLM have limits for each request."""
        return object()

    async def _sample(self, episode: int, draft: PartialCompletion) -> Completion:
        seconds = self.retry_policy.total_timeout_seconds
        try:
            async with asyncio.timeout(seconds) as deadline:
                while self.is_changing or self.is_asleep:
                    await self._wait_for_weights()
                self._num_sampling += 1
                try:
                    version = self.policy_version
                    await self._complete(episode, draft)
                finally:
                    self._num_sampling -= 1
        except TimeoutError:
            if not deadline.expired():
                raise
            raise self._failure(episode, draft, f"not complete after {seconds:g} s") from None
        return draft.completion(version)

    async def _wait_for_weights(self) -> None:
        """Waits while the weights change, or wakes the engine up: one sample does, in a thread, and the others wait for it."""
        if self.is_changing:
            await asyncio.sleep(_POLL_SECONDS)
            return
        async with self._waking:
            if self.is_asleep:
                await asyncio.to_thread(self._wake_up)

    def _require_running(self) -> None:
        if self._is_shut_down:
            raise EngineError(f"this {type(self).__name__} was shut down; create a new one")

    def _failure(self, episode: int, draft: PartialCompletion, what: str) -> EngineError:
        return EngineError(f"episode {episode}: {what}; {len(draft.token_ids)} tokens received")

    # -- weights -----------------------------------------------------------------------------------------------

    def follow(self, policy: PublishedPolicy) -> Self:
        """Samples from this policy from now on, which has the architecture of the engine's model. Shuts it down if that fails.

        The update is tested: the engine loads the policy with perturbed weights, then the real ones, with a check after each.
        So an engine that reports success but keeps the old weights is detected before training starts; the small change of a
        training step would hide it.

        Raises `EngineError` if the engine cannot be reached, does not accept weights, or computes something else.
        """
        self._policy = policy
        try:
            self.check()
            with policy.perturbed():
                self._publish(0)
            self._publish(0)
        except BaseException:
            self.shutdown()
            raise
        return self

    def update_weights(self) -> None:
        """Loads the policy, which was changed in place, and increments the version.

        Running samples are awaited first and new ones wait, so no completion mixes weights. Wakes up from `sleep`.

        Raises `EngineError` if the engine does not load the weights, computes something else, or is shut down.
        """
        with self._updates:
            self._publish(self.policy_version + 1)

    def sleep(self) -> None:
        """Releases its memory, if it can, after running samples; the next sample or update loads the policy again."""
        with self._updates:
            if self.can_sleep and not self.is_asleep and not self._is_shut_down:
                self._loop.run(self._fall_asleep())

    def shutdown(self) -> None:
        """Removes the written weights, and stops what was started for the engine; running samples fail. May be called twice."""
        self._is_shut_down = True
        for running in list(self._samples.values()):
            running.cancel()
        self._loop.close()
        if self._policy is not None:
            self._policy.remove_folder()

    def _wake_up(self) -> None:
        with self._updates:
            if self.is_asleep:
                self._publish(self.policy_version)

    def _publish(self, policy_version: int) -> None:
        self._require_running()
        assert self._policy is not None
        with self._policy.publication(in_memory=self.reads_memory) as publication:
            self._loop.run(self._load_version(publication, policy_version))

    async def _load_version(self, publication: Publication, policy_version: int) -> None:
        async with self._changing():
            await self._load(publication)
            self.policy_version, self.is_asleep = policy_version, False

    async def _fall_asleep(self) -> None:
        async with self._changing():
            await self._sleep()
            self.is_asleep = True

    @asynccontextmanager
    async def _changing(self) -> AsyncIterator[None]:
        """Blocks new samples and waits for running ones. Raises `EngineError` if they do not end in time."""
        give_up_at = time.monotonic() + (seconds := self.retry_policy.total_timeout_seconds)
        self.is_changing = True
        try:
            while self._num_sampling:
                if time.monotonic() > give_up_at:
                    raise EngineError(f"the weights cannot be changed: samples were still running after {seconds:g} s")
                await asyncio.sleep(_POLL_SECONDS)
            yield
        finally:
            self.is_changing = False

    # -- one kind of engine ------------------------------------------------------------------------------------

    def check(self) -> None:
        """Checks that it can be used. Raises `EngineError` or `SettingsError`."""
        self._require_running()
        self._loop.run(self._check())

    @abstractmethod
    async def _check(self) -> None:
        """See `check`."""

    @abstractmethod
    async def _complete(self, episode: int, draft: PartialCompletion) -> None:
        """Finishes the draft; no weights change meanwhile."""

    @abstractmethod
    async def _load(self, publication: Publication) -> None:
        """Loads the weights and checks that it computes with them; nothing is sampled meanwhile."""

    async def _sleep(self) -> None:  # noqa: B027  # most engines keep their memory
        """Releases its memory; nothing is sampled meanwhile."""
