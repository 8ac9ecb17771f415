"""The public batch of padded tensors `[B, T]`. The learner itself computes with `TokenBatch`, which has no padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from midthought.learning.batch import OF_ROWS, TokenBatch
from midthought.types import Trajectory

_PADDING = {"turns": -1, "calls": -1, "temperatures": 1.0}
"""The value of padding; 0 in other fields."""
_FIELDS = {"lengths", *(field.name for field in fields(TokenBatch))}


class PPOBatch:
    """B rows (segments of E episodes), padded on the right to T tokens, with the fields of `TokenBatch`.

    Fields of tokens are [B, T], fields of rows [B]. `turns` and `calls` are padded with -1, `temperatures` with 1, `token_ids`
    with `pad_token_id`, the others with 0. Pass `flat()` to a learner.
    """

    def __init__(self, batch: TokenBatch, pad_token_id: int = 0) -> None:
        self._flat = batch
        self._padding = {"token_ids": pad_token_id, **_PADDING}

    @classmethod
    def from_trajectories(
        cls, trajectories: Sequence[Trajectory], *, pad_token_id: int = 0, **options: Any
    ) -> PPOBatch:
        """Pads `TokenBatch.from_trajectories(trajectories, **options)`."""
        return cls(TokenBatch.from_trajectories(trajectories, **options), pad_token_id)

    def flat(self) -> TokenBatch:
        """Returns the same rows without padding."""
        return self._flat

    def __getattr__(self, name: str) -> Any:
        if name not in _FIELDS:
            raise AttributeError(name)
        value = getattr(self._flat, name)
        is_of_tokens = isinstance(value, Tensor) and name not in (*OF_ROWS, "cu_seqlens")
        return self._flat.padded(value, self._padding.get(name, 0)) if is_of_tokens else value

    def __len__(self) -> int:
        """Number of rows."""
        return len(self._flat)

    @property
    def attention_mask(self) -> Tensor:
        """[B, T] bool, True before the padding. Causal attention does not need it: no token sees the padding to its right."""
        positions: Tensor = self.position_ids
        return positions < self._flat.lengths[:, None]

    @property
    def position_ids(self) -> Tensor:
        """[B, T] int64: 0, 1, … in every row."""
        longest = int(self._flat.lengths.max())
        return torch.arange(longest, device=self._flat.token_ids.device).expand(len(self), longest)
