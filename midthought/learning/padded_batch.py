"""The public batch of padded tensors `[B, T]`. The learner itself computes with `TokenBatch`, which has no padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from midthought.learning.batch import OF_ROWS, TokenBatch, boundaries
from midthought.types import Trajectory

_PADDING = {"turns": -1, "calls": -1, "temperatures": 1.0}


@dataclass(frozen=True, kw_only=True)
class PPOBatch:
    """B rows (segments of E episodes), padded on the right to T tokens, with the fields of `TokenBatch`.

    Pass `flat()` to a learner.
    """

    token_ids: Tensor  # [B, T] int64
    lengths: Tensor  # [B] int64
    """Number of tokens of every row, without padding."""
    loss_mask: Tensor  # [B, T] bool
    sampled_logprobs: Tensor  # [B, T] float32
    rewards: Tensor  # [B, T] float32
    turns: Tensor  # [B, T] int64
    episodes: Tensor  # [B] int64
    groups: Tensor  # [B] int64
    calls: Tensor | None = None  # [B, T] int64
    is_truncated: Tensor | None = None  # [B] bool
    is_stale: Tensor | None = None  # [B, T] bool
    temperatures: Tensor | None = None  # [B, T] float32
    num_unscored: int = 0
    old_logprobs: Tensor | None = None  # [B, T]
    reference_logprobs: Tensor | None = None  # [B, T]
    teacher_logprobs: Tensor | None = None  # [B, T]
    rollout_weights: Tensor | None = None  # [B, T]
    values: Tensor | None = None  # [B, T]
    advantages: Tensor | None = None  # [B, T]
    returns: Tensor | None = None  # [B, T]
    loss_weights: Tensor | None = None  # [B, T]
    slots: Tensor | None = None  # [B, T] int64

    @classmethod
    def from_trajectories(
        cls, trajectories: Sequence[Trajectory], *, pad_token_id: int = 0, **options: Any
    ) -> PPOBatch:
        """Pads `TokenBatch.from_trajectories(trajectories, **options)`."""
        return cls.of(TokenBatch.from_trajectories(trajectories, **options), pad_token_id)

    @classmethod
    def of(cls, batch: TokenBatch, pad_token_id: int = 0) -> PPOBatch:
        """Pads every per-token field: tokens with `pad_token_id`, turns and calls with -1, temperatures with 1, the others with
        0."""
        padding = {"token_ids": pad_token_id, **_PADDING}
        present = {field.name: getattr(batch, field.name) for field in fields(cls)}
        padded = {
            name: batch.padded(value, padding.get(name, 0))
            for name, value in present.items()
            if isinstance(value, Tensor) and name not in OF_ROWS
        }
        return cls(**{**present, **padded})

    def flat(self) -> TokenBatch:
        """Returns the same rows without padding."""
        is_token = self.attention_mask
        present = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "lengths"}
        flat = {
            name: value[is_token]
            for name, value in present.items()
            if isinstance(value, Tensor) and name not in OF_ROWS
        }
        return TokenBatch(cu_seqlens=boundaries(self.lengths), **{**present, **flat})

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.token_ids)

    @property
    def attention_mask(self) -> Tensor:
        """[B, T] bool, True before the padding. Causal attention does not need it: no token sees the padding to its right."""
        return torch.arange(self.token_ids.shape[1], device=self.token_ids.device) < self.lengths[:, None]

    @property
    def position_ids(self) -> Tensor:
        """[B, T] int64: 0, 1, … in every row."""
        return torch.arange(self.token_ids.shape[1], device=self.token_ids.device).expand_as(self.token_ids)
