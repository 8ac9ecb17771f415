"""Layout of a batch's tokens in a forward pass: padded rows, or all rows packed into one.

Tokens after the last prediction that is needed are not computed. Does not depend on a model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from midthought.learning.attention import row_arguments
from midthought.learning.batch import Packing, TokenBatch


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
    def of(cls, batch: TokenBatch, *, packed: Packing = False) -> ModelInputs:
        """Builds the inputs. `packed`: for models that attend by rows (`attention.attending_by_rows`); `shared`: what a group's
        rows share is a row of its own, before the others, if that pays (`TokenBatch.shared_lengths`)."""
        mask = batch.loss_mask
        is_wanted = torch.cat([mask[1:], mask.new_zeros(1)])
        temperatures = None if batch.temperatures is None else batch.temperatures[mask]
        if packed:
            positions, lengths = batch.position_ids, batch.lengths
            places = torch.arange(len(lengths), device=lengths.device).repeat_interleave(lengths)
            needed = torch.ones_like(lengths).scatter_reduce(0, places, (positions + 1) * is_wanted, "amax")
            starts = batch.shared_lengths if packed == "shared" else torch.zeros_like(lengths)
            starts = starts * (needed > starts)  # a row that predicts nothing needs no prompt
            prompts, parents = _prompts(starts, batch)
            is_kept = (positions >= starts[places]) & (positions < needed[places])
            tokens = torch.cat([*prompts, batch.token_ids[is_kept]])[None]
            is_wanted = torch.cat([*(mask.new_zeros(len(prompt)) for prompt in prompts), is_wanted[is_kept]])[None]
            in_pass = [*map(len, prompts), *(needed - starts).tolist()]
            arguments = row_arguments(in_pass, tokens.device, [None] * len(prompts) + parents)
        else:
            tokens, is_wanted = (batch.padded(tensor)[:, :-1] for tensor in (batch.token_ids, is_wanted))
            arguments = {}
        return cls(
            arguments={"input_ids": tokens, "use_cache": False, **arguments},
            is_wanted=is_wanted,
            targets=batch.token_ids[mask],
            temperatures=temperatures,
        )


def _prompts(starts: Tensor, batch: TokenBatch) -> tuple[list[Tensor], list[int | None]]:
    """Returns the tokens of each prompt that is shared, and the number of each row's prompt, or None."""
    prompts: list[Tensor] = []
    numbers: dict[int, int] = {}
    parents: list[int | None] = []
    for start, group, first in zip(starts.tolist(), batch.groups.tolist(), batch.cu_seqlens.tolist(), strict=False):
        if start and group not in numbers:
            numbers[group] = len(prompts)
            prompts.append(batch.token_ids[first : first + start])
        parents.append(numbers[group] if start else None)
    return prompts, parents
