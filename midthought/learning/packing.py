"""Layout of a batch's tokens in a forward pass: padded rows, or all rows packed into one.

Tokens after the last prediction that is needed are not computed. Does not depend on a model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from midthought.learning.attention import row_arguments
from midthought.learning.batch import PPOBatch


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
    def of(cls, batch: PPOBatch, *, packed: bool = False) -> ModelInputs:
        """Builds the inputs. `packed`: for models that attend by rows (`attention.attending_by_rows`)."""
        is_wanted, followers = batch.loss_mask[:, 1:], batch.token_ids[:, 1:]
        targets = followers[is_wanted]
        temperatures = None if batch.temperatures is None else batch.temperatures[:, 1:][is_wanted]
        if not packed:
            arguments = {"input_ids": batch.token_ids[:, :-1], "use_cache": False}
            return cls(arguments=arguments, is_wanted=is_wanted, targets=targets, temperatures=temperatures)
        places = torch.arange(1, batch.token_ids.shape[1], device=batch.token_ids.device)
        lengths = (places * is_wanted).amax(dim=1).clamp(min=1)
        is_kept = places <= lengths[:, None]
        arguments = {
            "input_ids": batch.token_ids[:, :-1][is_kept][None],
            "use_cache": False,
            **row_arguments(lengths.tolist(), places.device),
        }
        return cls(arguments=arguments, is_wanted=is_wanted[is_kept][None], targets=targets, temperatures=temperatures)
