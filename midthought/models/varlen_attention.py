"""Attention of rows of different lengths in one kernel: FlashAttention through `torch.nn.attention.varlen`.

For half precision on a GPU; needs torch 2.11. One call per layer instead of one per row, and no new shape per row length.
Each kind of call is first compared with attention in float32, forward and backward; if it differs or fails, it is not used
and callers compute row by row. Does not depend on a model.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

varlen_attn: Any
try:
    from torch.nn.attention.varlen import varlen_attn
except ImportError:  # an older torch
    varlen_attn = None

flash_attention: Any = torch.ops.aten._flash_attention_forward
"""The operation that `varlen_attn` calls. Only from torch 2.13 on does `varlen_attn` itself take the lengths of cached keys."""
DEVICES = {"cuda"}
"""Types of devices that have the kernel."""
HALF = (torch.bfloat16, torch.float16)
MAX_HEAD_DIM = 256
TOLERANCE = 0.03
"""Maximum difference from float32 in the comparison, relative to the largest number."""
_NEW, _CACHED, _WINDOW = (3, 70, 1, 130), (0, 5, 64, 0), 48
"""Rows of the comparison: new tokens, tokens before them, and the sliding window."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RowBounds:
    """Where rows begin and end in a tensor of their concatenated tokens."""

    offsets: Tensor
    """`[n + 1]` int32: row i is `offsets[i]:offsets[i + 1]`."""
    longest: int

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device) -> RowBounds:
        offsets = torch.tensor([0, *lengths]).cumsum(0).to(device, torch.int32)
        return cls(offsets, max(lengths))


def is_usable(query: Tensor, key: Tensor, value: Tensor, window: int | None) -> bool:
    """Whether `attend_rows` supports queries `[T, heads, D]`, keys and values `[S, kv_heads, D]` like these."""
    is_supported = query.device.type in DEVICES and query.dtype in HALF and query.shape[-1] <= MAX_HEAD_DIM
    if not is_supported or key.shape != value.shape:  # DeepSeek's heads of values are shorter
        return False
    return is_right(query.device, query.dtype, query.shape[1], key.shape[1], query.shape[2], window is not None)


def attend_rows(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    queries: RowBounds,
    keys: RowBounds,
    *,
    scale: float | None = None,
    window: int | None = None,
) -> Tensor:
    """Computes causal attention within each row: `[T, heads, D]`, keys and values `[S, kv_heads, D]` -> `[T, heads, D]`.

    The queries of a row are its last tokens. A token attends to itself and, with a window, to `window` - 1 tokens before it.
    """
    names_gqa = query.shape[1] != key.shape[1] and _takes_enable_gqa(varlen_attn)
    attended: Tensor = varlen_attn(
        query,
        key,
        value,
        queries.offsets,
        keys.offsets,
        queries.longest,
        keys.longest,
        scale=scale,
        window_size=(-1 if window is None else window - 1, 0),
        **({"enable_gqa": True} if names_gqa else {}),
    )
    return attended


@dataclass(frozen=True, slots=True)
class CachedRows:
    """Places of the keys of rows in a cache `[slots, kv_heads, length, head_dim]`, for `attend_cache`."""

    queries: Tensor
    """`[n + 1]` int32: row i has query i."""
    starts: Tensor
    """`[n + 1]` int32: a row's first key, counted in keys of one head; the last number is not used."""
    lengths: Tensor
    """`[n]` int32: number of keys of each row."""
    longest: int

    @classmethod
    def of(cls, slots: Tensor, lengths: Tensor, longest: int, keys: Tensor) -> CachedRows:
        """`slots`, `lengths`: `[n]`. Does not copy anything between devices."""
        queries = torch.arange(len(slots) + 1, dtype=torch.int32, device=slots.device)
        starts = torch.zeros_like(queries)
        starts[:-1] = slots * (keys.shape[1] * keys.shape[2])
        return cls(queries, starts, lengths.to(torch.int32), longest)


def is_cache_usable(query: Tensor, keys: Tensor, values: Tensor) -> bool:
    """Whether `attend_cache` supports queries `[n, heads, D]` and a cache `[slots, kv_heads, length, D]` like these."""
    if query.device.type not in DEVICES or query.dtype not in HALF or query.shape[-1] > MAX_HEAD_DIM:
        return False
    if keys.shape != values.shape or not (keys.is_contiguous() and values.is_contiguous()):
        return False
    return is_cache_right(query.device, query.dtype, query.shape[1], keys.shape[1], query.shape[2])


def attend_cache(
    query: Tensor, keys: Tensor, values: Tensor, rows: CachedRows, *, scale: float | None = None
) -> Tensor:
    """Computes attention of one query per row to its keys in the cache, in place: `[n, heads, D]`, and keys and values
    `[slots, kv_heads, length, D]` -> `[n, heads, D]`. Without gradients.

    The kernel expects `[S, kv_heads, D]`, with any distance between heads. In the cache, the next key of a head is `D` numbers
    away, so a slot begins a multiple of `D` numbers after the first.
    """
    attended: Tensor = flash_attention(
        query, _as_rows(keys), _as_rows(values), rows.queries, rows.starts, 1, rows.longest,
        0.0, False, False, scale=scale, seqused_k=rows.lengths,
    )[0]  # fmt: skip
    return attended


def _as_rows(cached: Tensor) -> Tensor:
    num_slots, num_heads, length, head_dim = cached.shape
    num_rows = num_slots * num_heads * length - (num_heads - 1) * length
    return cached.as_strided((num_rows, num_heads, head_dim), (head_dim, length * head_dim, 1))


@functools.cache
def is_cache_right(device: torch.device, dtype: torch.dtype, num_heads: int, num_kv_heads: int, head_dim: int) -> bool:
    """Whether `attend_cache` agrees with attention in float32 on random rows. Logs the reason if it does not."""

    def attended(query: Tensor, keys: Tensor, values: Tensor, slots: Tensor, lengths: Tensor) -> Tensor:
        return attend_cache(query, keys, values, CachedRows.of(slots, lengths, keys.shape[2], keys))

    return is_right_on_cached_rows(attended, device, dtype, num_heads, num_kv_heads, head_dim)


def is_right_on_cached_rows(
    attend: Callable[..., Tensor],
    device: torch.device,
    dtype: torch.dtype,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
) -> bool:
    """Whether a function of queries `[n, heads, D]`, keys and values `[slots, kv_heads, length, D]`, slots and lengths `[n]`
    agrees with attention in float32 on random rows. Logs the reason if it does not."""
    generator = torch.Generator().manual_seed(0)

    def random(*size: int) -> Tensor:
        return torch.randn(*size, head_dim, generator=generator).to(device, dtype)

    query, keys, values = random(3, num_heads), random(4, num_kv_heads, 320), random(4, num_kv_heads, 320)
    slots, lengths = [2, 0, 3], [1, 320, 70]
    rows = zip(query, slots, lengths, strict=True)
    expected = [
        _row_by_row(
            one[None], *(each[slot, :, :length].transpose(0, 1) for each in (keys, values)), new=[1], lengths=[length]
        )
        for one, slot, length in rows
    ]
    try:
        with torch.inference_mode():
            found = attend(query, keys, values, *(torch.tensor(each, device=device) for each in (slots, lengths)))
            difference = _largest_difference(found, torch.cat(expected))
    except Exception as error:  # compilers raise errors of many classes
        return _refused(f"{type(error).__name__}: {error}".splitlines()[0])
    return difference <= TOLERANCE or _refused(f"results differ by {difference:.2g} of the largest number")


def _largest_difference(found: Tensor, expected: Tensor) -> float:
    """Relative to the largest number."""
    return float((found.float() - expected).abs().max() / expected.abs().max())


@functools.cache
def _takes_enable_gqa(kernel: Any) -> bool:
    """Without this argument (torch 2.11) the kernel takes fewer key heads than query heads as they are."""
    return "enable_gqa" in inspect.signature(kernel).parameters


@contextmanager
def no_cudnn_attention(device: torch.device) -> Iterator[None]:
    """Disables cuDNN's kernel of `scaled_dot_product_attention` on a GPU: it builds a plan for every new shape, and lengths of
    rows keep changing."""
    was_enabled = torch.backends.cuda.cudnn_sdp_enabled()
    if device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(was_enabled)


@functools.cache
def is_right(
    device: torch.device, dtype: torch.dtype, num_heads: int, num_kv_heads: int, head_dim: int, has_window: bool
) -> bool:
    """Whether the kernel agrees with attention in float32 on random rows. Logs the reason if it does not."""
    try:
        with torch.inference_mode(False), torch.enable_grad():
            difference = _difference(device, dtype, num_heads, num_kv_heads, head_dim, _WINDOW if has_window else None)
    except (TypeError, ValueError, RuntimeError) as error:
        return _refused(f"{type(error).__name__}: {error}".splitlines()[0])
    return difference <= TOLERANCE or _refused(f"results differ by {difference:.2g} of the largest number")


def _difference(
    device: torch.device, dtype: torch.dtype, num_heads: int, num_kv_heads: int, head_dim: int, window: int | None
) -> float:
    """Returns the largest difference of outputs and gradients from attention in float32, relative to the largest number."""
    lengths = [new + cached for new, cached in zip(_NEW, _CACHED, strict=True)]
    queries, keys = RowBounds.of(_NEW, device), RowBounds.of(lengths, device)
    generator = torch.Generator().manual_seed(0)

    def random(num_tokens: int, heads: int) -> Tensor:
        return torch.randn(num_tokens, heads, head_dim, generator=generator).to(device, dtype)

    inputs = [random(sum(_NEW), num_heads), *(random(sum(lengths), num_kv_heads) for _ in range(2))]
    weights = random(sum(_NEW), num_heads)

    def results(attended: Tensor, inputs: list[Tensor]) -> list[Tensor]:
        gradients = torch.autograd.grad((attended * weights.to(attended.dtype)).sum(), inputs)
        return [each.detach().float() for each in (attended, *gradients)]

    query, key, value = ours = [tensor.clone().requires_grad_() for tensor in inputs]
    found = results(attend_rows(query, key, value, queries, keys, window=window), ours)
    query, key, value = theirs = [tensor.float().requires_grad_() for tensor in inputs]
    expected = results(_row_by_row(query, key, value, new=_NEW, lengths=lengths, window=window), theirs)
    return max(map(_largest_difference, found, expected))


def _refused(reason: str) -> bool:
    _log.warning("a kernel for attention of several rows is not used, which is slower: %s", reason)
    return False


def _row_by_row(
    query: Tensor, key: Tensor, value: Tensor, *, new: Sequence[int], lengths: Sequence[int], window: int | None = None
) -> Tensor:
    """Computes `attend_rows` in float32 with a mask per row."""
    num_sharing = query.shape[1] // key.shape[1]
    query, key, value = (each.float() for each in (query, key, value))
    key, value = (each.repeat_interleave(num_sharing, dim=1) for each in (key, value))
    outs = []
    for of_query, of_key, of_value in zip(query.split(new), key.split(lengths), value.split(lengths), strict=True):
        num_keys, num_new = len(of_key), len(of_query)
        positions = torch.arange(num_keys, device=query.device)
        distance = positions[-num_new:, None] - positions
        is_seen = (distance >= 0) & (distance < (window or num_keys))
        of_query, of_key, of_value = (each.transpose(0, 1) for each in (of_query, of_key, of_value))
        outs.append(scaled_dot_product_attention(of_query, of_key, of_value, is_seen).transpose(0, 1))
    return torch.cat(outs)
