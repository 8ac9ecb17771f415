"""Triton kernels for the matrix products of a decoding step: few rows, and weights that are read once.

Such a product takes as long as reading its weights, if nothing else takes time: norms, gates and additions are computed by the
kernel of the product, and its weights are on their way before the kernel ahead of it has ended. Norms are split in two: the
kernel that computes hidden numbers also stores them times the next norm's weight, and the sums of their squares by block of
columns; the next product divides its result by the root of their mean. Import this module only where Triton is installed.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_BYTES_AHEAD = 16 * 2**20
"""Weights of a kernel that are read into the L2 cache before it begins."""
MAX_RESIDENT_ROWS = 32
ROOM = 10 * 2**10
"""Memory of a multiprocessor that a program needs beside inputs and weights."""
MAX_COUNTERS = 2**14
"""Blocks of a result that are divided among programs."""


class Tiles(NamedTuple):
    """How a product is divided among programs."""

    rows: int
    columns: int
    """Of the result, in each of the gate and the other factor if there is a gate."""
    inner: int
    """Inputs that are multiplied at once."""
    splits: int = 1
    """Programs among which the inputs of one block of the result are divided; the last one that ends adds their sums, in a
    fixed order."""
    stages: int = 4
    """Blocks of inputs that are read ahead."""
    warps: int = 4
    swaps: bool = False
    """Computes the transposed result, so that the columns fill the tensor cores' 64 rows."""
    is_resident: bool = False
    """Computed by `gluon_products`: a program has all of its inputs and weights in the memory of its multiprocessor."""

    def fits(self, num_inputs: int, sizes: Sequence[int]) -> bool:
        """Whether blocks divide the inputs and each part of the outputs."""
        return num_inputs % (self.splits * self.inner) == 0 and all(size % self.columns == 0 for size in sizes)


AFTER_NORM, GATED, ADDED = "after_norm", "gated", "added"
"""Kinds of products."""
TILES = {
    (AFTER_NORM, 32): (
        Tiles(32, 64, 128, stages=6, swaps=True),
        Tiles(32, 64, 128, stages=4, swaps=True),
        Tiles(64, 32, 128, stages=4),
        Tiles(32, 64, 128, splits=2, stages=5, swaps=True),
    ),
    (GATED, 32): (Tiles(32, 64, 128, stages=4, swaps=True), Tiles(64, 32, 128, stages=4)),
    (ADDED, 32): (
        Tiles(32, 64, 128, splits=4, stages=5, swaps=True),
        Tiles(32, 64, 128, splits=2, stages=5, swaps=True),
        Tiles(64, 32, 128, splits=4, stages=4),
    ),
    (AFTER_NORM, 64): (Tiles(64, 64, 128, swaps=True), Tiles(64, 32, 128)),
    (GATED, 64): (Tiles(64, 32, 128, stages=3), Tiles(64, 64, 64, stages=5, swaps=True)),
    (ADDED, 64): (Tiles(64, 32, 128, splits=2, stages=5), Tiles(64, 64, 128, splits=4, swaps=True)),
}
TILES |= {(kind, 128): tiles for (kind, rows), tiles in TILES.items() if rows == 64}
"""What may be fast, by kind and number of rows; on an H200 each of them was the fastest for some weights."""


class Hidden(NamedTuple):
    """Hidden numbers between two layers or halves of a layer, as the next product needs them."""

    numbers: Tensor
    """`[n, C]`"""
    scaled: Tensor
    """`[n, C]`: times the weight of the next norm."""
    squares: Tensor
    """`[n, blocks]` float32: sums of squares of some of the numbers; together of all."""


def candidates(kind: str, num_rows: int, weights: Sequence[Tensor]) -> Sequence[Tiles]:
    """Tiles that may be fast for these weights `[out, in]`, and that fit."""
    num_inputs, sizes = weights[0].shape[1], [len(weight) for weight in weights]
    tiles = [*_resident(kind, num_rows, weights), *TILES.get((kind, num_rows), ())]
    return [each for each in tiles if each.fits(num_inputs, sizes)]


def _resident(kind: str, num_rows: int, weights: Sequence[Tensor]) -> Sequence[Tiles]:
    """Tiles with as many programs as the GPU computes at once."""
    if num_rows > MAX_RESIDENT_ROWS or _gluon_products(weights[0].device) is None:
        return []
    num_bytes = (64 + num_rows) * weights[0].shape[1] * weights[0].element_size()
    num_programs = sum(map(len, weights)) // 64
    gpu = triton.runtime.driver.active.utils.get_device_properties(torch.cuda.current_device())
    limit, at_once = gpu["max_shared_mem"] - ROOM, gpu["multiprocessor_count"]
    splits = [splits for splits in (1, 2, 4, 8) if num_bytes // splits <= limit]
    splits = [each for each in splits if at_once // 5 <= num_programs * each <= 2 * at_once]
    columns = 32 if kind == GATED else 64
    return [Tiles(num_rows, columns, 64, splits=each, is_resident=True) for each in splits]


@functools.cache
def _gluon_products(device: torch.device) -> Any:
    """The module; None for other GPUs than Hopper, and with another Triton."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) != (9, 0):
        return None
    try:
        from midthought.engines.local import gluon_products
    except (ImportError, AttributeError):
        return None
    return gluon_products


@triton.jit
def begin(early: tl.constexpr):  # type: ignore[no-untyped-def]
    """Waits for the kernel ahead, then allows the next one to begin: so at most two are under way.

    Before it, a kernel may read weights and what earlier passes wrote, nothing else.
    """
    if early:
        tl.inline_asm_elementwise("griddepcontrol.wait; // $0", "=r", [], dtype=tl.int32, is_pure=False, pack=1)
        tl.inline_asm_elementwise(
            "griddepcontrol.launch_dependents; // $0", "=r", [], dtype=tl.int32, is_pure=False, pack=1
        )


@triton.jit
def read_ahead(pointers, num_bytes):  # type: ignore[no-untyped-def]
    """Has so many bytes from each address on copied into the L2 cache, a multiple of 16; does not wait."""
    places = pointers.to(tl.int64)
    sizes = tl.zeros_like(places).to(tl.int32) + num_bytes
    tl.inline_asm_elementwise(
        "cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0;",
        "=r,l,r",
        [places, sizes],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def _scale(squares, rows, is_row, num_squares, size_in, epsilon):  # type: ignore[no-untyped-def]
    """Returns what each row of hidden numbers is multiplied by: 1 / √(mean(hidden²) + epsilon)."""
    total = tl.zeros_like(rows).to(tl.float32)
    for start in range(0, num_squares, 32):
        numbers = start + tl.arange(0, 32)
        inside = is_row[:, None] & (numbers < num_squares)[None, :]
        some = tl.load(squares + rows[:, None] * num_squares + numbers[None, :], mask=inside, other=0.0)
        total += tl.sum(some, 1)
    return tl.rsqrt(total / size_in + epsilon)


@triton.jit
def _store(  # type: ignore[no-untyped-def]
    sums, others, scale, before, weights, rows, is_row, places, block, out, scaled, squares, num_blocks,
    is_normed: tl.constexpr, is_gated: tl.constexpr, is_added: tl.constexpr,
):  # fmt: skip
    if is_normed:
        sums *= scale[:, None]
        others *= scale[:, None]
    if is_gated:
        sums = sums / (1.0 + tl.exp(-sums)) * others
    if is_added:
        sums += before.to(tl.float32)
    rounded = sums.to(out.dtype.element_ty)
    tl.store(out + places, rounded, mask=is_row[:, None])
    if is_added:
        wide = rounded.to(tl.float32)
        tl.store(
            scaled + places, (wide * weights.to(tl.float32)[None, :]).to(out.dtype.element_ty), mask=is_row[:, None]
        )
        tl.store(squares + rows * num_blocks + block, tl.sum(wide * wide, 1), mask=is_row)


@triton.jit
def _read_weights_ahead(weight, size_in, num_ahead, tile_columns: tl.constexpr, threads: tl.constexpr):  # type: ignore[no-untyped-def]
    """The first `num_ahead` weights of each column of a block, the same number by each thread."""
    per_column: tl.constexpr = threads // tile_columns
    thread = tl.arange(0, threads)
    number = num_ahead // per_column
    if num_ahead > 0:
        places = (thread // per_column).to(tl.int64) * size_in + thread % per_column * number
        read_ahead(weight + places, number * (weight.dtype.element_ty.primitive_bitwidth // 8))


@triton.jit
def _multiplied(inputs, weights, sums, swaps: tl.constexpr):  # type: ignore[no-untyped-def]
    if swaps:
        return tl.dot(weights, tl.trans(inputs), sums)
    else:
        return tl.dot(inputs, tl.trans(weights), sums)


@triton.jit(do_not_specialize=["num_rows", "num_squares", "num_ahead"])
def _product(  # type: ignore[no-untyped-def]
    inputs, weight, second, third, out, squares, next_weight, scaled, next_squares, partial, counters,
    num_rows, size_in, size_out, first_end, second_end, num_squares, num_ahead, epsilon,
    is_normed: tl.constexpr, is_gated: tl.constexpr, is_added: tl.constexpr,
    tile_rows: tl.constexpr, tile_columns: tl.constexpr, tile_inner: tl.constexpr, splits: tl.constexpr,
    stages: tl.constexpr, swaps: tl.constexpr, threads: tl.constexpr, early: tl.constexpr,
):  # fmt: skip
    block, part, row_block = tl.program_id(0) // splits, tl.program_id(0) % splits, tl.program_id(1)
    num_inputs = tl.multiple_of(size_in // splits, tile_inner)
    columns = block * tile_columns + tl.arange(0, tile_columns)
    first_column = block * tile_columns
    if not is_gated:
        if first_column >= second_end:
            weight = third
            first_column -= second_end
        elif first_column >= first_end:
            weight = second
            first_column -= first_end
    if early:
        start = first_column.to(tl.int64) * size_in + part * num_inputs
        _read_weights_ahead(weight + start, size_in, num_ahead, tile_columns, threads)
        if is_gated:
            _read_weights_ahead(second + start, size_in, num_ahead, tile_columns, threads)
    begin(early)
    rows = row_block * tile_rows + tl.arange(0, tile_rows)
    is_row = rows < num_rows
    places = rows.to(tl.int64)[:, None] * size_out + columns[None, :]
    scale = tl.zeros([tile_rows], tl.float32)
    before = tl.zeros([tile_rows, tile_columns], out.dtype.element_ty)
    weights_after = tl.zeros([tile_columns], out.dtype.element_ty)
    if is_normed:
        scale = _scale(squares, rows, is_row, num_squares, size_in, epsilon)
    if is_added:
        before = tl.load(out + places, mask=is_row[:, None], other=0.0)
        weights_after = tl.load(next_weight + columns)
    inner = part * num_inputs + tl.arange(0, tile_inner)
    its_inputs = inputs + rows.to(tl.int64)[:, None] * size_in + inner[None, :]
    of_weights = (first_column + tl.arange(0, tile_columns)).to(tl.int64)[:, None] * size_in + inner[None, :]
    its_weights = weight + of_weights
    if swaps:
        sums = tl.zeros([tile_columns, tile_rows], tl.float32)
        others = tl.zeros([tile_columns, tile_rows], tl.float32)
    else:
        sums = tl.zeros([tile_rows, tile_columns], tl.float32)
        others = tl.zeros([tile_rows, tile_columns], tl.float32)
    for start in tl.range(0, num_inputs, tile_inner, num_stages=stages):
        these = tl.load(its_inputs + start, mask=is_row[:, None], other=0.0)
        weights = tl.load(its_weights + start)
        sums = _multiplied(these, weights, sums, swaps)
        if is_gated:
            others = _multiplied(these, tl.load(second + of_weights + start), others, swaps)
    if swaps:
        sums, others = tl.trans(sums), tl.trans(others)
    if splits == 1:
        _store(
            sums, others, scale, before, weights_after, rows, is_row, places, block, out, scaled, next_squares,
            size_out // tile_columns, is_normed, is_gated, is_added,
        )  # fmt: skip
    else:
        size: tl.constexpr = tile_rows * tile_columns
        step: tl.constexpr = 2 * size if is_gated else size
        place = row_block * (tl.num_programs(0) // splits) + block
        its_sums = partial + place.to(tl.int64) * (splits * step)
        its_sums += tl.arange(0, tile_rows)[:, None] * tile_columns + tl.arange(0, tile_columns)[None, :]
        tl.store(its_sums + part * step, sums)
        if is_gated:
            tl.store(its_sums + part * step + size, others)
        tl.debug_barrier()  # all threads have stored before one of them counts
        if tl.atomic_add(counters + place, 1, sem="acq_rel", scope="gpu") == splits - 1:
            tl.store(counters + place, 0)
            sums = tl.load(its_sums, cache_modifier=".cg")
            for number in tl.static_range(1, splits):
                sums += tl.load(its_sums + number * step, cache_modifier=".cg")
            if is_gated:
                others = tl.load(its_sums + size, cache_modifier=".cg")
                for number in tl.static_range(1, splits):
                    others += tl.load(its_sums + number * step + size, cache_modifier=".cg")
            _store(
                sums, others, scale, before, weights_after, rows, is_row, places, block, out, scaled, next_squares,
                size_out // tile_columns, is_normed, is_gated, is_added,
            )  # fmt: skip


@triton.jit
def _scaled(  # type: ignore[no-untyped-def]
    token_ids, table, weight, numbers, scaled, squares, size,
    is_table: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, block)
    inside = columns < size
    source = tl.load(token_ids + row) if is_table else row
    its_numbers = tl.load(table + source * size + columns, mask=inside, other=0.0)
    if is_table:
        tl.store(numbers + row * size + columns, its_numbers, mask=inside)
    wide = its_numbers.to(tl.float32)
    weights = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(scaled + row * size + columns, (wide * weights).to(scaled.dtype.element_ty), mask=inside)
    tl.store(squares + row, tl.sum(wide * wide, 0))


def scaled(numbers: Tensor, norm: Any, token_ids: Tensor | None = None) -> Hidden:
    """Hidden numbers for a product with that norm: `numbers` `[n, C]`, or those rows of a table `[V, C]`."""
    num_rows, size = len(numbers if token_ids is None else token_ids), numbers.shape[1]
    out = torch.empty((num_rows, size), dtype=numbers.dtype, device=numbers.device)
    taken = numbers if token_ids is None else torch.empty_like(out)
    squares = torch.empty((num_rows, 1), dtype=torch.float32, device=numbers.device)
    block = triton.next_power_of_2(size)
    num_warps = min(16, max(1, block // 512))
    _scaled[(num_rows,)](
        token_ids, numbers, norm.weight, taken, out, squares, size, token_ids is not None, block, num_warps=num_warps
    )
    return Hidden(taken, out, squares)


class Workspace:
    """Memory of products that are divided among programs; for one pass at a time."""

    def __init__(self, device: torch.device) -> None:
        self._counters = torch.zeros(MAX_COUNTERS, dtype=torch.int32, device=device)

    def of(self, tiles: Tiles, num_rows: int, num_columns: int, num_factors: int) -> tuple[Tensor | None, Tensor]:
        """Partial sums, and counters that are 0."""
        if tiles.splits == 1:
            return None, self._counters
        num_blocks = triton.cdiv(num_rows, tiles.rows) * (num_columns // tiles.columns)
        assert num_blocks <= MAX_COUNTERS
        size = num_blocks * tiles.splits * num_factors * tiles.rows * tiles.columns
        return torch.empty(size, dtype=torch.float32, device=self._counters.device), self._counters


def after_norm(
    hidden: Hidden, weights: Sequence[Tensor], norm: Any, tiles: Tiles, workspace: Workspace, *, is_gated: bool = False
) -> Tensor:
    """Products of one to three weights `[out, in]` and the norm of hidden numbers, side by side: `[n, all outs]`.

    `is_gated`: SwiGLU (arXiv 2002.05202) instead, `silu(first) · second`.
    """
    sizes = [len(weight) for weight in weights]
    out = hidden.scaled.new_empty((len(hidden.scaled), sizes[0] if is_gated else sum(sizes)))
    _launch(
        hidden.scaled, weights, out, tiles, workspace, hidden=hidden, epsilon=norm.variance_epsilon, is_gated=is_gated
    )
    return out


def added(inputs: Tensor, weight: Tensor, hidden: Hidden, next_norm: Any, tiles: Tiles, workspace: Workspace) -> Hidden:
    """Adds the product of the inputs `[n, in]` and a weight `[C, in]` to hidden numbers, in place."""
    squares = torch.empty((len(inputs), len(weight) // tiles.columns), dtype=torch.float32, device=inputs.device)
    after = Hidden(hidden.numbers, hidden.scaled, squares)
    _launch(inputs, [weight], hidden.numbers, tiles, workspace, after=after, next_norm=next_norm)
    return after


def _launch(
    inputs: Tensor,
    weights: Sequence[Tensor],
    out: Tensor,
    tiles: Tiles,
    workspace: Workspace,
    *,
    hidden: Hidden | None = None,
    epsilon: float = 0.0,
    is_gated: bool = False,
    after: Hidden | None = None,
    next_norm: Any = None,
) -> None:
    (num_rows, num_inputs), num_columns = inputs.shape, out.shape[1]
    first, second, third = (weights[min(number, len(weights) - 1)] for number in range(3))
    first_end = len(first)
    second_end = first_end + (len(second) if len(weights) > 1 else 0)
    num_factors = 1 + is_gated  # of a resident gated product, too: a block has the columns of both
    partial, counters = workspace.of(tiles, num_rows, num_columns, num_factors)
    squares = None if hidden is None else hidden.squares
    next_weight = None if next_norm is None else next_norm.weight
    scaled, next_squares = (None, None) if after is None else (after.scaled, after.squares)
    if tiles.is_resident:
        return _gluon_products(inputs.device).launch(
            inputs, weights, out, squares, next_weight, scaled, next_squares, partial, counters,
            ends=(first_end, second_end), epsilon=epsilon, is_gated=is_gated, num_tile_rows=tiles.rows, splits=tiles.splits,
        )  # fmt: skip
    num_squares = 1 if squares is None else squares.shape[1]
    early, threads = starts_early(inputs.device), 32 * tiles.warps
    grid = (num_columns // tiles.columns * tiles.splits, triton.cdiv(num_rows, tiles.rows))
    _product[grid](
        inputs, first, second, third, out, squares, next_weight, scaled, next_squares, partial, counters,
        num_rows, num_inputs, num_columns, first_end, second_end, num_squares,
        _num_ahead(tiles, num_inputs, num_columns * (1 + is_gated), inputs.element_size()), epsilon,
        hidden is not None, is_gated, after is not None,
        tiles.rows, tiles.columns, tiles.inner, tiles.splits, tiles.stages, tiles.swaps, threads, early,
        num_warps=tiles.warps, launch_pdl=early,
    )  # fmt: skip


def _num_ahead(tiles: Tiles, num_inputs: int, num_columns: int, width: int) -> int:
    """Number of inputs whose weights each program reads ahead: of all, as long as they leave room in the cache."""
    threads_per_column = 32 * tiles.warps // tiles.columns
    number = num_inputs // tiles.splits
    while number * tiles.splits * num_columns * width > MAX_BYTES_AHEAD and number % 2 == 0:
        number //= 2
    is_aligned = threads_per_column and number % threads_per_column == 0
    return number if is_aligned and number // threads_per_column * width % 16 == 0 else 0


@functools.cache
def starts_early(device: torch.device) -> bool:
    """Whether a kernel may begin before the one ahead has ended: on GPUs of compute capability 9 (Hopper) and later."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
