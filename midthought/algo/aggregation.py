"""Aggregation of token losses to one number: the weight of every token, computed once per optimizer step.

Weights are split together with the rows, so micro-batches, padding and order do not change the loss.
"""

from __future__ import annotations

import torch
from torch import Tensor

from midthought.algo.registry import NamedChoice
from midthought.algo.tensors import as_mask, require_one_shape


class LossAggregation(NamedChoice):
    """How token losses are averaged over an optimizer step; the names are verl's."""

    TOKEN_MEAN = "token-mean"
    """All tokens have the same weight: `Σ ℓ / number of tokens` (DAPO, arXiv 2503.14476, eq. 12)."""
    SEQ_MEAN_TOKEN_MEAN = "seq-mean-token-mean"
    """All episodes have the same weight: the mean over episodes of the mean of their tokens (GRPO, arXiv 2402.03300, eq. 3)."""
    SEQ_MEAN_TOKEN_SUM = "seq-mean-token-sum"
    """The mean over episodes of the sum of their tokens."""
    SEQ_MEAN_TOKEN_SUM_NORM = "seq-mean-token-sum-norm"
    """The same, divided by a constant number of tokens (Dr. GRPO, arXiv 2503.20783, section 3.2)."""


def loss_weights(
    mask: Tensor, episodes: Tensor, kind: LossAggregation | str, norm_tokens: int | None = None
) -> tuple[Tensor | None, float]:
    """Returns (weights, denominator) of an optimizer step, whose loss is `Σ weight · ℓ / denominator` over policy tokens.

    `mask` marks policy tokens, `episodes` is the episode of every token, both of one shape. Weights have this shape and are 0
    outside the mask, or None if all are 1. `norm_tokens` is the constant of `seq-mean-token-sum-norm`. Episodes without a
    policy token are not counted. Raises ValueError for an unknown kind, different shapes, or a missing constant.
    """
    kind = LossAggregation(kind)
    mask = as_mask(mask)
    if kind is LossAggregation.TOKEN_MEAN:
        return None, int(mask.sum())
    require_one_shape(mask, episodes=episodes)
    _, episode, lengths = torch.unique(episodes[mask], return_inverse=True, return_counts=True)
    num_episodes = len(lengths)
    if kind is LossAggregation.SEQ_MEAN_TOKEN_MEAN:
        weights = torch.zeros(mask.shape, device=mask.device)
        return weights.masked_scatter(mask, 1.0 / lengths[episode]), num_episodes
    if kind is LossAggregation.SEQ_MEAN_TOKEN_SUM:
        return None, num_episodes
    if norm_tokens is None or norm_tokens < 1:
        raise ValueError(f"loss aggregation {kind.value!r} needs a number of tokens to divide by, got {norm_tokens}")
    return None, num_episodes * norm_tokens
