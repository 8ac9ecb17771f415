"""What a guard or a check of the doctor reports: observation, start step, likely causes in order, suggested action."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Policy = Literal["off", "warn", "stop", "rollback"]
"""What the trainer does with a finding: nothing, log it, end the run, or go back to a checkpoint."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One problem of a run. A guard sets the first six fields; `Monitor` sets the others."""

    observation: str
    """What the logged numbers show; without a full stop."""
    start_step: int = 0
    """First iteration of which the observation is true; 0: before the run."""
    causes: Sequence[str] = ()
    """Likely causes, the most likely first."""
    action: str = ""
    """What to try; without a full stop."""
    subject: str = ""
    """What the finding is about, if a guard may report several at once: a tool, a metric."""
    at_most: Policy = "rollback"
    """The strongest policy of this finding: a guard may limit itself to a warning."""
    guard: str = ""
    """Name of the guard or the check."""
    step: int = 0
    """Iteration after which it was reported."""
    last_step: int = 0
    """Last iteration of which the observation is true, so far."""
    policy: Policy = "warn"
    """What the trainer does."""

    def __str__(self) -> str:
        """One paragraph: observation, causes, action."""
        causes = "; ".join(f"({number}) {cause}" for number, cause in enumerate(self.causes, start=1))
        named = (
            f"Likely causes, the most likely first: {causes}" if len(self.causes) > 1 else f"Likely cause: {causes[4:]}"
        )
        parts = [self.observation, *([named] if causes else []), *([self.action] if self.action else [])]
        return ". ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as JSON values."""
        row = asdict(self)
        del row["at_most"]
        return {"guard": row.pop("guard"), "policy": row.pop("policy"), **row, "causes": list(self.causes)}


def by_evidence(*causes: tuple[bool | None, str]) -> tuple[str, ...]:
    """Returns the causes for which there is evidence (True), then those that need none (None), without the others (False).

    >>> by_evidence((None, "a"), (True, "b"), (False, "c"))
    ('b', 'a')
    """
    return tuple(text for wanted in (True, None) for evidence, text in causes if evidence is wanted)


def to_lines(findings: Iterable[Finding]) -> list[str]:
    """Returns the findings as text for a terminal."""
    lines = []
    for finding in findings:
        until = f"to {finding.last_step}" if finding.last_step > finding.start_step else "alone"
        lines.append(f"{finding.guard}  (iteration {finding.start_step} {until}, policy {finding.policy})")
        lines.append(f"  {finding.observation}")
        lines += [f"  cause {number}: {cause}" for number, cause in enumerate(finding.causes, start=1)]
        lines += [f"  try: {finding.action}"] if finding.action else []
    return lines
