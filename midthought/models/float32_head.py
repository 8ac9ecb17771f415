"""An output layer that computes in float32 although its weights are in half precision. Does not depend on an engine or a loss.

Sources: MiniMax-M1 (arXiv 2506.13585) and ScaleRL (arXiv 2510.13786): with logits in float32, the probabilities of sampling and
training agree better.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from midthought.errors import SettingsError


class Float32Linear(nn.Linear):
    """A linear layer whose product is computed in float32. The weight keeps its type, so it may be shared with the embeddings."""

    @property
    def dtype(self) -> torch.dtype:
        """The type of the product: float32, or the weight's if that is wider."""
        return torch.promote_types(self.weight.dtype, torch.float32)

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., in] -> [..., out], in `dtype`, also under autocast."""
        bias = None if self.bias is None else self.bias.to(self.dtype)
        with torch.autocast(hidden.device.type, enabled=False):
            return F.linear(hidden.to(self.dtype), self.weight.to(self.dtype), bias)


def use_float32_head(model: Any) -> None:
    """Makes the output layer of a causal LM compute in float32, in place; copies of the model do so, too.

    Raises SettingsError if the output layer is not an `nn.Linear`.
    """
    head = model.get_output_embeddings()
    if type(head) not in (nn.Linear, Float32Linear):
        raise SettingsError(
            f"model.float32_head=true: the output layer of {type(model).__name__} is a {type(head).__name__}, not an "
            "nn.Linear; set model.float32_head to false"
        )
    head.__class__ = Float32Linear
