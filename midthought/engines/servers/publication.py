"""One state of a policy for servers to load, and the proof that one of them computes with it.

Knows folders, token ids and log-probabilities; nothing of models or connections.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from midthought.errors import EngineError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Proof:
    """What a server must answer: one token is drawn after each of several beginnings of one text, and what it records for
    that token must be the policy's own log-probability. The tokens are drawn as those of rollouts are, so what a prefix
    cache kept of older weights shows, too."""

    token_ids: Sequence[int]
    lengths: Sequence[int]
    """Of the P beginnings, ascending."""
    logprobs: Tensor  # [P, V], the policy's distribution after each of them
    tolerance: float
    """Largest mean difference, in nats."""

    def check(self, url: str, drawn: Sequence[tuple[int, float]], likely_cause: str) -> None:
        """Take what a server drew after the first beginnings, (token, log-probability) each.

        Raises EngineError, which names the likely cause, where they are not the policy's.
        """
        if not drawn:
            raise EngineError(f"{url} has room for sequences that are shorter than any that could show what it holds")
        differences = [
            abs(float(row[token_id]) - logprob) if token_id < len(row) else float("inf")
            for row, (token_id, logprob) in zip(self.logprobs, drawn, strict=False)
        ]
        difference = sum(differences) / len(differences)
        if not difference <= self.tolerance:
            raise EngineError(
                f"{url} does not compute with the weights that it was given: its log-probabilities differ from the "
                f"policy's by {difference:.3g} on average, {self.tolerance:g} are allowed. {likely_cause}"
            )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Publication:
    """What every server of an engine is to hold from now on."""

    path: Path
    """A folder that the servers read under the same path."""
    adapter: str | None = None
    """The name of the adapter that the folder holds; None: it holds a whole model."""
    proof: Proof
    likely_cause: str
    """Why a server that took it might still compute something else."""
