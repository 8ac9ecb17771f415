"""Computes log-probabilities and entropies of tokens from hidden states without storing all logits at once.

Logits are computed for one block of tokens at a time, and again in the backward pass. Needs only an output layer's
weight; does not depend on a model or a loss.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from midthought.algo.divergence import NEVER

BYTES_PER_LOGIT = 4
"""Blocks are in float32 for any weight type but float64, which stays."""


@dataclass(frozen=True)
class LogitShape:
    """An architecture's function of its output layer's logits x: `cap · tanh(scale · x / cap)`, or `scale · x` without cap."""

    scale: float = 1.0
    cap: float | None = None

    @classmethod
    def of(cls, config: Any) -> LogitShape:
        """Reads a transformers config: Gemma's `final_logit_softcapping`, Cohere's `logit_scale`, Granite's `logits_scaling`."""
        scale = float(getattr(config, "logit_scale", None) or 1.0) / float(
            getattr(config, "logits_scaling", None) or 1.0
        )
        return cls(scale, getattr(config, "final_logit_softcapping", None))

    def forward(self, logits: Tensor) -> Tensor:
        """Changes the logits in place and returns them."""
        if self.scale != 1.0:
            logits = logits.mul_(self.scale)
        return logits if self.cap is None else logits.div_(self.cap).tanh_().mul_(self.cap)

    def backward(self, gradient: Tensor, logits: Tensor) -> Tensor:
        """Computes the gradient at the output layer's outputs from the gradient at the final `logits`, in place."""
        if self.cap is not None:
            gradient = gradient.mul_(1.0 - (logits / self.cap) ** 2)
        return gradient if self.scale == 1.0 else gradient.mul_(self.scale)


@dataclass(frozen=True)
class BlockedHead:
    """An output layer, and the number of tokens whose logits may exist at once."""

    weight: Tensor  # [V, H]
    bias: Tensor | None  # [V]
    shape: LogitShape
    num_tokens: int
    """Maximum number of tokens in a block."""
    dtype: torch.dtype | None = None
    """Type of the product; None: the weight's, or autocast's."""

    def outputs(
        self, hidden: Tensor, targets: Tensor, temperatures: Tensor | None = None, *, entropy: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Computes each target's log-probability, and entropy in nats (zeros if not requested): [N, H], [N], [N] -> [N], [N].
        With K targets per token, [N, K], there are as many log-probabilities.

        With `l` the logits of a token divided by its temperature T (None: 1), `p = softmax(l)`, target t:

            log π = l_t - log Σ exp l              ∂ log π / ∂ l_j = [j = t] - p_j
            S     = log Σ exp l - Σ p l            ∂ S     / ∂ l_j = -p_j (log p_j + S)

        The gradient at the undivided logits is 1/T of this.

        The forward pass keeps `hidden`, `log Σ exp l` and S; the backward pass recomputes `l`. Sources: cut
        cross-entropy (Wijmans et al. 2024, arXiv 2411.09009, section 4) and Liger's fused linear cross-entropy (Hsu et
        al. 2024, arXiv 2410.10989, section 3.2), here for losses that are not linear in log π. The weight's gradient
        is accumulated in float32. Under autocast the product has autocast's type, as in `nn.Linear`.
        """
        columns = targets.view(len(targets), -1)
        logprobs, entropies = _BlockedLogprobs.apply(
            hidden, self.weight, self.bias, columns, temperatures, self, entropy
        )
        return logprobs.view(targets.shape), entropies

    def logits(self, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """[n, H] -> [n, V], float32 or float64."""
        product = torch.nn.functional.linear(hidden, weight, bias)
        return self.shape.forward(product if product.dtype == torch.float64 else product.float())

    def computing_type(self, device_type: str) -> torch.dtype:
        """Returns the type of the product in the present context."""
        is_autocast = torch.is_autocast_enabled(device_type)
        return self.dtype or (torch.get_autocast_dtype(device_type) if is_autocast else self.weight.dtype)

    def held(self, device_type: str, copied: bool) -> BlockedHead:
        """Returns this layer in the type of its product, without gradients; `copied` if its weights will be freed."""
        dtype = self.computing_type(device_type)
        weight = self.weight.detach().to(dtype, copy=copied)
        bias = None if self.bias is None else self.bias.detach().to(dtype, copy=copied)
        return replace(self, weight=weight, bias=bias, dtype=dtype)

    @torch.no_grad()
    def top_tokens(self, hidden: Tensor, num_top: int, size: int) -> Tensor:
        """Returns the most probable of the first `size` token ids, [N, num_top], the most probable first."""
        kind = hidden.device.type
        dtype = self.computing_type(kind)
        with torch.autocast(kind, enabled=False):
            states, matrix, offset = cast(dtype, hidden, self.weight, self.bias)
            found = torch.empty(len(hidden), num_top, dtype=torch.int64, device=hidden.device)
            for block in self.blocks(len(hidden)):
                found[block] = self.logits(states[block], matrix, offset)[:, :size].topk(num_top).indices
            return found

    @torch.no_grad()
    def sample(self, hidden: Tensor) -> Tensor:
        """Returns logits [n, V] of these states [n, H], to compare with the model's own (`are_alike`)."""
        return self.logits(hidden, self.weight, self.bias)

    def blocks(self, num_tokens: int, parts: int = 1) -> Iterator[slice]:
        """Yields blocks of equal size; sizes differ by at most one token. `parts`: blocks are smaller by this factor."""
        num_blocks = -(-num_tokens // max(self.num_tokens // parts, 1))
        for number in range(num_blocks):
            yield slice(number * num_tokens // num_blocks, (number + 1) * num_tokens // num_blocks)


@torch.no_grad()
def are_alike(ours: Tensor, theirs: Tensor) -> bool:
    """Whether logits are equal up to rounding."""
    return bool((ours.float() - theirs.float()).abs().max() <= 0.02 * theirs.float().abs().max())


class _BlockedLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperatures: Tensor | None,
        head: BlockedHead,
        entropy: bool,
    ) -> tuple[Tensor, Tensor]:
        kind = hidden.device.type
        context.dtype = head.computing_type(kind)
        with torch.autocast(kind, enabled=False):
            states, matrix, offset = cast(context.dtype, hidden, weight, bias)
            wide = hidden.new_empty(len(hidden), dtype=torch.promote_types(context.dtype, torch.float32))
            logprobs, entropies, totals = wide.new_empty(targets.shape), torch.zeros_like(wide), wide
            for block in head.blocks(len(hidden)):
                logits = head.logits(states[block], matrix, offset)
                if temperatures is not None:
                    logits.div_(temperatures[block, None])
                totals[block] = logits.logsumexp(dim=-1)
                logprobs[block] = logits.gather(-1, targets[block]) - totals[block, None]
                if entropy:
                    normal = logits.sub_(totals[block, None]).clamp_(min=NEVER)
                    entropies[block] = -normal.exp().mul_(normal).sum(dim=-1)
        context.head = head
        context.save_for_backward(hidden, weight, bias, targets, temperatures, totals, entropies)
        if not entropy:
            context.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    def backward(context: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        of_logprobs, of_entropies = outer
        hidden, weight, bias, targets, temperatures, totals, entropies = context.saved_tensors
        head: BlockedHead = context.head
        gradients = HeadGradients(context, hidden, weight, bias)
        learns_entropy = bool(of_entropies.any())
        of_all = of_logprobs.sum(dim=-1, keepdim=True)
        for block in head.blocks(len(hidden)):
            logits = gradients.logits(head, block)
            capped = logits.clone() if head.shape.cap is not None else logits
            if temperatures is not None:
                logits.div_(temperatures[block, None])
            normal = logits.sub_(totals[block, None])
            gradient = normal.exp()
            if learns_entropy:
                factor = normal.clamp_(min=NEVER).add_(entropies[block, None]).mul_(of_entropies[block, None])
                gradient.mul_(factor.add_(of_all[block])).neg_()
            else:
                gradient.mul_(-of_all[block])
            gradient.scatter_add_(1, targets[block], of_logprobs[block].to(gradient.dtype))
            if temperatures is not None:
                gradient.div_(temperatures[block, None])
            gradients.add(block, head.shape.backward(gradient, capped))
        return (*gradients.result(), None, None, None, None)


class HeadGradients:
    """Gradients of an output layer's inputs, weight and bias, accumulated block by block, of the latter two in float32."""

    def __init__(self, context: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        """`context`: of a backward pass whose forward's first arguments are these tensors; its `dtype` is the product's."""
        self._tensors = (hidden, weight, bias)
        self._states, self._matrix, self._offset = cast(context.dtype, hidden, weight, bias)
        wide = torch.promote_types(context.dtype, torch.float32)
        needs = context.needs_input_grad
        self._to_hidden = torch.empty_like(self._states) if needs[0] else None
        self._to_weight = torch.zeros_like(weight, dtype=wide) if needs[1] else None
        self._to_bias = torch.zeros_like(bias, dtype=wide) if needs[2] and bias is not None else None

    def logits(self, head: BlockedHead, block: slice) -> Tensor:
        """Computes the logits of a block again: [n, V]."""
        return head.logits(self._states[block], self._matrix, self._offset)

    def add(self, block: slice, gradient: Tensor) -> None:
        """Adds the gradient at the layer's outputs of a block: [n, V]."""
        product = gradient.to(self._matrix.dtype)
        if self._to_hidden is not None:
            torch.mm(product, self._matrix, out=self._to_hidden[block])
        if self._to_weight is not None:
            _add_product(self._to_weight, product.t(), self._states[block])
        if self._to_bias is not None:
            self._to_bias += gradient.sum(dim=0)

    def result(self) -> tuple[Tensor | None, ...]:
        """Returns the gradients of the three tensors, in their types; None for those that need none."""
        found = (self._to_hidden, self._to_weight, self._to_bias)
        pairs = zip(found, self._tensors, strict=True)
        return tuple(None if each is None or like is None else each.to(like.dtype) for each, like in pairs)


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Computes `total += left @ right`, without a temporary if the types are equal."""
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    else:
        total += left @ right


def cast(
    dtype: torch.dtype, hidden: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Converts an output layer's inputs, weight and bias to the type of its product."""
    return hidden.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
