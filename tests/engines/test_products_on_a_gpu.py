"""All kernels of a decoding pass's products against float64, for weights in the shapes of Qwen3-0.6B and 8B. Needs a GPU."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from midthought.engines.local.device import kernels_of

if not torch.cuda.is_available():
    pytest.skip("needs a GPU with CUDA", allow_module_level=True)
pytest.importorskip("triton")
DEVICE = torch.device("cuda", 0)
EPSILON = 1e-6
SHAPES = {"0.6B": (1024, (2048, 1024, 1024), 3072), "8B": (4096, (4096, 1024, 1024), 12288)}
"""Hidden size, outputs of queries, keys and values, inner size."""


class Norm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(size, device=DEVICE).bfloat16() + 0.5, requires_grad=False)
        self.variance_epsilon = EPSILON


def random(*size: int) -> torch.Tensor:
    return torch.randn(size, device=DEVICE).bfloat16()


def normed(numbers: torch.Tensor, norm: Norm) -> torch.Tensor:
    wide = numbers.double()
    return wide * (wide.square().mean(-1, keepdim=True) + EPSILON).rsqrt() * norm.weight.double()


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("num_rows", [1, 20, 32, 64, 128])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_products_agree_with_float64(shape, num_rows):
    torch.manual_seed(num_rows)
    kernels = kernels_of(DEVICE, "triton_products")
    workspace = kernels.Workspace(DEVICE)
    width, sizes, inner = shape
    num_tile_rows = max(32, 1 << (num_rows - 1).bit_length())
    norm, numbers = Norm(width), random(num_rows, width)
    hidden = kernels.scaled(numbers, norm)
    weights = [random(size, width) / width**0.5 for size in sizes]
    expected = normed(numbers, norm) @ torch.cat(weights).double().t()
    for tiles in kernels.candidates("after_norm", num_tile_rows, weights):
        assert relative_error(kernels.after_norm(hidden, weights, norm, tiles, workspace), expected) < 0.01, tiles
    gate, up = random(inner, width) / width**0.5, random(inner, width) / width**0.5
    expected = F.silu(normed(numbers, norm) @ gate.double().t()) * (normed(numbers, norm) @ up.double().t())
    for tiles in kernels.candidates("gated", num_tile_rows, [gate, up]):
        found = kernels.after_norm(hidden, [gate, up], norm, tiles, workspace, is_gated=True)
        assert relative_error(found, expected) < 0.01, tiles
    down, inputs, next_norm = random(width, inner) / inner**0.5, random(num_rows, inner), Norm(width)
    expected = numbers.double() + inputs.double() @ down.double().t()
    for tiles in kernels.candidates("added", num_tile_rows, [down]):
        for _ in range(2):  # counters of divided products are 0 again
            before = kernels.scaled(numbers.clone(), norm)
            after = kernels.added(inputs, down, before, next_norm, tiles, workspace)
            assert relative_error(after.numbers, expected) < 0.01, tiles
            assert relative_error(after.scaled, after.numbers.double() * next_norm.weight.double()) < 0.01, tiles
            assert relative_error(after.squares.sum(1), after.numbers.double().square().sum(1)) < 1e-4, tiles
