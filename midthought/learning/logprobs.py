"""Computes log-probabilities and entropies of tokens from hidden states without storing all logits at once.

Logits are computed for one block of tokens at a time, and again in the backward pass. Needs only an output layer's
weight; does not depend on a model or a loss.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from midthought.learning.fused import Fused

NEVER = -1e4
"""Lower bound of log-probabilities. Its `p log p` is 0; with -inf it would be NaN."""
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
        times, over = (float(getattr(config, name, None) or 1.0) for name in ("logit_scale", "logits_scaling"))
        return cls(times / over, getattr(config, "final_logit_softcapping", None))

    def forward(self, logits: Tensor) -> Tensor:
        """Changes the logits in place and returns them."""
        if self.scale != 1.0:
            logits = logits.mul_(self.scale)
        return logits if self.cap is None else logits.div_(self.cap).tanh_().mul_(self.cap)

    @torch.no_grad()
    def maps(self, outputs: Tensor, logits: Tensor) -> bool:
        """Whether the model's `logits` are this function of its output layer's `outputs`, up to rounding."""
        tolerance = 0.02 if outputs.dtype in (torch.bfloat16, torch.float16) else 1e-4
        ours, theirs = self.forward(outputs.to(torch.float32, copy=True)), logits.float()
        return bool((ours - theirs).abs().max() <= tolerance * theirs.abs().max())

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

        With `l` the logits of a token divided by its temperature T (None: 1), `p = softmax(l)`, target t:

            log π = l_t - log Σ exp l              ∂ log π / ∂ l_j = [j = t] - p_j
            S     = log Σ exp l - Σ p l            ∂ S     / ∂ l_j = -p_j (log p_j + S)

        The gradient at the undivided logits is 1/T of this.

        The forward pass keeps `hidden`, `log Σ exp l` and S; the backward pass recomputes `l`. Sources: cut
        cross-entropy (Wijmans et al. 2024, arXiv 2411.09009, section 4) and Liger's fused linear cross-entropy (Hsu et
        al. 2024, arXiv 2410.10989, section 3.2), here for losses that are not linear in log π. The weight's gradient
        is accumulated in float32. Under autocast the product has autocast's type, as in `nn.Linear`.
        """
        logprobs, entropies = _BlockedLogprobs.apply(
            hidden, self.weight, self.bias, targets, temperatures, self, entropy
        )
        return logprobs, entropies

    def computing_type(self, device_type: str) -> torch.dtype:
        """Returns the type of the product in the present context."""
        is_autocast = torch.is_autocast_enabled(device_type)
        return self.dtype or (torch.get_autocast_dtype(device_type) if is_autocast else self.weight.dtype)

    def blocks(self, num_tokens: int) -> Iterator[slice]:
        """Yields blocks of equal size; sizes differ by at most one token."""
        num_blocks = -(-num_tokens // self.num_tokens)
        for number in range(num_blocks):
            yield slice(number * num_tokens // num_blocks, (number + 1) * num_tokens // num_blocks)


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
            totals = hidden.new_empty(len(hidden), dtype=torch.promote_types(context.dtype, torch.float32))
            logprobs, entropies = torch.empty_like(totals), torch.zeros_like(totals)
            for block in head.blocks(len(hidden)):
                product = torch.nn.functional.linear(states[block], matrix, offset)
                its_temperatures = None if temperatures is None else temperatures[block]
                totals[block], logprobs[block], entropies[block] = _outputs_of_block(
                    product, targets[block], its_temperatures, head.shape, entropy
                )
                del product
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
        states, matrix, offset = cast(context.dtype, hidden, weight, bias)
        dtype, needs = torch.promote_types(context.dtype, torch.float32), context.needs_input_grad
        to_hidden = torch.empty_like(states) if needs[0] else None
        to_weight = torch.zeros_like(weight, dtype=dtype) if needs[1] else None
        to_bias = torch.zeros_like(bias, dtype=dtype) if needs[2] and bias is not None else None
        learns_entropy = bool(of_entropies.any())
        for block in head.blocks(len(hidden)):
            gradient = _gradient_of_block(
                torch.nn.functional.linear(states[block], matrix, offset),
                targets[block],
                None if temperatures is None else temperatures[block],
                totals[block],
                of_logprobs[block],
                of_entropies[block] if learns_entropy else None,
                entropies[block] if learns_entropy else None,
                head.shape,
            )
            if to_hidden is not None:
                torch.mm(gradient, matrix, out=to_hidden[block])
            if to_weight is not None:
                _add_product(to_weight, gradient.t(), states[block])
            if to_bias is not None:
                to_bias += gradient.sum(dim=0, dtype=to_bias.dtype)
            del gradient
        pairs = zip((to_hidden, to_weight, to_bias), (hidden, weight, bias), strict=True)
        return (*(None if each is None else each.to(like.dtype) for each, like in pairs), None, None, None, None)


def wide(values: Tensor) -> Tensor:
    """Converts to float32; float64 stays."""
    return values if values.dtype == torch.float64 else values.float()


@Fused
def _outputs_of_block(
    product: Tensor, targets: Tensor, temperatures: Tensor | None, shape: LogitShape, entropy: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns `log Σ exp l` [n], log-probabilities [n] and entropies [n] of a block; changes a wide `product` [n, V]."""
    logits = shape.forward(wide(product))
    if temperatures is not None:
        logits.div_(temperatures[:, None])
    totals = logits.logsumexp(dim=-1)
    logprobs = logits.gather(-1, targets[:, None])[:, 0] - totals
    if not entropy:
        return totals, logprobs, torch.zeros_like(totals)
    normal = logits.sub_(totals[:, None]).clamp_(min=NEVER)
    return totals, logprobs, -normal.exp().mul_(normal).sum(dim=-1)


@Fused
def _gradient_of_block(
    product: Tensor,
    targets: Tensor,
    temperatures: Tensor | None,
    totals: Tensor,
    of_logprobs: Tensor,
    of_entropies: Tensor | None,
    entropies: Tensor | None,
    shape: LogitShape,
) -> Tensor:
    """Returns the gradient at `product` [n, V] of a block, in its type; changes a wide `product`."""
    logits = shape.forward(wide(product))
    capped = logits.clone() if shape.cap is not None else logits
    if temperatures is not None:
        logits.div_(temperatures[:, None])
    normal = logits.sub_(totals[:, None])
    gradient = normal.exp()
    if of_entropies is not None and entropies is not None:
        factor = normal.clamp_(min=NEVER).add_(entropies[:, None]).mul_(of_entropies[:, None])
        gradient.mul_(factor.add_(of_logprobs[:, None])).neg_()
    else:
        gradient.mul_(-of_logprobs[:, None])
    gradient.scatter_add_(1, targets[:, None], of_logprobs[:, None].to(gradient.dtype))
    if temperatures is not None:
        gradient.div_(temperatures[:, None])
    return shape.backward(gradient, capped).to(product.dtype)


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Computes `total += left @ right`, without a temporary if the types are equal or the device adds to float32 itself."""
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    elif adds_half_products(left.device, left.dtype):
        torch.addmm(total, left, right, out_dtype=total.dtype, out=total)
    else:
        total += left @ right


@functools.cache
def adds_half_products(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether one matrix product adds half-precision matrices to a float32 matrix in place, as CUDA's does since torch 2.8."""
    generator = torch.Generator().manual_seed(0)
    left, right, total = (torch.randn(size, generator=generator).to(device) for size in ((40, 96), (40, 64), (96, 64)))
    left, right = left.to(dtype), right.to(dtype)
    expected = total + left.t().float() @ right.float()
    try:
        torch.addmm(total, left.t(), right, out_dtype=torch.float32, out=total)
    except (NotImplementedError, RuntimeError, TypeError):
        return False
    return bool((total - expected).abs().max() <= 1e-3 * expected.abs().max())


def cast(
    dtype: torch.dtype, hidden: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Converts an output layer's inputs, weight and bias to the type of its product."""
    return hidden.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
