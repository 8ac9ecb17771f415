"""Triton kernels of the fused decoder on a GPU.

A decoding step of few tokens consists of small operations, and each kernel takes a microsecond or more however little it
computes. Each of these replaces several operations of PyTorch. They compute in float32 and round once. `Decoder` is compared
with the model's own forward pass before it is used. Import this module only where Triton is installed.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from midthought.models.varlen_attention import HALF, is_right_on_cached_rows

BLOCK = 1024
KEYS_PER_BLOCK = 64
MIN_PROGRAMS = 64
"""With fewer rows times key heads, `attend` would leave most of a GPU idle on long rows."""


@triton.jit
def _rms_norm(hidden, weight, out, stride, epsilon, size: tl.constexpr, block: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, block)
    inside = columns < size
    numbers = tl.load(hidden + row * stride + columns, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(numbers * numbers, axis=0) / size + epsilon)
    weights = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * size + columns, (numbers * scale * weights).to(out.dtype.element_ty), mask=inside)


def normed(norm: Any, hidden: Tensor) -> Tensor:
    """RMS norm (arXiv 1910.07467) of `[T, C]` over the last dimension: `weight · hidden / √(mean(hidden²) + epsilon)`."""
    num_rows, size = hidden.shape
    out = torch.empty((num_rows, size), dtype=hidden.dtype, device=hidden.device)
    block = triton.next_power_of_2(size)
    num_warps = min(16, max(1, block // 512))
    _rms_norm[(num_rows,)](
        hidden, norm.weight, out, hidden.stride(0), norm.variance_epsilon, size, block, num_warps=num_warps
    )
    return out


@triton.jit
def _gated(gate, up, out, gate_stride, up_stride, size, block: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * block + tl.arange(0, block)
    inside = columns < size
    gates = tl.load(gate + row * gate_stride + columns, mask=inside, other=0.0).to(tl.float32)
    ups = tl.load(up + row * up_stride + columns, mask=inside, other=0.0).to(tl.float32)
    product = gates / (1.0 + tl.exp(-gates)) * ups
    tl.store(out + row * size + columns, product.to(out.dtype.element_ty), mask=inside)


def gated(gate: Tensor, up: Tensor) -> Tensor:
    """SwiGLU (arXiv 2002.05202) of `[T, I]` each: `silu(gate) · up`. Their rows may be parts of longer rows."""
    num_rows, size = gate.shape
    out = torch.empty((num_rows, size), dtype=gate.dtype, device=gate.device)
    grid = (num_rows, triton.cdiv(size, BLOCK))
    _gated[grid](gate, up, out, gate.stride(0), up.stride(0), size, BLOCK, num_warps=4)
    return out


@triton.jit
def _normed_and_turned(  # type: ignore[no-untyped-def]
    heads, norm, turns, position, columns, inside, epsilon, head_dim: tl.constexpr, has_norm: tl.constexpr
):
    """Returns a head `[head_dim]` after its RMS norm and its rotary embedding."""
    half: tl.constexpr = head_dim // 2
    rolled = tl.where(columns < half, columns + half, columns - half)
    numbers = tl.load(heads + columns, mask=inside, other=0.0).to(tl.float32)
    others = tl.load(heads + rolled, mask=inside, other=0.0).to(tl.float32)
    if has_norm:
        scale = tl.rsqrt(tl.sum(numbers * numbers, axis=0) / head_dim + epsilon)
        numbers *= scale * tl.load(norm + columns, mask=inside, other=0.0).to(tl.float32)
        others *= scale * tl.load(norm + rolled, mask=inside, other=0.0).to(tl.float32)
    cosines = tl.load(turns + position * 2 * head_dim + columns, mask=inside, other=0.0).to(tl.float32)
    sines = tl.load(turns + (position * 2 + 1) * head_dim + columns, mask=inside, other=0.0).to(tl.float32)
    return numbers * cosines + others * sines


@triton.jit
def _turn_and_write(  # type: ignore[no-untyped-def]
    queries, keys, values, queries_stride, keys_stride, values_stride,
    query_norm, key_norm, epsilon, turns, positions, slots,
    out, cached_keys, cached_values, slot_stride, head_stride,
    num_queries: tl.constexpr, head_dim: tl.constexpr, block: tl.constexpr, has_norm: tl.constexpr,
):  # fmt: skip
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    columns = tl.arange(0, block)
    inside = columns < head_dim
    position = tl.load(positions + token)
    if head < num_queries:
        source = queries + token * queries_stride + head * head_dim
        turned = _normed_and_turned(source, query_norm, turns, position, columns, inside, epsilon, head_dim, has_norm)
        target = out + (token * num_queries + head) * head_dim
        tl.store(target + columns, turned.to(out.dtype.element_ty), mask=inside)
    else:
        head -= num_queries
        source = keys + token * keys_stride + head * head_dim
        turned = _normed_and_turned(source, key_norm, turns, position, columns, inside, epsilon, head_dim, has_norm)
        place = tl.load(slots + token) * slot_stride + head * head_stride + position * head_dim + columns
        tl.store(cached_keys + place, turned.to(cached_keys.dtype.element_ty), mask=inside)
        its_values = tl.load(values + token * values_stride + head * head_dim + columns, mask=inside)
        tl.store(cached_values + place, its_values, mask=inside)


def turn_and_write(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    norms: tuple[Any, Any] | None,
    turns: Tensor,
    positions: Tensor,
    slots: Tensor,
    cached_keys: Tensor,
    cached_values: Tensor,
) -> Tensor:
    """Applies the norms of the heads and rotary embeddings (RoFormer, arXiv 2104.09864), and writes keys and values into the
    cache. Returns the queries, `[T, heads, head_dim]`.

    Args:
        queries: `[T, heads · head_dim]`; `keys`, `values`: `[T, kv_heads · head_dim]`. Rows may be parts of longer rows.
        norms: RMS norms of the heads of queries and keys.
        turns: `[length, 2, head_dim]`: cosines, and sines with the first half negated.
        positions, slots: `[T]`: where each token belongs.
        cached_keys, cached_values: `[slots, kv_heads, length, head_dim]`, contiguous.
    """
    _, num_kv_heads, _, head_dim = cached_keys.shape
    num_tokens, num_heads = len(queries), queries.shape[1] // head_dim
    out = torch.empty((num_tokens, num_heads, head_dim), dtype=queries.dtype, device=queries.device)
    query_norm, key_norm = (None, None) if norms is None else (norm.weight for norm in norms)
    epsilon = 0.0 if norms is None else norms[0].variance_epsilon
    _turn_and_write[(num_tokens, num_heads + num_kv_heads)](
        queries, keys, values, queries.stride(0), keys.stride(0), values.stride(0),
        query_norm, key_norm, epsilon, turns, positions, slots,
        out, cached_keys, cached_values, cached_keys.stride(0), cached_keys.stride(1),
        num_heads, head_dim, triton.next_power_of_2(head_dim), norms is not None, num_warps=1,
    )  # fmt: skip
    return out


@triton.jit
def _attend(  # type: ignore[no-untyped-def]
    query, keys, values, positions, slots, out, scale, slot_stride, head_stride, window,
    num_kv_heads: tl.constexpr, num_sharing: tl.constexpr, head_dim: tl.constexpr,
    block_heads: tl.constexpr, block_dim: tl.constexpr, block_keys: tl.constexpr,
):  # fmt: skip
    row, kv_head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    heads, columns = tl.arange(0, block_heads), tl.arange(0, block_dim)
    of_row = ((row * num_kv_heads + kv_head) * num_sharing + heads)[:, None] * head_dim + columns[None, :]
    is_there = (heads < num_sharing)[:, None] & (columns < head_dim)[None, :]
    queries = tl.load(query + of_row, mask=is_there, other=0.0)
    length = tl.load(positions + row) + 1
    first = tl.maximum(length - window, 0)
    cached = tl.load(slots + row) * slot_stride + kv_head * head_stride
    largest = tl.full([block_heads], -float("inf"), tl.float32)
    total = tl.zeros([block_heads], tl.float32)
    attended = tl.zeros([block_heads, block_dim], tl.float32)
    for start in range(first // block_keys * block_keys, length, block_keys):
        places = start + tl.arange(0, block_keys)
        is_seen = (places >= first) & (places < length)
        of_keys = cached + places[:, None] * head_dim + columns[None, :]
        is_key = is_seen[:, None] & (columns < head_dim)[None, :]
        scores = tl.dot(queries, tl.trans(tl.load(keys + of_keys, mask=is_key, other=0.0))) * scale
        scores = tl.where(is_seen[None, :], scores, -float("inf"))
        now_largest = tl.maximum(largest, tl.max(scores, 1))
        shrunk = tl.exp2(largest - now_largest)
        weights = tl.exp2(scores - now_largest[:, None])
        its_values = tl.load(values + of_keys, mask=is_key, other=0.0)
        attended = attended * shrunk[:, None] + tl.dot(weights.to(its_values.dtype), its_values)
        total = total * shrunk + tl.sum(weights, 1)
        largest = now_largest
    tl.store(out + of_row, (attended / total[:, None]).to(out.dtype.element_ty), mask=is_there)


def attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    positions: Tensor,
    slots: Tensor,
    *,
    scale: float | None = None,
    window: int | None = None,
) -> Tensor:
    """Computes attention of one query per row to its keys in the cache, in place (FlashAttention, arXiv 2205.14135): `[n, heads,
    head_dim]` of queries and `[slots, kv_heads, length, head_dim]` of keys and values -> `[n, heads, head_dim]`.

    All heads that share a key head are one program. `positions`, `slots`: `[n]`. A window as in `varlen_attention`.
    """
    num_rows, num_heads, head_dim = query.shape
    _, num_kv_heads, length, _ = keys.shape
    num_sharing = num_heads // num_kv_heads
    out = torch.empty_like(query)
    scale = (head_dim**-0.5 if scale is None else scale) * math.log2(math.e)
    block_heads = max(16, triton.next_power_of_2(num_sharing))  # what a matrix product of Triton needs at least
    _attend[(num_rows, num_kv_heads)](
        query, keys, values, positions, slots, out, scale, keys.stride(0), keys.stride(1), window or length,
        num_kv_heads, num_sharing, head_dim, block_heads, max(16, triton.next_power_of_2(head_dim)), KEYS_PER_BLOCK,
        num_warps=4,
    )  # fmt: skip
    return out


def can_attend(query: Tensor, keys: Tensor, values: Tensor) -> bool:
    """Whether `attend` is right for tensors like these, and as fast as other kernels."""
    if query.dtype not in HALF or keys.shape != values.shape or len(query) * keys.shape[1] < MIN_PROGRAMS:
        return False
    return _is_right(query.device, query.dtype, query.shape[1], keys.shape[1], query.shape[2])


@functools.cache
def _is_right(device: torch.device, dtype: torch.dtype, num_heads: int, num_kv_heads: int, head_dim: int) -> bool:
    def attended(query: Tensor, keys: Tensor, values: Tensor, slots: Tensor, lengths: Tensor) -> Tensor:
        return attend(query, keys, values, lengths - 1, slots)

    return is_right_on_cached_rows(attended, device, dtype, num_heads, num_kv_heads, head_dim)
