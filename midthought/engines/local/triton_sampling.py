"""Triton kernels that sample one token per row by inverse CDF: two kernels, which read the logits once.

Import this module only where Triton is installed.
"""

from __future__ import annotations

import functools
import logging

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024
"""Tokens whose probabilities are summed by one program."""
TOLERANCE = 1e-3
"""Maximum difference of a log-probability from PyTorch's, in nats, in the comparison."""

_log = logging.getLogger(__name__)


@triton.jit
def _sum_blocks(  # type: ignore[no-untyped-def]
    logits, temperatures, largest, sums, stride, num_tokens, num_blocks,
    has_temperatures: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    row, number = tl.program_id(0).to(tl.int64), tl.program_id(1)
    columns = number * block + tl.arange(0, block)
    scaled = tl.load(logits + row * stride + columns, mask=columns < num_tokens, other=-float("inf")).to(tl.float32)
    if has_temperatures:
        scaled /= tl.load(temperatures + row)
    its_largest = tl.max(scaled, axis=0)
    weights = tl.where(scaled == -float("inf"), 0.0, tl.exp(scaled - its_largest))
    tl.store(largest + row * num_blocks + number, its_largest)
    tl.store(sums + row * num_blocks + number, tl.sum(weights, axis=0))


@triton.jit
def _find(  # type: ignore[no-untyped-def]
    logits, temperatures, largest, sums, uniforms, tokens, logprobs, stride, num_tokens, num_blocks,
    has_temperatures: tl.constexpr, block: tl.constexpr, blocks: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    numbers = tl.arange(0, blocks)
    is_block = numbers < num_blocks
    its_largest = tl.load(largest + row * num_blocks + numbers, mask=is_block, other=-float("inf"))
    its_sums = tl.load(sums + row * num_blocks + numbers, mask=is_block, other=0.0)
    most = tl.max(its_largest, axis=0)
    shares = tl.where(its_sums == 0.0, 0.0, its_sums * tl.exp(its_largest - most)).to(tl.float64)
    running = tl.cumsum(shares, axis=0)
    total = tl.max(running, axis=0)
    target = tl.minimum(tl.load(uniforms + row) * total, total * (1.0 - 1e-15))
    place = tl.sum((running <= target).to(tl.int32), axis=0)
    missing = target - tl.max(tl.where(numbers < place, running, 0.0), axis=0)
    columns = place * block + tl.arange(0, block)
    scaled = tl.load(logits + row * stride + columns, mask=columns < num_tokens, other=-float("inf")).to(tl.float32)
    if has_temperatures:
        scaled /= tl.load(temperatures + row)
    inside = tl.cumsum(tl.exp(scaled - most).to(tl.float64), axis=0)
    missing = tl.minimum(missing, tl.max(inside, axis=0) * (1.0 - 1e-15))
    token = place * block + tl.sum((inside <= missing).to(tl.int32), axis=0)
    token = tl.minimum(token, num_tokens - 1)  # of logits that are not finite
    its_logit = tl.sum(tl.where(columns == token, scaled, 0.0), axis=0)
    tl.store(tokens + row, token.to(tl.int64))
    tl.store(logprobs + row, (its_logit - most).to(tl.float64) - tl.log(tl.sum(shares, axis=0)))


def draw(logits: Tensor, temperatures: Tensor | None, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Samples from `softmax(logits / temperature)`: the first token at which the sum of the probabilities, in the order of the
    vocabulary, exceeds the row's uniform number.

    Args:
        logits: `[n, V]`, any float type; minus infinity for tokens that are left out.
        temperatures: `[n, 1]` float32; None: 1.
        uniforms: `[n]` float64 in [0, 1).

    Returns:
        Token ids `[n, 1]` and their log-probabilities `[n, 1]`, float64: NaN for a row with NaN or infinite logits.
    """
    num_rows, num_tokens = logits.shape
    num_blocks = triton.cdiv(num_tokens, BLOCK)
    largest, sums = torch.empty((2, num_rows, num_blocks), dtype=torch.float32, device=logits.device)
    tokens = torch.empty((num_rows, 1), dtype=torch.int64, device=logits.device)
    logprobs = torch.empty((num_rows, 1), dtype=torch.float64, device=logits.device)
    has_temperatures = temperatures is not None
    _sum_blocks[(num_rows, num_blocks)](
        logits, temperatures, largest, sums, logits.stride(0), num_tokens, num_blocks, has_temperatures, BLOCK
    )
    _find[(num_rows,)](
        logits, temperatures, largest, sums, uniforms, tokens, logprobs, logits.stride(0), num_tokens, num_blocks,
        has_temperatures, BLOCK, triton.next_power_of_2(num_blocks),
    )  # fmt: skip
    return tokens, logprobs


def can_draw(logits: Tensor) -> bool:
    """Whether `draw` is right for logits `[n, V]` like these."""
    return logits.stride(1) == 1 and _is_right(logits.device, logits.dtype, logits.shape[1])


@functools.cache
def _is_right(device: torch.device, dtype: torch.dtype, num_tokens: int) -> bool:
    """Whether `draw` agrees with PyTorch on random logits. Logs the reason if it does not."""
    generator = torch.Generator().manual_seed(0)
    logits = (3.0 * torch.randn(16, num_tokens, generator=generator)).to(device, dtype)
    uniforms = torch.rand(16, generator=generator, dtype=torch.float64).to(device)
    temperatures = torch.linspace(0.5, 1.5, 16, device=device)[:, None]
    try:
        tokens, logprobs = draw(logits, temperatures, uniforms)
    except Exception as error:  # compilers raise errors of many classes
        return _refused(f"{type(error).__name__}: {error}".splitlines()[0])
    expected = (logits.double() / temperatures.double()).log_softmax(-1)
    sums = expected.exp().cumsum(-1)
    if not bool(((tokens >= 0) & (tokens < num_tokens)).all()):
        return _refused("there is no such token")
    upper = sums.gather(-1, tokens)
    lower = upper - expected.exp().gather(-1, tokens)
    if not bool(((lower - TOLERANCE <= uniforms[:, None]) & (uniforms[:, None] <= upper + TOLERANCE)).all()):
        return _refused("other tokens are sampled")
    difference = float((logprobs - expected.gather(-1, tokens)).abs().max())
    return difference <= TOLERANCE or _refused(f"log-probabilities differ by {difference:.2g} nats")


def _refused(reason: str) -> bool:
    _log.warning("tokens are not sampled by Triton kernels, which is slower: %s", reason)
    return False
