"""A turnstile in front of an engine: shut, it interrupts every sequence between two tokens, and the episodes wait in it.

What was sampled until then is the episode's. Knows nothing of what is sampled, nor why it is interrupted.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

from midthought.engines.engine import Engine, Sampling, Stopper
from midthought.types import Completion, Finish

FIRST_NUMBER = 1 << 32
"""Episodes get new numbers in the engine whenever they pass, above those of everybody who uses the engine directly."""


class PausableEngine:
    """Implements `Engine` over another one. It begins shut.

    To the engine an interrupted episode is over and a later one begins, with a number of its own: its context is prefilled
    anew, as it is after a restart. Lower episodes get lower numbers where several pass at once.

    Args:
        engine: samples, while the turnstile is open.
        tokens_per_round: an episode may sample so many tokens, then it waits for the next `let_pass`. None: no such bound,
            and `interrupt` ends what is being sampled.
        on_waiting: called whenever an episode begins to wait here.
    """

    def __init__(
        self, engine: Engine, *, tokens_per_round: int | None = None, on_waiting: Callable[[], None] = lambda: None
    ) -> None:
        self._engine = engine
        self._tokens_per_round = tokens_per_round
        self._on_waiting = on_waiting
        self._is_open = False
        self._numbers: dict[int, int] = {}
        """The episodes that have passed, and their numbers in the engine."""
        self._next_numbers = itertools.count(FIRST_NUMBER)
        self._num_spent: dict[int, int] = defaultdict(int)
        """Tokens of the present round."""
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._samples: dict[int, tuple[asyncio.Future[Completion], _Watched]] = {}

    @property
    def policy_version(self) -> int:
        return self._engine.policy_version

    @property
    def eos_token_ids(self) -> frozenset[int]:
        return self._engine.eos_token_ids

    @property
    def is_open(self) -> bool:
        return self._is_open

    @property
    def num_waiting(self) -> int:
        """Episodes that would sample and may not."""
        return len(self._waiting)

    # -- the engine's side -------------------------------------------------------------------------------------

    def open(self, episode: int) -> None:
        """Nothing: the engine is told of an episode when it passes."""

    def close(self, episode: int) -> None:
        """To the engine the episode is over; an interrupted one is already."""
        number = self._numbers.pop(episode, None)
        if number is not None:
            self._engine.close(number)

    async def sample(
        self, episode: int, token_ids: Sequence[int], sampling: Sampling, *, stopper: Stopper | None = None
    ) -> Completion:
        """Wait until the turnstile is open, then sample. An interrupted completion ends as LENGTH, with what there is."""
        while True:
            await self._pass(episode)
            watched = _Watched(self, stopper)
            running = asyncio.ensure_future(
                self._engine.sample(
                    self._numbers[episode], token_ids, self._bounded(episode, sampling), stopper=watched
                )
            )
            self._samples[episode] = running, watched
            try:
                completion = await running
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if not watched.is_called_off or (task is not None and task.cancelling()):
                    raise
                continue
            finally:
                del self._samples[episode]
            self._num_spent[episode] += len(completion.token_ids)
            return replace(completion, finish=Finish.LENGTH) if watched.is_interrupted else completion

    def _bounded(self, episode: int, sampling: Sampling) -> Sampling:
        if self._tokens_per_round is None:
            return sampling
        return replace(sampling, max_tokens=min(sampling.max_tokens, self._tokens_per_round - self._num_spent[episode]))

    async def _pass(self, episode: int) -> None:
        while not self._is_open or self._num_spent[episode] == self._tokens_per_round:
            self.close(episode)
            place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting[episode] = place
            self._on_waiting()
            try:
                await place
            finally:
                self._waiting.pop(episode, None)
        if episode not in self._numbers:
            self._admit(episode)

    def _admit(self, episode: int) -> None:
        self._numbers[episode] = number = next(self._next_numbers)
        self._engine.open(number)

    # -- the side of whoever turns it --------------------------------------------------------------------------

    def let_pass(self) -> None:
        """Open it, and a new round begins: all who wait go on."""
        self._is_open = True
        self._num_spent.clear()
        for episode in sorted(self._waiting):
            self._admit(episode)
        for place in self._waiting.values():
            if not place.done():
                place.set_result(None)
        self._waiting.clear()

    async def interrupt(self) -> None:
        """Shut it; nothing is sampled any more when this returns.

        A sample that has given a token ends with the next one. One that has not (it waits for room, or for its prefill)
        is called off and asked for again when the turnstile opens: the seed and the place decide what is drawn.
        """
        self._is_open = False
        for running, watched in self._samples.values():
            if not watched.has_begun:
                watched.is_called_off = True
                running.cancel()
        while self._samples:
            await asyncio.wait([running for running, _ in self._samples.values()])
            await asyncio.sleep(0)
        for episode in list(self._numbers):
            self.close(episode)


class _Watched:
    """A stopper that also stops where the turnstile was shut."""

    def __init__(self, turnstile: PausableEngine, stopper: Stopper | None) -> None:
        self._turnstile = turnstile
        self._stopper = stopper
        self.has_begun = False
        self.is_interrupted = False
        self.is_called_off = False

    def feed(self, token_id: int) -> bool:
        self.has_begun = True
        is_due = self._stopper is not None and self._stopper.feed(token_id)
        self.is_interrupted = not is_due and not self._turnstile.is_open
        return is_due or self.is_interrupted
