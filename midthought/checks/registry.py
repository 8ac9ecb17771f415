"""What a check reports, and the checks by name and time. Does not depend on what a check looks at."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from midthought.errors import SettingsError, near_names

Policy = Literal["off", "warn", "stop"]
"""What a run does with a finding: nothing, log it, or end."""
When = Literal["fit", "check", "scoring", "iteration"]
"""`fit`: before a run, also at the start of `fit`: it does not sample, call the reward or use the network. `check`: before a run,
only in `Trainer.check()` and `midthought doctor`. Both look at a `Setup`. `scoring`: after an iteration's episodes are scored,
before any weight changes. `iteration`: after each iteration and validation. Both look at a `History`."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem of a run. A check sets the first five fields; the others are set when it is reported."""

    observation: str
    """What is wrong, with its number; without a full stop."""
    action: str
    """The remedy: a setting or an action; without a full stop."""
    subject: str = ""
    """What the finding is about, if a check may report several: a tool, a metric."""
    policy: Policy = "warn"
    """`stop`: the run cannot work. `checks.policies` may replace it."""
    start_step: int = 0
    """First iteration of which the observation is true; 0: before the run."""
    check: str = ""
    step: int = 0
    """Iteration after which it was reported; 0: before the run."""

    def __str__(self) -> str:
        """Returns observation and remedy as one paragraph."""
        return f"{self.observation}. {self.action}"

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as JSON values."""
        return asdict(self)

    def to_lines(self) -> list[str]:
        """Returns the finding as text for a terminal."""
        when = f"since iteration {self.start_step}" if self.step else ""
        weight = "the run cannot work" if self.policy == "stop" else "warning"
        head = f"{self.check}  ({', '.join(filter(None, (weight, self.subject, when)))})"
        return [head, f"  {self.observation}", *([f"  try: {self.action}"] if self.action else [])]


@dataclass(frozen=True, slots=True)
class Check:
    """A registered check."""

    name: str
    when: When
    look: Callable[[Any], Iterable[Finding]]
    """Returns what is wrong; nothing if all is well. Before a run it raises `SkippedError` if it cannot tell."""

    def named(self, finding: Finding, policies: Mapping[str, Policy]) -> Finding:
        """Returns the finding with the name of this check and its policy: that of the settings, else the finding's own."""
        return replace(finding, check=self.name, policy=policies.get(self.name, finding.policy))


CHECKS: list[Check] = []
"""All checks, in the order in which they run."""


def check(name: str, when: When) -> Callable[..., Any]:
    """Registers a check, also one of your own; it replaces one with the same name and time.

    >>> @check("prompts_are_short", "fit")
    ... def prompts_are_short(setup):
    ...     if num_long := sum(len(task.prompt) > 500 for task in setup.tasks):
    ...         yield Finding(f"{num_long} prompts have more than 500 characters", "shorten them")
    >>> del CHECKS[-1]
    """

    def register(look: Callable[[Any], Iterable[Finding]]) -> Callable[[Any], Iterable[Finding]]:
        CHECKS[:] = [each for each in CHECKS if (each.name, each.when) != (name, when)]
        CHECKS.append(Check(name, when, look))
        return look

    return register


def require_known(policies: Mapping[str, Policy]) -> None:
    """Raises `SettingsError` for a policy of a check that is not registered."""
    names = {each.name for each in CHECKS}
    for name in policies.keys() - names:
        raise SettingsError(f"checks.policies: there is no check {name!r}. {near_names(name, names)}")
