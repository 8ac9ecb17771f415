"""What the ranks of distributed training share: assigns micro-batches to them, sums results over them, and converts tensors that
are sharded (DTensors of FSDP) to whole tensors, and back.

Losses are divided by the tokens of the whole optimizer step, so gradients and metrics add up over ranks as they do over
micro-batches. Every rank has the whole batch. Does not depend on a model or a loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from midthought.learning.batch import Packing, TokenBatch
from midthought.learning.micro_batching import pack_first_fit, split_by_rows, split_by_tokens


def is_sharded(model: Any) -> bool:
    return hasattr(model, "set_gradient_divide_factor")


def whole(tensor: Tensor) -> Tensor:
    """Gathers the tensor's parts from all ranks, which must all call this. Returns a whole tensor unchanged."""
    gathered: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return gathered


def part_like(tensor: Tensor, like: Tensor) -> Tensor:
    """Returns a copy on the device of `like`. If `like` is sharded and `tensor` is not, returns this rank's part."""
    moved = tensor.to(like.device, copy=True)
    if not hasattr(like, "full_tensor") or hasattr(moved, "full_tensor"):
        return moved
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(like, DTensor)
    return distribute_tensor(moved, like.device_mesh, like.placements, src_data_rank=None)


class ProcessGroup:
    """Training in a single process, which computes every micro-batch. `DistributedGroup` is the interface to other ranks."""

    is_alone = True

    def rows(self, batch: TokenBatch, max_tokens: int, *, packed: Packing) -> list[tuple[Tensor, bool]]:
        """Returns row numbers of this rank's micro-batches, split as in `TokenBatch.micro_batch_rows`. False: do not count it,
        it is computed only because the other ranks wait for this rank."""
        return [(rows, True) for rows in batch.micro_batch_rows(max_tokens, packed=packed)]

    def sum(self, tensors: Mapping[str, Tensor]) -> None:
        """Sums over all ranks, in place. Every rank passes the same names and shapes. Alone, the sums are complete."""


class DistributedGroup(ProcessGroup):
    """A rank of the process group that `torch.distributed` was initialized with; `device`: device of the sums."""

    is_alone = False

    def __init__(self, device: torch.device | str) -> None:
        self._device = device
        self._number = dist.get_rank()
        self._num_ranks = dist.get_world_size()

    def rows(self, batch: TokenBatch, max_tokens: int, *, packed: Packing) -> list[tuple[Tensor, bool]]:
        return self._own(batch, _rows_of_all(batch, max_tokens, self._num_ranks, packed=packed))

    def sum(self, tensors: Mapping[str, Tensor]) -> None:
        """Sums everything in one message, in float64."""
        ordered = [tensors[name] for name in sorted(tensors)]
        if not ordered:
            return
        message = torch.cat([tensor.detach().reshape(-1).to(self._device, torch.float64) for tensor in ordered])
        dist.all_reduce(message)
        for tensor, total in zip(ordered, message.split([tensor.numel() for tensor in ordered]), strict=True):
            tensor.copy_(total.view(tensor.shape))

    def _own(self, batch: TokenBatch, cut: list[Tensor]) -> list[tuple[Tensor, bool]]:
        """Ranks run their passes in parallel (each gathers weights), so every rank needs the same number of passes, and passes
        of similar size run at the same time. If there are too few parts, the smallest one is repeated and not counted."""
        cut = sorted(cut, key=lambda rows: -int(batch.lengths[rows].sum()))
        num_short = -len(cut) % self._num_ranks
        padded = [(rows, True) for rows in cut] + [(cut[-1], False)] * num_short
        return padded[self._number :: self._num_ranks]


def _rows_of_all(batch: TokenBatch, max_tokens: int, num_ranks: int, *, packed: Packing) -> list[Tensor]:
    """Returns micro-batches of at most `max_tokens` for all ranks; if possible, equally many per rank, of about equal size."""
    if packed:
        units, sizes = batch.units(max_tokens, packed=packed, at_least=num_ranks)
        cut, split = pack_first_fit(sizes, max_tokens), split_by_tokens
    else:
        units, sizes = list(torch.arange(len(batch)).split(1)), batch.lengths
        cut, split = batch.micro_batch_rows(max_tokens), split_by_rows
    evened = split(sizes, -(-len(cut) // num_ranks) * num_ranks)

    def size(part: Tensor) -> int:
        return int(sizes[part].sum()) if packed else len(part) * int(sizes[part].max())

    fits = max(map(size, evened)) <= max(max_tokens, *map(size, cut))
    return [torch.cat([units[unit] for unit in part.tolist()]) for part in (evened if fits else cut)]
