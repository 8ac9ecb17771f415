"""Settings that every recipe has: control arms, and episodes to write."""

from __future__ import annotations

from pydantic import Field

from midthought.config import Harmless, Section


class RecipeEvaluation(Section):
    """Base of a recipe's section `evaluation`."""

    num_shown: Harmless[int] = Field(60, ge=0)
    """Episodes of each evaluation arm that are written to `trajectories.jsonl`, and of each training iteration and validation,
    there at most 8; 0: none."""
    control_arms: Harmless[list[str]] = Field(default_factory=list)
    """Also train and evaluate these variants of the run (`--arms`, docs/commands.md): `rft` and `rft_seconds` (rejection-sampling
    fine-tuning from the same warm-up, for as many episodes or seconds), `clean` (clean demonstrations, no RL), and in `feedback`
    `retry_only` (RL with feedback that only says whether an answer is right)."""
