"""A version of the policy's weights for servers to load, and the check that a server uses it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from midthought.errors import EngineError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class WeightCheck:
    """Compares a server's log-probabilities with the policy's.

    The server samples one token after each of several prefixes of a text. Sampling works as in rollouts, so a prefix cache
    with results of older weights is detected, too.
    """

    token_ids: Sequence[int]
    lengths: Sequence[int]
    """Lengths of the P prefixes, ascending."""
    logprobs: Tensor  # [P, V], the policy's distribution after each prefix
    tolerance: float
    """Maximum mean difference, in nats."""

    def check(self, url: str, sampled: Sequence[tuple[int, float]], likely_cause: str) -> None:
        """Checks the (token, log-probability) pairs that a server sampled after the first prefixes.

        Raises `EngineError` with the likely cause if the log-probabilities are not the policy's.
        """
        if not sampled:
            raise EngineError(f"the context of {url} is too short to check its weights")
        differences = [
            abs(float(row[token_id]) - logprob) if token_id < len(row) else float("inf")
            for row, (token_id, logprob) in zip(self.logprobs, sampled, strict=False)
        ]
        difference = sum(differences) / len(differences)
        if not difference <= self.tolerance:
            raise EngineError(
                f"{url} does not compute with the new weights: its log-probabilities differ from the "
                f"policy's by {difference:.3g} on average, {self.tolerance:g} are allowed. {likely_cause}"
            )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Publication:
    """Weights that every server of an engine must load."""

    path: Path
    """Folder with the weights; the servers see it under the same path."""
    adapter: str | None = None
    """Name of the adapter in the folder; None: the folder contains a whole model."""
    proof: WeightCheck
    likely_cause: str
    """Likely reason if a server loads the weights and still computes something else."""
