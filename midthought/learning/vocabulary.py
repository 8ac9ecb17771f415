"""Outputs over the whole vocabulary at policy tokens: the most probable tokens, and divergences from a model that does not learn.

Logits exist for one block of tokens at a time, of both models; none of them are kept. Does not depend on a loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from midthought.algo.divergence import generalized_jsd
from midthought.learning.logprobs import BlockedHead, HeadGradients, cast

PARTS = 4
"""A block has a quarter of the tokens of other blocks, because a divergence has about four times as many temporary values."""


@dataclass(frozen=True)
class FrozenLogits:
    """Logits of a model that does not learn, at n policy tokens: its hidden states [n, H] and its output layer (`held`), whose
    product is computed when it is needed; or, without an output layer of a known form, its logits [n, V]."""

    states: Tensor
    head: BlockedHead | None
    temperatures: Tensor | None  # [n]

    @torch.no_grad()
    def logprobs(self, block: slice, size: int) -> Tensor:
        """Returns log-probabilities among the first `size` tokens of the vocabulary, at each token's temperature: [n, ≤ size]."""
        logits, head = self.states[block], self.head
        if head is not None:
            with torch.autocast(logits.device.type, enabled=False):
                logits = head.logits(logits.to(head.weight.dtype), head.weight, head.bias)
        return scaled_logprobs(logits[:, :size], self.temperatures, block)


@dataclass(frozen=True, kw_only=True)
class VocabularyRequest:
    """What a forward pass computes besides the log-probabilities of its n policy tokens."""

    token_ids: Tensor | None = None  # [n, k]
    """Tokens whose log-probabilities are wanted."""
    num_top: int = 0
    """Number of the most probable tokens that are wanted."""
    size: int | None = None
    """The most probable tokens are among the first `size` of the vocabulary; None: all."""
    divergences: Mapping[str, tuple[FrozenLogits, float]] = field(default_factory=dict)
    """Name -> a model and the α of `generalized_jsd`."""


def scaled_logprobs(logits: Tensor, temperatures: Tensor | None, block: slice = slice(None)) -> Tensor:
    """[n, V] -> [n, V], in float32 or float64; `temperatures` [N] of all tokens, of which `block` are these."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return (logits if temperatures is None else logits / temperatures[block, None]).log_softmax(-1)


def divergence(logits: Tensor, temperatures: Tensor | None, other: FrozenLogits, alpha: float) -> Tensor:
    """Returns the divergence at every token from all logits of the policy: [N, V] -> [N]. If the vocabularies have different
    sizes (rows of padding), only their common part counts."""
    others = other.logprobs(slice(None), logits.shape[-1])
    return generalized_jsd(scaled_logprobs(logits[:, : others.shape[-1]], temperatures), others, alpha)


def blocked_divergence(
    head: BlockedHead, hidden: Tensor, temperatures: Tensor | None, other: FrozenLogits, alpha: float
) -> Tensor:
    """Returns the same from the policy's hidden states [N, H], block by block.

    The backward pass computes the logits of both models again. It keeps hidden states, not logits. Cost: one product with
    each output layer in both passes.
    """
    found: Tensor = _BlockedDivergence.apply(hidden, head.weight, head.bias, temperatures, head, other, alpha)
    return found


class _BlockedDivergence(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        temperatures: Tensor | None,
        head: BlockedHead,
        other: FrozenLogits,
        alpha: float,
    ) -> Tensor:
        kind = hidden.device.type
        context.dtype = head.computing_type(kind)
        context.head, context.other, context.alpha = head, other, alpha
        context.save_for_backward(hidden, weight, bias, temperatures)
        found = hidden.new_empty(len(hidden), dtype=torch.promote_types(context.dtype, torch.float32))
        with torch.autocast(kind, enabled=False):
            states, matrix, offset = cast(context.dtype, hidden, weight, bias)
            for block in head.blocks(len(hidden), PARTS):
                found[block] = _of_block(context, head.logits(states[block], matrix, offset), temperatures, block)
        return found

    @staticmethod
    def backward(context: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, temperatures = context.saved_tensors
        head: BlockedHead = context.head
        gradients = HeadGradients(context, hidden, weight, bias)
        for block in head.blocks(len(hidden), PARTS):
            logits = gradients.logits(head, block).requires_grad_()
            with torch.enable_grad():
                values = _of_block(context, logits, temperatures, block)
            (gradient,) = torch.autograd.grad(values, logits, outer[0][block].to(values.dtype))
            gradients.add(block, head.shape.backward(gradient, logits.detach()))
        return (*gradients.result(), None, None, None, None)


def _of_block(context: Any, logits: Tensor, temperatures: Tensor | None, block: slice) -> Tensor:
    others = context.other.logprobs(block, logits.shape[-1])
    ours = scaled_logprobs(logits[:, : others.shape[-1]], temperatures, block)
    return generalized_jsd(ours, others, context.alpha)
