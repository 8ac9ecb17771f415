"""Inputs of advantage estimators, their registration, and the checks before they run.

@advantage_estimator("above_median")
def above_median(inputs: CreditInputs) -> tuple[Tensor, Tensor]:
    advantages = inputs.over_tokens(inputs.scores - inputs.scores.median())
    return advantages, advantages
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from midthought.algo.registry import Registry
from midthought.algo.tensors import require_tensors
from midthought.config import TrainingConfig

NEEDS = {
    "values": "score the batch with a critic, or use 'grpo'",
    "groups": "give the group number of every row as index",
    "turns": "give the turn number of every policy token",
    "calls": "give the number of the call step of every policy token",
}
"""Inputs that an estimator may require besides rewards and mask, with the remedy if one is missing."""


@dataclass(frozen=True, kw_only=True)
class CreditInputs:
    """Inputs of an estimator: E episodes of T tokens. Values outside the mask must not affect the result."""

    rewards: Tensor  # [E, T] float
    """Rewards at the policy tokens that they are credited to, KL penalty included."""
    mask: Tensor  # [E, T] bool
    """True for policy tokens."""
    values: Tensor | None = None  # [E, T]
    """The critic's value of the state before every token."""
    groups: Tensor | None = None  # [E] int
    """Episodes of one task have the same number."""
    turns: Tensor | None = None  # [E, T] int
    """Index of the turn of every policy token: 0, 1, …; -1 elsewhere."""
    calls: Tensor | None = None  # [E, T] int
    """Index of the call step of every policy token: 0, 1, …; -1 elsewhere. A step ends with the last policy token before the
    result of a call (or of parallel calls); the tokens after the last call are one more step."""
    gamma: float = 1.0
    """Discount per policy token, or per step of estimators with steps (turns, call steps)."""
    lam: float = 1.0
    whiten: bool = True
    norm_by_std: bool = True

    @property
    def scores(self) -> Tensor:
        """[E]: sum of each episode's rewards at policy tokens. Does not depend on their order: it is rounded once."""
        return torch.where(self.mask, self.rewards, 0.0).sum(dim=1, dtype=torch.float64).to(self.rewards.dtype)

    @property
    def present(self) -> Tensor:
        """[E] bool: whether the episode has a policy token; without one it is not a member of its group."""
        return self.mask.any(dim=1)

    def over_tokens(self, values: Tensor) -> Tensor:
        """[E] -> [E, T]: an episode's value at each of its policy tokens, 0 elsewhere."""
        return torch.where(self.mask, values[:, None], 0.0)


Estimator = Callable[[CreditInputs], tuple[Tensor, Tensor]]
"""Returns (advantages [E, T], returns [E, T]), 0 outside the mask. Returns are the targets of the critic, if there is one."""

ESTIMATORS: Registry[Estimator] = Registry("advantage estimator")


def advantage_estimator(name: str, *, needs: Iterable[str] = ()) -> Callable[[Estimator], Estimator]:
    """Registers the decorated function as `training.adv_estimator=name`.

    `needs` lists the inputs that it requires: `values` (the run trains a critic), `groups` (groups of 2 or more; zero-variance
    groups are dropped), `turns`, `calls`. Raises ValueError for an unknown input or the name of a built-in estimator.
    """
    wanted = frozenset(needs)
    if unknown := sorted(wanted - NEEDS.keys()):
        raise ValueError(f"advantage estimator {name!r} cannot need {unknown}; possible needs: {sorted(NEEDS)}")

    def register(function: Estimator) -> Estimator:
        ESTIMATORS.add(name, function)
        TrainingConfig.estimator_needs[name] = wanted
        return function

    return register


def estimate(name: str, inputs: CreditInputs) -> tuple[Tensor, Tensor]:
    """Checks the inputs and returns (advantages, returns) of the estimator of this name.

    Raises ValueError, with the row of the episode if possible, for an unknown estimator, a missing input, a wrong shape, or a
    reward that is not finite.
    """
    function = ESTIMATORS.find(name)
    for need in sorted(TrainingConfig.estimator_needs[name]):
        if getattr(inputs, need) is None:
            raise ValueError(f"advantage estimator {str(name)!r} needs {need}: {NEEDS[need]}")
    check_inputs(inputs)
    return function(inputs)


def check_inputs(inputs: CreditInputs) -> None:
    """Raises ValueError for a wrong shape, or a reward that is not finite; TypeError for what is no tensor."""
    require_tensors(values=inputs.values, turns=inputs.turns, calls=inputs.calls)
    shape = inputs.mask.shape
    if len(shape) != 2 or 0 in shape[1:]:
        raise ValueError(f"the mask must have the shape [episodes, tokens], got {list(shape)}")
    expected = {"rewards": shape, "values": shape, "turns": shape, "calls": shape, "groups": shape[:1]}
    for name, its_shape in expected.items():
        tensor = getattr(inputs, name)
        if tensor is not None and tensor.shape != its_shape:
            raise ValueError(f"{name} have the shape {list(tensor.shape)}, the mask requires {list(its_shape)}")
    broken = (inputs.mask & ~torch.isfinite(inputs.rewards)).nonzero()
    if len(broken):
        row, token = broken[0].tolist()
        raise ValueError(f"the reward of episode {row} at token {token} is {float(inputs.rewards[row, token])}")


def numbered(groups: Tensor | Sequence[Hashable]) -> Tensor:
    """Returns groups as numbers [E]: a tensor unchanged, other values (strings, NumPy arrays) numbered by first occurrence."""
    if isinstance(groups, Tensor):
        return groups
    numbers: dict[Hashable, int] = {}
    return torch.tensor([numbers.setdefault(group, len(numbers)) for group in groups], dtype=torch.int64)
