"""How far optimizer steps move the weights, measured on a few matrices. Does not depend on the optimizer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

import torch
from torch import Tensor, nn

from midthought.learning.distributed.dtensor import whole

NUM_MATRICES = 8


class Movement:
    """Compares some trained matrices with what they were before a step. Costs a copy of them, so large ones are left out."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        matrices = [each for each in parameters if each.dim() > 1] or list(parameters)
        middle = median(each.numel() for each in matrices) if matrices else 0
        small = [each for each in matrices if each.numel() <= middle]
        self._chosen = small[:: max(1, len(small) // NUM_MATRICES)][:NUM_MATRICES]
        self._before: list[Tensor] = []

    def begin(self) -> None:
        """Call it before the step."""
        self._before = [each.detach().clone() for each in self._chosen]

    @torch.no_grad()
    def end(self, peak: float, decay: float) -> dict[str, float]:
        """Returns the root mean square of the change relative to that of the weights (`weight_change`), and relative to the peak
        learning rate `peak` (`step_size`: 0.1 to 1 for AdamW). `decay`: the share of the weights that weight decay removed,
        which is no part of the change."""
        kept = [1.0 - decay if each.dim() > 1 else 1.0 for each in self._before]
        pairs = zip(self._chosen, self._before, kept, strict=True)
        moved = _size([now.detach().double() - share * before.double() for now, before, share in pairs])
        size = _size(self._before)
        self._before = []
        return {"weight_change": moved / max(size, 1e-12), "step_size": moved / peak if peak > 0 else 0.0}


def _size(tensors: Sequence[Tensor]) -> float:
    """Returns the root mean square of all elements, also of sharded tensors; every rank must call it."""
    squares = sum(float(whole(torch.linalg.vector_norm(each.double()))) ** 2 for each in tensors)
    return math.sqrt(squares / max(1, sum(each.numel() for each in tensors)))
