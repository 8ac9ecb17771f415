"""What an advantage estimator reads, how it is registered, and the checks before it runs. Knows no estimator.

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
from midthought.config import TrainingConfig

NEEDS = frozenset({"values", "groups", "turns", "baselines"})
"""What an estimator may need besides rewards and mask."""


@dataclass(frozen=True, kw_only=True)
class CreditInputs:
    """E episodes of T tokens, as every estimator gets them. What stands outside the mask must not matter."""

    rewards: Tensor  # [E, T] float
    """Rewards at the policy tokens that they are credited to; a KL penalty is already in them."""
    mask: Tensor  # [E, T] bool
    """True for policy tokens."""
    values: Tensor | None = None  # [E, T]
    """The critic's value before every token."""
    groups: Tensor | None = None  # [E] int
    """Episodes of one task have the same number."""
    turns: Tensor | None = None  # [E, T] int
    """Number of the turn that a policy token belongs to: 0, 1, …; -1 elsewhere."""
    baselines: Tensor | None = None  # [E]
    """Reward of the greedy episode of the same task."""
    gamma: float = 1.0
    """Discount per policy token."""
    lam: float = 1.0
    whiten: bool = True
    norm_by_std: bool = True

    @property
    def scores(self) -> Tensor:
        """[E]: the sum of an episode's rewards at policy tokens."""
        return torch.where(self.mask, self.rewards, 0.0).sum(dim=1)

    @property
    def present(self) -> Tensor:
        """[E] bool: whether an episode has a policy token; those without are members of no group."""
        return self.mask.any(dim=1)

    def over_tokens(self, figures: Tensor) -> Tensor:
        """[E] -> [E, T]: an episode's figure at each of its policy tokens, 0 elsewhere."""
        return torch.where(self.mask, figures[:, None], 0.0)


Estimator = Callable[[CreditInputs], tuple[Tensor, Tensor]]
"""-> (advantages [E, T], returns [E, T]), 0 outside the mask. Returns are what a critic, if there is one, is taught."""

ESTIMATORS: Registry[Estimator] = Registry("advantage estimator")


def advantage_estimator(name: str, *, needs: Iterable[str] = ()) -> Callable[[Estimator], Estimator]:
    """Register the decorated function as `training.adv_estimator=name`.

    `needs` names what it cannot do without: `values`, `groups`, `turns`, `baselines`. The settings, the loop and the
    learner follow from it: a critic, groups of 2 or more of which those without spread are left out, greedy episodes.
    Raises ValueError where a need is unknown or the name ships with this library.
    """
    wanted = frozenset(needs)
    if unknown := sorted(wanted - NEEDS):
        raise ValueError(f"advantage estimator {name!r} cannot need {unknown}; what there is: {sorted(NEEDS)}")

    def register(function: Estimator) -> Estimator:
        ESTIMATORS.add(name, function)
        TrainingConfig.estimator_needs[name] = wanted
        return function

    return register


def estimate(name: str, inputs: CreditInputs) -> tuple[Tensor, Tensor]:
    """(advantages, returns) by the estimator of that name, after checking what it is given.

    Raises ValueError, naming the episode's row where there is one: an unknown estimator, a missing input, a wrong shape,
    a reward or baseline that is not finite.
    """
    function = ESTIMATORS.find(name)
    for need in sorted(TrainingConfig.estimator_needs[name]):
        if getattr(inputs, need) is None:
            raise ValueError(f"advantage estimator {str(name)!r} needs {need}: {_REMEDIES[need]}")
    check_inputs(inputs)
    return function(inputs)


def check_inputs(inputs: CreditInputs) -> None:
    """Raise ValueError for a wrong shape, or a reward or baseline that is not finite."""
    _check_shapes(inputs)
    _check_figures(inputs)


def numbered(groups: Tensor | Sequence[Hashable]) -> Tensor:
    """Groups as numbers [E]: a tensor as it is, anything else (texts, numpy's arrays) by the first of each."""
    if isinstance(groups, Tensor):
        return groups
    numbers: dict[Hashable, int] = {}
    return torch.tensor([numbers.setdefault(group, len(numbers)) for group in groups], dtype=torch.int64)


_REMEDIES = {
    "values": "score the batch with a critic, or use 'grpo'",
    "groups": "the group's number of every row",
    "turns": "the turn's number of every policy token",
    "baselines": "the reward of a greedy episode for every row",
}


def _check_shapes(inputs: CreditInputs) -> None:
    shape = inputs.mask.shape
    if len(shape) != 2 or 0 in shape[1:]:
        raise ValueError(f"the mask must have the shape [episodes, tokens], got {list(shape)}")
    for name, expected in {
        "rewards": shape,
        "values": shape,
        "turns": shape,
        "groups": shape[:1],
        "baselines": shape[:1],
    }.items():
        tensor = getattr(inputs, name)
        if tensor is not None and tensor.shape != expected:
            raise ValueError(f"{name} have the shape {list(tensor.shape)}, the mask asks for {list(expected)}")


def _check_figures(inputs: CreditInputs) -> None:
    broken = (inputs.mask & ~torch.isfinite(inputs.rewards)).nonzero()
    if len(broken):
        row, token = broken[0].tolist()
        raise ValueError(f"the reward of episode {row} at token {token} is {float(inputs.rewards[row, token])}")
    if inputs.baselines is not None:
        rows = (inputs.present & ~torch.isfinite(inputs.baselines)).nonzero()
        if len(rows):
            raise ValueError(f"the baseline of episode {int(rows[0])} is {float(inputs.baselines[rows[0]])}")
