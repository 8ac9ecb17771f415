"""The checks by name. A check is a function of the setup of a run, registered with `@check`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from midthought.doctor.setup import Setup
from midthought.guards.finding import Finding

Look = Callable[[Setup], Iterable[Finding]]
"""Returns what is wrong; nothing if all is well. Raises `SkippedError` if it cannot tell."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """A registered check."""

    name: str
    look: Look
    is_fast: bool
    """Whether it also runs at the start of `train` and `fit`: it neither samples, nor calls the reward, nor uses the network."""


CHECKS: dict[str, Check] = {}
"""All checks, by name, in the order in which they run."""


def check(name: str, *, is_fast: bool = False) -> Callable[[Look], Look]:
    """Registers a check, also one of your own. A finding with `policy="stop"` means that the run cannot work:

    >>> @check("prompts_are_short")
    ... def prompts_are_short(setup):
    ...     if any(len(task.prompt) > 500 for task in setup.tasks):
    ...         yield Finding(observation="a prompt has more than 500 characters", action="shorten it")
    >>> del CHECKS["prompts_are_short"]
    """

    def register(look: Look) -> Look:
        CHECKS[name] = Check(name=name, look=look, is_fast=is_fast)
        return look

    return register
