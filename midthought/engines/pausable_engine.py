"""Engine wrapper that can be paused: `pause()` interrupts every sequence between two tokens; episodes wait until `resume()`.

Tokens sampled before the pause are kept.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

from midthought.engines.engine import Engine, Sampling, Stopper
from midthought.types import Completion, Finish

FIRST_NUMBER = 1 << 32
"""Each time an episode resumes it gets a new number in the engine, above the numbers of direct users of the engine."""


class PausableEngine:
    """Implements `Engine` over another engine. It starts paused.

    For the engine an interrupted episode ends, and after `resume` a new one with another number starts: its context is
    prefilled again, as after a restart. If several episodes resume at once, lower episodes get lower numbers.

    Args:
        engine: samples while not paused.
        tokens_per_round: maximum tokens per episode until the next `resume`. None: no limit; `pause` ends running samples.
        on_waiting: called when an episode starts to wait here.
    """

    def __init__(
        self, engine: Engine, *, tokens_per_round: int | None = None, on_waiting: Callable[[], None] = lambda: None
    ) -> None:
        self._engine = engine
        self._tokens_per_round = tokens_per_round
        self._on_waiting = on_waiting
        self.is_running = False
        self._numbers: dict[int, int] = {}
        """Numbers of the running episodes in the engine."""
        self._next_numbers = itertools.count(FIRST_NUMBER)
        self._num_round_tokens: dict[int, int] = defaultdict(int)
        """Tokens sampled since the last `resume`."""
        self.num_tokens = 0
        """Tokens sampled; those of a cancelled sample are not counted."""
        self._busy: tuple[float, float | None] = 0.0, None
        """Seconds, and since when it samples now; one object, because other threads read it."""
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._samples: dict[int, tuple[asyncio.Future[Completion], _InterruptibleStopper]] = {}

    @property
    def policy_version(self) -> int:
        return self._engine.policy_version

    @property
    def eos_token_ids(self) -> frozenset[int]:
        return self._engine.eos_token_ids

    @property
    def busy_seconds(self) -> float:
        """Seconds in which at least one episode was sampled."""
        seconds, since = self._busy
        return seconds if since is None else seconds + time.perf_counter() - since

    @property
    def progress(self) -> object:
        """Changes with every token, and always if no episode is sampled."""
        return self.num_tokens if self._samples else object()

    @property
    def num_waiting(self) -> int:
        """Number of episodes that wait to sample."""
        return len(self._waiting)

    def open(self, episode: int) -> None:
        """Does nothing: an episode is opened in the engine when it starts to sample."""

    def close(self, episode: int) -> None:
        """Closes the episode in the engine, if it is open there."""
        if (number := self._numbers.pop(episode, None)) is not None:
            self._engine.close(number)

    async def sample(
        self, episode: int, token_ids: Sequence[int], sampling: Sampling, *, stopper: Stopper | None = None
    ) -> Completion:
        """Waits while paused, then samples. An interrupted completion finishes with LENGTH and the tokens so far."""
        while True:
            await self._wait_for_turn(episode)
            max_tokens = sampling.max_tokens
            if self._tokens_per_round is not None:
                max_tokens = min(max_tokens, self._tokens_per_round - self._num_round_tokens[episode])
            bounded = replace(sampling, max_tokens=max_tokens)
            interruptible = _InterruptibleStopper(self, stopper)
            number = self._numbers[episode]
            running = asyncio.ensure_future(self._engine.sample(number, token_ids, bounded, stopper=interruptible))
            if not self._samples:
                self._busy = self.busy_seconds, time.perf_counter()
            self._samples[episode] = running, interruptible
            try:
                completion = await running
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if not interruptible.is_cancelled or (task is not None and task.cancelling()):
                    raise
                continue
            finally:
                del self._samples[episode]
                if not self._samples:
                    self._busy = self.busy_seconds, None
            self._num_round_tokens[episode] += len(completion.token_ids)
            return replace(completion, finish=Finish.LENGTH) if interruptible.is_interrupted else completion

    async def _wait_for_turn(self, episode: int) -> None:
        while not self.is_running or self._num_round_tokens[episode] == self._tokens_per_round:
            self.close(episode)
            self._waiting[episode] = asyncio.get_running_loop().create_future()
            self._on_waiting()
            try:
                await self._waiting[episode]
            finally:
                self._waiting.pop(episode, None)
        if episode not in self._numbers:
            self._open_in_engine(episode)

    def _open_in_engine(self, episode: int) -> None:
        self._numbers[episode] = number = next(self._next_numbers)
        self._engine.open(number)

    def resume(self) -> None:
        """Starts a new round: all waiting episodes continue."""
        self.is_running = True
        self._num_round_tokens.clear()
        for episode in sorted(self._waiting):
            self._open_in_engine(episode)
        for place in self._waiting.values():
            if not place.done():
                place.set_result(None)
        self._waiting.clear()

    async def pause(self) -> None:
        """Interrupts all sequences. When this returns, nothing is sampled.

        A sample that has produced a token ends with its next one. A sample without a token (it waits for a slot or its prefill)
        is cancelled and repeated after `resume`, with the same result, because tokens depend only on seed and position.
        """
        self.is_running = False
        for running, interruptible in self._samples.values():
            if interruptible.cancel():
                running.cancel()
        while self._samples:
            await asyncio.wait([running for running, _ in self._samples.values()])
            await asyncio.sleep(0)
        for episode in list(self._numbers):
            self.close(episode)


class _InterruptibleStopper:
    """A stopper that also stops when the engine is paused. Engines may feed it from a thread of their own."""

    def __init__(self, pausable: PausableEngine, stopper: Stopper | None) -> None:
        self._pausable, self._stopper = pausable, stopper
        self._lock = threading.Lock()
        self._has_started = self.is_interrupted = self.is_cancelled = False

    def cancel(self) -> bool:
        """Whether no token came before. Later ones do not reach the stopper, because the sample is repeated."""
        with self._lock:
            self.is_cancelled = not self._has_started
        return self.is_cancelled

    def feed(self, token_id: int) -> bool:
        with self._lock:
            if self.is_cancelled:
                return True
            self._has_started = True
        self._pausable.num_tokens += 1
        is_due = self._stopper is not None and self._stopper.feed(token_id)
        self.is_interrupted = not is_due and not self._pausable.is_running
        return is_due or self.is_interrupted
