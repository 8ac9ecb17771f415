"""The products of `triton_products`, with all weights of a program on their way before the kernel ahead has ended.

A program's part of the weights fits into the memory of its multiprocessor, so it is copied there while the kernel ahead still
computes; then only the inputs are missing. Triton's own language cannot say that, Gluon can (Hopper; Triton 3.6). Import this
module only where Triton is installed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma, warpgroup_mma_wait

TILE_COLUMNS = 64
"""Weights that are multiplied at once: rows of a tensor core's left factor. With a gate, half of them are the gate's."""
TILE_INNER = 64
MAX_CHUNK = 4
"""Tiles of inputs that are waited for at once."""


@gluon.jit
def _begin():  # type: ignore[no-untyped-def]
    gl.inline_asm_elementwise("griddepcontrol.wait; // $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1)
    gl.inline_asm_elementwise(
        "griddepcontrol.launch_dependents; // $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def _copy_weights(  # type: ignore[no-untyped-def]
    target, weights, others, num_columns: gl.constexpr, tile_inner: gl.constexpr, num_tiles: gl.constexpr,
    is_gated: gl.constexpr,
):  # fmt: skip
    """Copies all weights of a program, and does not wait. With a gate, a tile has the columns of both factors."""
    for tile in gl.static_range(num_tiles):
        if is_gated:
            async_copy.async_copy_global_to_shared(
                target.index(tile).slice(0, num_columns), weights + tile * tile_inner
            )
            async_copy.async_copy_global_to_shared(
                target.index(tile).slice(num_columns, num_columns), others + tile * tile_inner
            )
        else:
            async_copy.async_copy_global_to_shared(target.index(tile), weights + tile * tile_inner)
    async_copy.commit_group()


@gluon.jit
def _scale(  # type: ignore[no-untyped-def]
    squares, rows, is_row, num_squares, size_in, epsilon, tile_rows: gl.constexpr, stored: gl.constexpr
):
    """As in `triton_products`."""
    total = gl.zeros([tile_rows], gl.float32, gl.SliceLayout(0, stored))
    for start in range(0, num_squares, 32):
        numbers = start + gl.arange(0, 32, gl.SliceLayout(1, stored))
        inside = (numbers < num_squares)[:, None] & is_row[None, :]
        some = gl.load(squares + rows[None, :] * num_squares + numbers[:, None], mask=inside, other=0.0)
        total += gl.sum(some, 0)
    return gl.rsqrt(total / size_in + epsilon)


@gluon.jit
def _store_gated(  # type: ignore[no-untyped-def]
    sums, out, first_row, first_column, num_rows, size_out, tile_rows: gl.constexpr, num_columns: gl.constexpr
):
    """The first half of the columns of `sums` `[2 · columns, rows]` is the gate."""
    both = gl.allocate_shared_memory(gl.float32, [2 * num_columns, tile_rows], gl.SwizzledSharedLayout(1, 1, 1, [0, 1]))
    both.store(sums)
    half: gl.constexpr = gl.BlockedLayout([4, 1], [8, 4], [1, 4], [0, 1])
    gate, up = both.slice(0, num_columns).load(half), both.slice(num_columns, num_columns).load(half)
    product = (gate / (1.0 + gl.exp(-gate)) * up).to(out.dtype.element_ty)
    rows = first_row + gl.arange(0, tile_rows, gl.SliceLayout(0, half))
    columns = first_column + gl.arange(0, num_columns, gl.SliceLayout(1, half))
    targets = rows.to(gl.int64)[None, :] * size_out + columns[:, None]
    gl.store(out + targets, product, mask=(rows < num_rows)[None, :])


@gluon.jit
def _finish(  # type: ignore[no-untyped-def]
    sums, scale, before, weights, rows, is_row, columns, num_columns, block, out, scaled, squares, size_out, num_blocks,
    is_normed: gl.constexpr, is_added: gl.constexpr,
):  # fmt: skip
    """`sums` `[columns, rows]` in the layout of the other tensors."""
    places = rows.to(gl.int64)[None, :] * size_out + columns[:, None]
    inside = is_row[None, :] & (columns < num_columns)[:, None]
    if is_added:
        sums += before.to(gl.float32)
    rounded = sums.to(out.dtype.element_ty)
    gl.store(out + places, rounded, mask=inside)
    if is_added:
        wide = rounded.to(gl.float32)
        gl.store(scaled + places, (wide * weights.to(gl.float32)[:, None]).to(out.dtype.element_ty), mask=inside)
        gl.store(squares + rows * num_blocks + block, gl.sum(wide * wide, 0), mask=is_row)


@gluon.jit(do_not_specialize=["num_rows", "num_squares"])
def _product(  # type: ignore[no-untyped-def]
    inputs, weight, second, third, out, squares, next_weight, scaled, next_squares, partial, counters,
    num_rows, size_in, size_out, first_end, second_end, num_squares, epsilon,
    is_normed: gl.constexpr, is_gated: gl.constexpr, is_added: gl.constexpr,
    tile_rows: gl.constexpr, tile_columns: gl.constexpr, tile_inner: gl.constexpr, num_tiles: gl.constexpr,
    chunk: gl.constexpr, splits: gl.constexpr,
):  # fmt: skip
    block, part, row_block = gl.program_id(0) // splits, gl.program_id(0) % splits, gl.program_id(1)
    block_columns: gl.constexpr = tile_columns // 2 if is_gated else tile_columns
    first_column = block * block_columns
    at = first_column
    if not is_gated:
        if first_column >= second_end:
            weight = third
            at = first_column - second_end
        elif first_column >= first_end:
            weight = second
            at = first_column - first_end
    copied: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    shared: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    result: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, tile_rows, 16]
    )
    stored: gl.constexpr = gl.BlockedLayout([8, 1], [8, 4], [1, 4], [0, 1])
    its_weights = gl.allocate_shared_memory(weight.dtype.element_ty, [num_tiles, tile_columns, tile_inner], shared)
    its_inputs = gl.allocate_shared_memory(weight.dtype.element_ty, [num_tiles, tile_rows, tile_inner], shared)
    inner = part * (num_tiles * tile_inner) + gl.arange(0, tile_inner, gl.SliceLayout(0, copied))
    column = at + gl.arange(0, block_columns, gl.SliceLayout(1, copied))
    of_weights = column.to(gl.int64)[:, None] * size_in + inner[None, :]
    _copy_weights(its_weights, weight + of_weights, second + of_weights, block_columns, tile_inner, num_tiles, is_gated)
    _begin()
    row = row_block * tile_rows + gl.arange(0, tile_rows, gl.SliceLayout(1, copied))
    of_inputs = row.to(gl.int64)[:, None] * size_in + inner[None, :]
    for tile in gl.static_range(num_tiles):
        async_copy.async_copy_global_to_shared(
            its_inputs.index(tile), inputs + of_inputs + tile * tile_inner, mask=(row < num_rows)[:, None]
        )
        if tile % chunk == chunk - 1:
            async_copy.commit_group()
    rows = row_block * tile_rows + gl.arange(0, tile_rows, gl.SliceLayout(0, stored))
    is_row = rows < num_rows
    columns = first_column + gl.arange(0, tile_columns, gl.SliceLayout(1, stored))
    scale = gl.full([tile_rows], 1.0, gl.float32, gl.SliceLayout(0, stored))
    if is_normed:
        scale = _scale(squares, rows, is_row, num_squares, size_in, epsilon, tile_rows, stored)
    before = gl.zeros([tile_columns, tile_rows], out.dtype.element_ty, stored)
    weights_after = gl.zeros([tile_columns], out.dtype.element_ty, gl.SliceLayout(1, stored))
    if is_added:
        places = rows.to(gl.int64)[None, :] * size_out + columns[:, None]
        before = gl.load(out + places, mask=is_row[None, :] & (columns < size_out)[:, None], other=0.0)
        weights_after = gl.load(next_weight + columns)
    acc = gl.zeros([tile_columns, tile_rows], gl.float32, result)
    for tile in gl.static_range(num_tiles):
        if tile % chunk == 0:
            async_copy.wait_group(num_tiles // chunk - 1 - tile // chunk)
            fence_async_shared()
        acc = warpgroup_mma(its_weights.index(tile), its_inputs.index(tile).permute((1, 0)), acc, is_async=True)
    acc = warpgroup_mma_wait(0, deps=[acc])
    sums = gl.convert_layout(acc, stored)
    is_last = True
    if splits > 1:
        size: gl.constexpr = tile_rows * tile_columns
        place = row_block * (gl.num_programs(0) // splits) + block
        its_sums = partial + place.to(gl.int64) * (splits * size)
        offsets = gl.arange(0, tile_rows, gl.SliceLayout(0, stored))[None, :] * tile_columns
        its_sums += offsets + gl.arange(0, tile_columns, gl.SliceLayout(1, stored))[:, None]
        gl.store(its_sums + part * size, sums)
        gl.thread_barrier()
        is_last = gl.atomic_add(counters + place, 1, sem="acq_rel", scope="gpu") == splits - 1
        if is_last:
            gl.store(counters + place, 0)
            sums = gl.load(its_sums, cache_modifier=".cg")
            for number in gl.static_range(1, splits):
                sums += gl.load(its_sums + number * size, cache_modifier=".cg")
    if is_last:
        if is_normed:
            sums = sums * scale[None, :]
        if is_gated:
            first_row = row_block * tile_rows
            _store_gated(sums, out, first_row, first_column, num_rows, size_out, tile_rows, block_columns)
        else:
            _finish(
                sums, scale, before, weights_after, rows, is_row, columns, size_out, block, out, scaled, next_squares,
                size_out, size_out // block_columns, is_normed, is_added,
            )  # fmt: skip


def launch(
    inputs: Tensor,
    weights: Sequence[Tensor],
    out: Tensor,
    squares: Tensor | None,
    next_weight: Tensor | None,
    scaled: Tensor | None,
    next_squares: Tensor | None,
    partial: Tensor | None,
    counters: Tensor,
    *,
    ends: tuple[int, int],
    epsilon: float,
    is_gated: bool,
    num_tile_rows: int,
    splits: int,
) -> None:
    """As `triton_products` does for `Tiles` that are resident. `ends`: columns at which the first and second weight end."""
    (num_rows, num_inputs), num_columns = inputs.shape, out.shape[1]
    first, second, third = (weights[min(number, len(weights) - 1)] for number in range(3))
    num_tiles = num_inputs // splits // TILE_INNER
    num_block_columns = TILE_COLUMNS // 2 if is_gated else TILE_COLUMNS
    grid = (num_columns // num_block_columns * splits, -(-num_rows // num_tile_rows))
    _product[grid](
        inputs, first, second, third, out, squares, next_weight, scaled, next_squares, partial, counters,
        num_rows, num_inputs, num_columns, *ends, 1 if squares is None else squares.shape[1], epsilon,
        squares is not None, is_gated, scaled is not None,
        num_tile_rows, TILE_COLUMNS, TILE_INNER, num_tiles, math.gcd(num_tiles, MAX_CHUNK), splits,
        num_warps=4, launch_pdl=True,
    )  # fmt: skip
