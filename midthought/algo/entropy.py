"""Coefficient of the entropy bonus: fixed, or adapted to a target entropy."""

from __future__ import annotations

import math
from typing import Any


class EntropyController:
    """Coefficient α of the entropy bonus: fixed, or adapted to `target` (nats per policy token).

    Adaptive, with H the policy's entropy before an update: `c ← c + step` if `H < target`, else `c - step`, limited to
    [0, `max_coef`]; `α = c` if `H ≤ target`, else 0. α uses c before this change. Source: adaptive entropy control of
    Skywork-OR1 (arXiv 2505.22312). Raises ValueError for arguments out of range.
    """

    def __init__(self, coef: float, target: float | None = None, *, step: float = 1e-4, max_coef: float = 0.01) -> None:
        if not 0 <= coef < math.inf:
            raise ValueError(f"coef must be a finite number of 0 or more, got {coef}")
        if target is not None and not 0 < target < math.inf:
            raise ValueError(f"target must be a finite number above 0, or None (a fixed coefficient), got {target}")
        if target is not None and (step <= 0 or coef > max_coef):
            raise ValueError(f"step must be above 0 and coef at most max_coef, got {step}, {coef} and {max_coef}")
        self.coef = coef
        """c: the coefficient while the entropy is at most the target."""
        self.target = target
        self.step = step
        self.max_coef = max_coef

    def update(self, entropy: float) -> float:
        """Returns α for an update of a policy with this mean entropy, and adapts c for the next one.

        Raises ValueError if the entropy is not finite.
        """
        if self.target is None:
            return self.coef
        if not math.isfinite(entropy):
            raise ValueError(f"the entropy is {entropy}; find the log-probability that is not finite")
        used = self.coef if entropy <= self.target else 0.0
        change = self.step if entropy < self.target else -self.step
        self.coef = min(max(self.coef + change, 0.0), self.max_coef)
        return used

    def state_dict(self) -> dict[str, Any]:
        return {"coef": self.coef}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.coef = state["coef"]
