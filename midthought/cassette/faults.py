"""Draws the fault of a call from rules, by its position in the run, and applies it. Does not depend on the order of calls."""

from __future__ import annotations

import asyncio
import fnmatch
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from midthought.config import FaultRule
from midthought.random_streams import number_of

T = TypeVar("T")

INJECTED = "injected fault"
"""Part of the message of every injected error."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CallPosition:
    """Position of a call in a run: it does not depend on what other episodes do."""

    part: str
    episode: int
    kind: str
    name: str
    call: int
    """Number among the calls of this kind and name in the episode, from 1."""


@dataclass(frozen=True, slots=True)
class Fault:
    """The fault of one call: `error`, `timeout`, `slow` or `garbled`."""

    name: str
    seconds: float
    seed: int

    def garble(self, text: str) -> str:
        """Returns the characters of a text in another order."""
        return "".join(random.Random(self.seed).sample(text, len(text)))

    async def apply(
        self,
        run: Callable[[], Awaitable[T]],
        garbled: Callable[[T, Callable[[str], str]], T],
        error: Callable[[str], Exception],
        *,
        hangs: bool,
    ) -> T:
        """Awaits `run()` with this fault. `garbled(value, garble)` returns the value with its texts garbled.

        A `timeout` waits until it is cancelled if it `hangs`, because the caller has a deadline; otherwise it raises at once.
        """
        if self.name == "error":
            raise error(INJECTED)
        if self.name == "timeout":
            if hangs:
                await asyncio.Event().wait()
            raise error(f"no reply before the deadline ({INJECTED})")
        if self.name == "slow":
            await asyncio.sleep(self.seconds)
        value = await run()
        return garbled(value, self.garble) if self.name == "garbled" else value


class Faults:
    """The faults of a run: `draw` returns the same for the same position and seed."""

    def __init__(self, rules: Sequence[FaultRule] = (), seed: int = 0) -> None:
        self._rules = tuple(rules)
        self._seed = seed

    def draw(self, at: CallPosition) -> Fault | None:
        """Returns the fault of the call at this position: of the first rule that applies; None if none does."""
        for number, rule in enumerate(self._rules):
            if not _applies(rule, at):
                continue
            draws = random.Random(_seed(self._seed, number, at))
            if draws.random() < rule.rate:
                return Fault(draws.choice(rule.choices), rule.seconds, draws.getrandbits(32))
        return None


def _applies(rule: FaultRule, at: CallPosition) -> bool:
    return (
        rule.kind == at.kind
        and rule.name in ("", at.name)
        and rule.call in (None, at.call)
        and rule.episode in (None, at.episode)
        and (not rule.part or fnmatch.fnmatchcase(at.part, rule.part))
    )


def _seed(seed: int, rule: int, at: CallPosition) -> int:
    parts = (seed, rule, at.part, at.episode, at.kind, at.name, at.call)
    return number_of(parts, 8)
