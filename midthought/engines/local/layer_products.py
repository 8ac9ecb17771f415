"""The matrix products of a decoding pass: each with its norm, gate or sum by one Triton kernel, or by several kernels.

Those that are fastest on the model's own weights are found by measuring.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from midthought.engines.local.cuda_graphs import cuda_graphs
from midthought.engines.local.device import kernels_of
from midthought.engines.local.weight_copies import Layer, Projection

_KINDS = {"queries_keys_values": "after_norm", "output": "added", "gate_up": "gated", "down": "added"}
"""Of the products of `Layer`."""
HEAD = "head"
NUM_KEYS = 128
NUM_CACHES = 6
"""So many layers' keys and values are more than a cache holds."""
TOLERANCE = 0.02
"""Maximum difference from the expected numbers, relative to the largest one."""
MIN_GAIN = 0.005
"""Share of the time that a change has to save."""
NUM_SWEEPS = 2
NUM_REPEATS = 5

_log = logging.getLogger(__name__)


class LayerProducts:
    """Products of hidden numbers (`triton_products.Hidden`). With `tiles`, one kernel computes one; without, separate kernels."""

    def __init__(self, device: torch.device) -> None:
        self._kernels, self._separate = kernels_of(device, "triton_products"), kernels_of(device, "triton_decoder")
        self._workspace = self._kernels.Workspace(device)

    def embedded(self, token_ids: Tensor, table: Tensor, norm: Any) -> Any:
        """Hidden numbers of `[n]` tokens, for a product after that norm."""
        return self._kernels.scaled(table, norm, token_ids)

    def layer(
        self,
        plan: Mapping[str, Any],
        layer: Layer,
        hidden: Any,
        attend: Callable[[Sequence[Tensor]], Tensor],
        next_norm: Any,
    ) -> Any:
        """Hidden numbers after a layer. `attend`: attention `[n, …]` for queries, keys and values."""
        parts = self.parts(plan["queries_keys_values"], hidden, layer.queries_keys_values, layer.input_norm)
        hidden = self._added(plan["output"], attend(parts).flatten(1), hidden, layer.output, layer.mlp_norm)
        inner = self._gated(plan["gate_up"], hidden, layer.gate_up, layer.mlp_norm)
        return self._added(plan["down"], inner, hidden, layer.down, next_norm)

    def normed(self, hidden: Any, norm: Any) -> Tensor:
        """The norm of hidden numbers."""
        normed: Tensor = self._separate.normed(norm, hidden.numbers)
        return normed

    def parts(self, tiles: Any, hidden: Any, projection: Projection, norm: Any) -> Sequence[Tensor]:
        """The outputs of each map for the norm of hidden numbers; their rows may be parts of longer rows."""
        if tiles is None:
            return projection.parts(self.normed(hidden, norm))
        weights = projection.weights
        assert weights is not None
        out: Tensor = self._kernels.after_norm(hidden, weights, norm, tiles, self._workspace)
        return [out] if len(weights) == 1 else out.split([len(weight) for weight in weights], dim=1)

    def _gated(self, tiles: Any, hidden: Any, projection: Projection, norm: Any) -> Tensor:
        """`silu(gate) · up` of two maps for the norm of hidden numbers."""
        gated: Tensor
        if tiles is None:
            gated = self._separate.gated(*self.parts(None, hidden, projection, norm))
        else:
            weights = projection.weights
            gated = self._kernels.after_norm(hidden, weights, norm, tiles, self._workspace, is_gated=True)
        return gated

    def _added(self, tiles: Any, inputs: Tensor, hidden: Any, projection: Projection, next_norm: Any) -> Any:
        """Hidden numbers after the outputs of the only map were added, in place."""
        if tiles is None:
            return self._kernels.scaled(projection.added(inputs, hidden.numbers), next_norm)
        [weight] = projection.weights or ()
        return self._kernels.added(inputs, weight, hidden, next_norm, tiles, self._workspace)

    # -- the fastest kernels -----------------------------------------------------------------------------------

    def fastest(self, layers: Sequence[Layer], norm: Any, head: Any, num_rows: int) -> dict[str, Any]:
        """Returns the tiles of each product, an attribute of `Layer` or `head`; None for separate kernels.

        The products of all layers are measured together, on random inputs: a kernel begins while the one ahead of it still
        computes, so the time of one depends on its neighbors.

        Args:
            norm, head: the last norm, and the output layer.
            num_rows: number of inputs.
        """
        first = layers[0]
        ways = {kind: self._right(kind, getattr(first, kind), first.mlp_norm, num_rows) for kind in _KINDS}
        weight = (first.output.weights or ())[0]
        attended = _numbers(weight, num_rows, weight.shape[1])
        hidden = self._kernels.scaled(_numbers(weight, num_rows, len(weight)), first.input_norm)

        def seconds(plan: Mapping[str, Any]) -> float:
            return seconds_of(
                [partial(self.layer, plan, each, hidden, lambda _: attended, each.input_norm) for each in layers]
            )

        plan = fastest(ways, seconds)
        if not isinstance(head, Projection):
            return plan | {HEAD: None}

        def seconds_of_head(plan: Mapping[str, Any]) -> float:
            weight = (head.weights or ())[0]
            hidden = self._kernels.scaled(_numbers(weight, num_rows, weight.shape[1]), norm)
            return seconds_of([partial(self.parts, plan[HEAD], hidden, head, norm) for _ in range(2)])

        return plan | fastest({HEAD: self._right(HEAD, head, norm, num_rows)}, seconds_of_head)

    def _right(self, kind: str, projection: Projection, norm: Any, num_rows: int) -> list[Any]:
        weights, operation = projection.weights or (), _KINDS.get(kind, "after_norm")
        inputs = _numbers(weights[0], num_rows, weights[0].shape[1])
        numbers = _numbers(weights[0], num_rows, len(weights[0])) if operation == "added" else inputs

        def compute(tiles: Any) -> Tensor:
            hidden = self._kernels.scaled(numbers.clone(), norm)
            if operation == "added":
                after: Tensor = self._added(tiles, inputs, hidden, projection, norm).numbers
                return after
            if operation == "gated":
                return self._gated(tiles, hidden, projection, norm)
            return torch.cat(list(self.parts(tiles, hidden, projection, norm)), dim=1)

        candidates = self._kernels.candidates(operation, num_rows, weights)
        title = f"{kind} of {num_rows} rows, {weights[0].shape[1]} inputs"
        return those_that_are_right(title, None, candidates, compute)


def _numbers(like: Tensor, num_rows: int, size: int) -> Tensor:
    """Returns the same random numbers `[num_rows, size]` each time."""
    generator = torch.Generator().manual_seed(size)
    return torch.randn(num_rows, size, generator=generator).to(like.device, like.dtype)


def is_fused_faster(new: Sequence[Tensor], norms: tuple[Any, Any] | None, head_dim: int) -> bool:
    """Whether `triton_attention` is faster for as many rows, and right. `new`: queries, keys and values of new tokens."""
    queries, key, _ = new
    num_rows, num_kv_heads = len(queries), key.shape[1] // head_dim
    attention, separate = (kernels_of(queries.device, name) for name in ("triton_attention", "triton_decoder"))
    caches = [queries.new_zeros((2, num_rows, num_kv_heads, NUM_KEYS + 1, head_dim)) for _ in range(NUM_CACHES)]
    if not attention.can_attend_new(queries, *caches[0], has_norms=norms is not None):
        return False
    turns = queries.new_ones((NUM_KEYS + 1, 2, head_dim))
    positions = torch.full((num_rows,), NUM_KEYS, device=queries.device)
    slots = torch.arange(num_rows, device=queries.device)

    def compute(is_fused: bool, cache: Tensor) -> None:
        keys, values = cache
        if is_fused:
            attention.attend_new(*new, norms, turns, positions, slots, keys, values, scale=1.0)
        else:
            turned = separate.turn_and_write(*new, norms, turns, positions, slots, keys, values)
            separate.attend(turned, keys, values, positions, slots, scale=1.0)

    def seconds(plan: Mapping[str, bool]) -> float:
        return seconds_of([partial(compute, plan["attention"], cache) for cache in caches])

    return fastest({"attention": [True, False]}, seconds)["attention"]


def those_that_are_right(title: str, known: Any, others: Iterable[Any], compute: Callable[[Any], Tensor]) -> list[Any]:
    """Returns the ways that compute what the known one computes, and it as the last one."""
    expected, right = compute(known).float(), []
    for way in others:
        try:
            difference = float((compute(way).float() - expected).abs().max() / expected.abs().max())
        except Exception as error:  # compilers raise errors of many classes
            _log.info("%s: %s: %s", title, way, f"{type(error).__name__}: {error}".splitlines()[0])
            continue
        if difference <= TOLERANCE:
            right.append(way)
        else:
            _log.warning("%s: %s is not used: it differs by %.2g of the largest number", title, way, difference)
    return [*right, known]


def fastest(ways: Mapping[str, Sequence[Any]], measure: Callable[[dict[str, Any]], float]) -> dict[str, Any]:
    """Returns one way for each name. Begins with the first of each, then changes one at a time if that is faster."""
    plan = {name: each[0] for name, each in ways.items()}
    least = measure(plan)
    for name, way in itertools.chain.from_iterable(
        [(name, way) for name, each in ways.items() for way in each] for _ in range(NUM_SWEEPS)
    ):
        if way == plan[name]:
            continue
        now = measure(plan | {name: way})
        _log.info("%s: %s: %.1f µs, least %.1f", name, way, 1e6 * now, 1e6 * least)
        if now < (1.0 - MIN_GAIN) * least:
            plan, least = plan | {name: way}, now
    return plan


def seconds_of(calls: Sequence[Callable[[], object]]) -> float:
    """Of all calls on a GPU, without the time to launch them: a recording of them is repeated."""

    def compute() -> Tensor:
        for call in calls:
            call()
        return torch.empty(0)

    replay = cuda_graphs()(compute)
    times = []
    for _ in range(NUM_REPEATS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return min(times) / 1e3
