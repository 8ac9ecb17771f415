"""Layout of a batch's tokens in a forward pass: padded rows, or all rows packed into one.

Tokens after the last prediction that is needed are not computed. Does not depend on a model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from midthought.learning.attention import row_arguments
from midthought.learning.batch import TokenBatch


@dataclass(frozen=True, kw_only=True)
class ModelInputs:
    """The tokens of one pass, [B, T] (padded) or [1, N] (packed), and the positions of its outputs."""

    arguments: dict[str, Any]
    """Keyword arguments of the model. No attention mask: padding is on the right, and attention is causal."""
    is_wanted: Tensor  # bool, as the tokens
    """True for the states that predict a policy token; in row order, as in `tensor[batch.loss_mask]`."""
    targets: Tensor  # [n] int64
    """The policy tokens."""
    temperatures: Tensor | None  # [n] float32
    """Temperature that each policy token was sampled at; None: 1."""

    @classmethod
    def of(cls, batch: TokenBatch, *, packed: bool = False) -> ModelInputs:
        """Builds the inputs. `packed`: for models that attend by rows (`attention.attending_by_rows`)."""
        mask = batch.loss_mask
        is_wanted = torch.cat([mask[1:], mask.new_zeros(1)])
        temperatures = None if batch.temperatures is None else batch.temperatures[mask]
        if packed:
            positions, lengths = batch.position_ids, batch.lengths
            places = torch.arange(len(lengths), device=lengths.device).repeat_interleave(lengths)
            needed = torch.ones_like(lengths).scatter_reduce(0, places, (positions + 1) * is_wanted, "amax")
            is_kept = positions < needed[places]
            tokens, is_wanted = batch.token_ids[is_kept][None], is_wanted[is_kept][None]
            arguments = row_arguments(needed.tolist(), tokens.device)
        else:
            tokens, is_wanted = (batch.padded(tensor)[:, :-1] for tensor in (batch.token_ids, is_wanted))
            arguments = {}
        return cls(
            arguments={"input_ids": tokens, "use_cache": False, **arguments},
            is_wanted=is_wanted,
            targets=batch.token_ids[mask],
            temperatures=temperatures,
        )
