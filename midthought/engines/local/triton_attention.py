"""A Triton kernel for all that a layer's attention does with one new token per row: norms of the heads, rotary embeddings, the
cache and attention. Import this module only where Triton is installed.
"""

from __future__ import annotations

import functools
import logging
import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from midthought.engines.local import triton_decoder
from midthought.engines.local.triton_products import begin, read_ahead, starts_early

KEYS_PER_BLOCK, STAGES, NUM_WARPS = 128, 2, 8
TOLERANCE = 0.03
"""Maximum difference from separate kernels in the comparison, relative to the largest number."""

_log = logging.getLogger(__name__)


@triton.jit
def _over_block(queries, keys, values, is_seen, scale, attended, total, largest):  # type: ignore[no-untyped-def]
    """Continues a softmax over further keys (FlashAttention, arXiv 2205.14135)."""
    scores = tl.dot(queries, tl.trans(keys)) * scale
    scores = tl.where(is_seen[None, :], scores, -float("inf"))
    now_largest = tl.maximum(largest, tl.max(scores, 1))
    shrunk = tl.exp2(largest - now_largest)
    weights = tl.exp2(scores - now_largest[:, None])
    attended = attended * shrunk[:, None] + tl.dot(weights.to(values.dtype), values)
    return attended, total * shrunk + tl.sum(weights, 1), now_largest


@triton.jit
def _turned(  # type: ignore[no-untyped-def]
    heads,
    columns,
    rolled,
    weights,
    rolled_weights,
    cosines,
    sines,
    epsilon,
    head_dim: tl.constexpr,
    has_norm: tl.constexpr,
):
    """Returns heads `[n, head_dim]`, from addresses `[n, 1]`, after their RMS norms and rotary embeddings."""
    numbers = tl.load(heads + columns[None, :]).to(tl.float32)
    others = tl.load(heads + rolled[None, :]).to(tl.float32)
    if has_norm:
        scale = tl.rsqrt(tl.sum(numbers * numbers, 1) / head_dim + epsilon)[:, None]
        numbers *= scale * weights[None, :]
        others *= scale * rolled_weights[None, :]
    return (numbers * cosines[None, :] + others * sines[None, :]).to(heads.dtype.element_ty)


@triton.jit
def _attend_new(  # type: ignore[no-untyped-def]
    queries, new_keys, new_values, queries_stride, keys_stride, values_stride,
    query_norm, key_norm, epsilon, turns, positions, slots, keys, values, out, scale, slot_stride, head_stride, window,
    num_heads: tl.constexpr, num_kv_heads: tl.constexpr, head_dim: tl.constexpr, has_norm: tl.constexpr,
    block_heads: tl.constexpr, block_keys: tl.constexpr, stages: tl.constexpr, threads: tl.constexpr, early: tl.constexpr,
):  # fmt: skip
    row, kv_head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    num_sharing: tl.constexpr = num_heads // num_kv_heads
    columns, heads, numbers = tl.arange(0, head_dim), tl.arange(0, block_heads), tl.arange(0, block_keys)
    position = tl.load(positions + row)
    first = tl.maximum(position + 1 - window, 0) // block_keys * block_keys
    start_of_row = tl.load(slots + row) * slot_stride + kv_head * head_stride
    keys += start_of_row
    values += start_of_row
    # Earlier tokens were written by earlier passes, so they are read before the kernel ahead has ended.
    is_seen = (first + numbers < position) & (first + numbers > position - window)
    of_keys = (first + numbers)[:, None] * head_dim + columns[None, :]
    some_keys = tl.load(keys + of_keys, mask=is_seen[:, None], other=0.0)
    some_values = tl.load(values + of_keys, mask=is_seen[:, None], other=0.0)
    if early:
        width: tl.constexpr = keys.dtype.element_ty.primitive_bitwidth // 8
        for start in range(first + block_keys, position, threads):
            places = tl.minimum(start + tl.arange(0, threads), position - 1) * head_dim
            read_ahead(keys + places, head_dim * width)
            read_ahead(values + places, head_dim * width)
    rolled = tl.where(columns < head_dim // 2, columns + head_dim // 2, columns - head_dim // 2)
    cosines = tl.load(turns + position * 2 * head_dim + columns).to(tl.float32)
    sines = tl.load(turns + (position * 2 + 1) * head_dim + columns).to(tl.float32)
    weights, rolled_weights, key_weights, rolled_key_weights = cosines, cosines, cosines, cosines
    if has_norm:
        weights = tl.load(query_norm + columns).to(tl.float32)
        rolled_weights = tl.load(query_norm + rolled).to(tl.float32)
        key_weights = tl.load(key_norm + columns).to(tl.float32)
        rolled_key_weights = tl.load(key_norm + rolled).to(tl.float32)
    begin(early)
    query = (
        queries
        + row * queries_stride
        + (kv_head * num_sharing + tl.minimum(heads, num_sharing - 1))[:, None] * head_dim
    )
    query = _turned(query, columns, rolled, weights, rolled_weights, cosines, sines, epsilon, head_dim, has_norm)
    zero = tl.zeros([1, 1], tl.int32)
    key = new_keys + row * keys_stride + (kv_head + zero) * head_dim
    key = _turned(key, columns, rolled, key_weights, rolled_key_weights, cosines, sines, epsilon, head_dim, has_norm)
    value = tl.load(new_values + row * values_stride + kv_head * head_dim + columns)
    tl.store(keys + position * head_dim + columns[None, :] + zero, key)
    tl.store(values + position * head_dim + columns, value)
    largest = tl.sum(query.to(tl.float32) * key.to(tl.float32), 1) * scale
    total = tl.full([block_heads], 1.0, tl.float32)
    attended = tl.zeros([block_heads, head_dim], tl.float32) + value.to(tl.float32)[None, :]
    attended, total, largest = _over_block(query, some_keys, some_values, is_seen, scale, attended, total, largest)
    for start in tl.range(first + block_keys, position, block_keys, num_stages=stages):
        is_seen = (start + numbers < position) & (start + numbers > position - window)
        of_keys = (start + numbers)[:, None] * head_dim + columns[None, :]
        some_keys = tl.load(keys + of_keys, mask=is_seen[:, None], other=0.0)
        some_values = tl.load(values + of_keys, mask=is_seen[:, None], other=0.0)
        attended, total, largest = _over_block(query, some_keys, some_values, is_seen, scale, attended, total, largest)
    target = out + (row * num_heads + kv_head * num_sharing + heads)[:, None] * head_dim + columns[None, :]
    tl.store(target, (attended / total[:, None]).to(out.dtype.element_ty), mask=(heads < num_sharing)[:, None])


def attend_new(
    queries: Tensor,
    new_keys: Tensor,
    new_values: Tensor,
    norms: tuple[Any, Any] | None,
    turns: Tensor,
    positions: Tensor,
    slots: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    scale: float,
    window: int | None = None,
) -> Tensor:
    """`turn_and_write` and `attend` of `triton_decoder` for one new token per row.

    Args:
        queries: `[n, heads · head_dim]`; `new_keys`, `new_values`: `[n, kv_heads · head_dim]`. Rows may be parts of longer rows.
        norms: RMS norms of the heads of queries and keys.
        turns: `[length, 2, head_dim]`: cosines, and sines with the first half negated.
        positions, slots: `[n]`: where each token belongs.
        keys, values: the cache, `[slots, kv_heads, length, head_dim]`, contiguous.
        window: number of tokens that a token sees, itself included.

    Returns:
        `[n, heads · head_dim]`.
    """
    _, num_kv_heads, length, head_dim = keys.shape
    num_rows, num_heads = len(queries), queries.shape[1] // head_dim
    out = torch.empty((num_rows, num_heads * head_dim), dtype=queries.dtype, device=queries.device)
    query_norm, key_norm = (None, None) if norms is None else (norm.weight for norm in norms)
    epsilon = 0.0 if norms is None else norms[0].variance_epsilon
    block_heads = max(16, triton.next_power_of_2(num_heads // num_kv_heads))
    early = starts_early(queries.device)
    _attend_new[(num_rows, num_kv_heads)](
        queries, new_keys, new_values, queries.stride(0), new_keys.stride(0), new_values.stride(0),
        query_norm, key_norm, epsilon, turns, positions, slots, keys, values, out,
        scale * math.log2(math.e), keys.stride(0), keys.stride(1), window or length,
        num_heads, num_kv_heads, head_dim, norms is not None, block_heads, KEYS_PER_BLOCK, STAGES, 32 * NUM_WARPS, early,
        num_warps=NUM_WARPS, launch_pdl=early,
    )  # fmt: skip
    return out


def can_attend_new(queries: Tensor, keys: Tensor, values: Tensor, *, has_norms: bool) -> bool:
    """Whether `attend_new` is right for queries `[n, heads · head_dim]` and a cache like these, and as fast as other kernels."""
    num_kv_heads, head_dim = keys.shape[1], keys.shape[3]
    num_heads = queries.shape[1] // head_dim
    if (
        queries.dtype not in triton_decoder.HALF
        or keys.shape != values.shape
        or head_dim < 16
        or head_dim & (head_dim - 1)
    ):
        return False
    if len(queries) * num_kv_heads < triton_decoder.MIN_PROGRAMS:
        return False
    return _is_right(queries.device, queries.dtype, num_heads, num_kv_heads, head_dim, has_norms)


class _Norm(NamedTuple):
    weight: Tensor
    variance_epsilon: float


@functools.cache
def _is_right(
    device: torch.device, dtype: torch.dtype, num_heads: int, num_kv_heads: int, head_dim: int, has_norms: bool
) -> bool:
    """Whether `attend_new` agrees with separate kernels on random rows. Logs the reason if it does not."""
    generator = torch.Generator().manual_seed(0)

    def random(*size: int) -> Tensor:
        return torch.randn(size, generator=generator).to(device, dtype)

    heads = random(3, (num_heads + 2 * num_kv_heads) * head_dim)
    query, key, value = heads.split([num_heads * head_dim, num_kv_heads * head_dim, num_kv_heads * head_dim], dim=1)
    norms = (_Norm(random(head_dim), 1e-6), _Norm(random(head_dim), 1e-6)) if has_norms else None
    turns, keys, values = random(200, 2, head_dim), *(random(4, num_kv_heads, 200, head_dim) for _ in range(2))
    same_keys, same_values = keys.clone(), values.clone()
    positions, slots = torch.tensor([0, 150, 63], device=device), torch.tensor([2, 0, 3], device=device)
    scale = head_dim**-0.5
    try:
        found = attend_new(query, key, value, norms, turns, positions, slots, keys, values, scale=scale)
        turned = triton_decoder.turn_and_write(
            query, key, value, norms, turns, positions, slots, same_keys, same_values
        )
        expected = triton_decoder.attend(turned, same_keys, same_values, positions, slots, scale=scale).flatten(1)
        pairs = (found, expected), (keys, same_keys), (values, same_values)
        difference = max(float((one - other).abs().max() / other.abs().max()) for one, other in pairs)
    except Exception as error:  # compilers raise errors of many classes
        return _refused(f"{type(error).__name__}: {error}".splitlines()[0])
    return difference <= TOLERANCE or _refused(f"results differ by {difference:.2g} of the largest number")


def _refused(reason: str) -> bool:
    _log.warning("attention of new tokens takes several kernels, which is slower: %s", reason)
    return False
