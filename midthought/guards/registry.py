"""The guards by name. A guard is a function of the run's history, registered with `@guard`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from midthought.errors import SettingsError, near_names
from midthought.guards.finding import Finding, Policy
from midthought.guards.history import History

Check = Callable[[History], Iterable[Finding]]
"""Returns what is wrong at the last row of the history; nothing if all is well."""

LOWER_LEARNING_RATE: Mapping[str, float] = {"training.learning_rate": 0.5, "training.critic_learning_rate": 0.5}
"""Settings that a rollback multiplies by these factors, for failures of learning."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Guard:
    """A registered guard."""

    name: str
    check: Check
    policy: Policy
    """What the trainer does by default."""
    rollback: Mapping[str, float] = field(default_factory=dict)
    """Settings that a rollback changes, with their factors. Empty: a rollback cannot help."""
    is_before_update: bool = False
    """Whether the metrics of scoring suffice, so that the trainer also asks before any weight changes."""


GUARDS: dict[str, Guard] = {}
"""All guards, by name."""


def guard(
    name: str,
    *,
    policy: Policy = "warn",
    rollback: Mapping[str, float] | None = None,
    is_before_update: bool = False,
) -> Callable[[Check], Check]:
    """Registers a guard, also one of your own:

    >>> @guard("reward_is_negative")
    ... def reward_is_negative(history):
    ...     rows = history.streak(lambda row: row["reward/mean"] < 0)
    ...     if len(rows) >= 5:
    ...         yield Finding(observation="5 iterations in a row have a negative reward", start_step=int(rows[0]["step"]))
    >>> del GUARDS["reward_is_negative"]
    """

    def register(check: Check) -> Check:
        GUARDS[name] = Guard(
            name=name, check=check, policy=policy, rollback=rollback or {}, is_before_update=is_before_update
        )
        return check

    return register


def policies_of(given: Mapping[str, Policy]) -> dict[str, Policy]:
    """Returns the policy of every guard: `given`, else its default.

    Raises `SettingsError` for an unknown name, and for a rollback that cannot help.
    """
    for name, policy in given.items():
        if name not in GUARDS:
            raise SettingsError(f"guards.policies: there is no guard {name!r}. {near_names(name, GUARDS)}")
        if policy == "rollback" and not GUARDS[name].rollback:
            able = ", ".join(sorted(each.name for each in GUARDS.values() if each.rollback))
            raise SettingsError(
                f"guards.policies: {name}=rollback: another seed and learning rate do not remove its cause; set it to warn or "
                f"stop (rollback is possible for {able})"
            )
    return {name: given.get(name, each.policy) for name, each in GUARDS.items()}
