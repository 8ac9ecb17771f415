"""A slotted key/value cache, and the attention that reads it in place. One slot holds one sequence.

It stands behind transformers' attention interface, so the models' own code runs unchanged. It knows nothing of
episodes, sampling or text.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface

ATTENTION_NAME = "midthought_slots"


class SlotCache:
    """Keys and values of every layer, `[num_slots, kv_heads, length, head_dim]`; both first sizes grow on demand."""

    def __init__(self) -> None:
        self.num_slots = 0
        self.length = 0
        self.windows: dict[int, int | None] = {}
        """The sliding window that each layer asked for; None for full attention."""
        self._layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def reserve(self, num_slots: int, length: int) -> None:
        """Make room for so many slots of so many tokens; what is there is kept."""
        if num_slots <= self.num_slots and length <= self.length:
            return
        self.num_slots, self.length = max(num_slots, self.num_slots), max(length, self.length)
        for index, (keys, values) in self._layers.items():
            self._layers[index] = (self._grown(keys), self._grown(values))

    def _grown(self, old: torch.Tensor) -> torch.Tensor:
        new = old.new_zeros(self.num_slots, old.shape[1], self.length, old.shape[3])
        new[: old.shape[0], :, : old.shape[2]] = old
        return new

    def layer(self, index: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The keys and values of one layer; made, shaped like `key` and `value`, where it is not there yet."""
        if index not in self._layers:
            # Zeros, not empty: what stands beyond a sequence's end is masked, but masked NaNs would still spread.
            self._layers[index] = (
                key.new_zeros(self.num_slots, key.shape[1], self.length, key.shape[3]),
                value.new_zeros(self.num_slots, value.shape[1], self.length, value.shape[3]),
            )
        return self._layers[index]

    def copy(self, source: int, target: int, num_tokens: int) -> None:
        """Copy the first `num_tokens` of one slot over another."""
        for keys, values in self._layers.values():
            keys[target, :, :num_tokens] = keys[source, :, :num_tokens]
            values[target, :, :num_tokens] = values[source, :, :num_tokens]


@dataclass(slots=True)
class SlotBatch:
    """What the attention of one forward pass needs to know. Rows are padded on the left: the last token stands last."""

    cache: SlotCache
    slots: torch.Tensor
    """`[n]`: the slot of each row."""
    positions: torch.Tensor
    """`[n, Q]`: the position of each token in its sequence; 0 on padding."""
    num_new: torch.Tensor
    """`[n]`: how many of a row's last tokens are real."""
    length: int
    """The longest sequence's length, the new tokens included."""
    span: int | None
    """For one new token a row: attention runs over slots `0:span` in place. None: the rows' slots are gathered."""
    ordered: bool = False
    """True where row i is slot i and the span holds nothing else."""
    _masks: dict[tuple[int | None, int], torch.Tensor] = field(default_factory=dict)
    _real: tuple[torch.Tensor, torch.Tensor] | None = None

    def write(self, index: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Put the new keys and values, `[n, kv_heads, Q, head_dim]`, in place; give what the queries may read."""
        keys, values = self.cache.layer(index, key, value)
        if key.shape[2] == 1:
            keys[self.slots, :, self.positions[:, 0]] = key[:, :, 0]
            values[self.slots, :, self.positions[:, 0]] = value[:, :, 0]
        else:
            if self._real is None:
                num_columns = self.positions.shape[1]
                columns = torch.arange(num_columns, device=key.device)
                rows, columns = (columns >= num_columns - self.num_new[:, None]).nonzero(as_tuple=True)
                self._real = (rows, columns)
            rows, columns = self._real
            targets = self.positions[rows, columns]
            keys[self.slots[rows], :, targets] = key[rows, :, columns]
            values[self.slots[rows], :, targets] = value[rows, :, columns]
        if self.span is not None:
            return keys[: self.span, :, : self.length], values[: self.span, :, : self.length]
        return keys[:, :, : self.length][self.slots], values[:, :, : self.length][self.slots]

    def mask(self, window: int | None, num_repeats: int) -> torch.Tensor:
        """Bool `[rows, 1, num_repeats · Q, length]`: key j is seen from position p where p - window < j ≤ p."""
        if (window, num_repeats) not in self._masks:
            positions = self.spread(self.positions)
            keys = torch.arange(self.length, device=positions.device)
            seen = keys <= positions[..., None]
            if window is not None:
                seen &= keys > positions[..., None] - window
            num_repeats_here = num_repeats if positions.shape[1] > 1 else 1
            self._masks[window, num_repeats] = seen[:, None].repeat(1, 1, num_repeats_here, 1)
        return self._masks[window, num_repeats]

    def spread(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows of the batch to rows of slots `0:span`; zeros where a slot takes no part in this step."""
        if self.span is None or self.ordered:
            return rows
        return rows.new_zeros(self.span, *rows.shape[1:]).index_copy_(0, self.slots, rows)

    def collect(self, spread: torch.Tensor) -> torch.Tensor:
        """The inverse of `spread`."""
        return spread if self.span is None or self.ordered else spread[self.slots]


def slot_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    slot_batch: SlotBatch,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **unused: Any,
) -> tuple[torch.Tensor, None]:
    """Attention over the slots. Query heads that share a key head are packed into its query axis: nothing is repeated.

    Args:
        query: `[n, heads, Q, head_dim]`; `key`, `value`: `[n, kv_heads, Q, head_dim]`, the new tokens'.
        softcap: logits become `softcap · tanh(logits / softcap)` (Gemma 2).

    Returns:
        `[n, Q, heads, head_dim]`, and None for the weights.
    """
    num_rows, num_heads, num_queries, head_dim = query.shape
    num_repeats = num_heads // key.shape[1]
    layer_index: int = module.layer_idx  # type: ignore[assignment]
    slot_batch.cache.windows[layer_index] = sliding_window
    keys, values = slot_batch.write(layer_index, key, value)
    packed = slot_batch.spread(query).reshape(-1, key.shape[1], num_repeats * num_queries, head_dim)
    mask = slot_batch.mask(sliding_window, num_repeats)
    if softcap is None:
        attended = F.scaled_dot_product_attention(packed, keys, values, attn_mask=mask, scale=scaling)
    else:
        scale = head_dim**-0.5 if scaling is None else scaling
        scores = torch.tanh(packed @ keys.transpose(2, 3) * (scale / softcap)) * softcap
        weights = scores.masked_fill(~mask, -torch.inf).softmax(-1, dtype=torch.float32)
        attended = weights.to(values.dtype) @ values
    attended = slot_batch.collect(attended).reshape(num_rows, num_heads, num_queries, -1)
    return attended.transpose(1, 2), None


AttentionInterface.register(ATTENTION_NAME, slot_attention)
