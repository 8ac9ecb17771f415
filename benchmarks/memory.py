"""Part `memory`: bytes for each token of waiting sequences, over the size of its keys and values, and peaks.

Each figure is measured in a separate process, so that one system's memory is not counted as another's. Linux only.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.bare import BareLoop
from benchmarks.options import Options
from benchmarks.reciter import SIZES, Reciter
from benchmarks.systems import make_engine
from benchmarks.table import Row
from benchmarks.timing import Spread
from benchmarks.work import Shape, Work
from midthought.engines.engine import Sampling

PART = "memory"
STATUS = Path("/proc/self/status")
BYTES_PER_NUMBER = 4
"""The models are in fp32."""


@dataclass(frozen=True, slots=True)
class Held:
    """What a system holds, beyond the model, while all of its sequences wait."""

    num_tokens: int
    tensor_bytes: int
    peak_bytes: int
    """How far the process's resident memory rose on the way there."""

    def per_token(self, size: str) -> float:
        """Bytes of tensors per token, over the bytes of its keys and values."""
        return self.tensor_bytes / self.num_tokens / minimum_bytes(size)

    def peak_per_token(self, size: str) -> float:
        return self.peak_bytes / self.num_tokens / minimum_bytes(size)


def measure(options: Options) -> Iterator[Row]:
    if options.device != "cpu" or not STATUS.exists():
        print("memory: left out, it is measured on the CPU under Linux", file=sys.stderr)
        return
    shape = Shape(num_episodes=64, num_prompt=1000, num_spans=1)
    if options.quick:
        shape = Shape(num_episodes=8, num_prompt=100, num_spans=1)
    for size in options.sizes:
        held = [
            (in_own_process(hold_ours, size, shape), in_own_process(hold_bare, size, shape))
            for _ in range(options.num_rounds)
        ]
        setting = f"{shape.describe(size)}, {minimum_bytes(size):,} bytes of keys and values a token"
        of_tensors, of_peak = "bytes of tensors a token", "rise of resident memory at its peak, a token"
        for figure, values in (
            (f"engine: {of_tensors}, against its keys and values", [ours.per_token(size) for ours, _ in held]),
            (f"bare loop: {of_tensors}, against the same", [bare.per_token(size) for _, bare in held]),
            (f"engine: {of_peak}, against the same", [ours.peak_per_token(size) for ours, _ in held]),
            (f"bare loop: {of_peak}, against the same", [bare.peak_per_token(size) for _, bare in held]),
        ):
            yield Row(part=PART, setting=setting, figure=figure, value=Spread.of(values))


def minimum_bytes(size: str) -> int:
    """Keys and values of one token in all layers."""
    sizes = SIZES[size]
    return 2 * sizes.num_layers * sizes.num_kv_heads * sizes.head_dim * BYTES_PER_NUMBER


def in_own_process(hold: Callable[[str, Shape], Held], size: str, shape: Shape) -> Held:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(hold, size, shape).result()


def hold_ours(size: str, shape: Shape) -> Held:
    """Sample a span of every sequence and leave all of them open, as while their tools run."""
    reciter = Reciter(size, "in_thought", num_span=shape.num_span)
    prompts = Work(reciter, shape, seed=1).prompt_ids(reciter)
    begin = _begin()
    engine = make_engine(reciter, shape)

    async def sample_all() -> None:
        for number in range(len(prompts)):
            engine.open(number)
        sampling = Sampling(max_tokens=shape.num_span)
        await asyncio.gather(*(engine.sample(number, prompt, sampling) for number, prompt in enumerate(prompts)))

    asyncio.run(sample_all())
    return _held_since(begin, shape)


def hold_bare(size: str, shape: Shape) -> Held:
    reciter = Reciter(size, "in_thought", num_span=shape.num_span)
    prompts = torch.tensor(Work(reciter, shape, seed=1).prompt_ids(reciter))
    begin = _begin()
    loop = BareLoop(reciter.model, shape.num_episodes, shape.length)
    loop.sample(loop.prefill(prompts), shape.num_span)
    return _held_since(begin, shape)


def _begin() -> tuple[int, int]:
    """Bytes of all tensors, and of resident memory; the peak is counted from here on."""
    Path("/proc/self/clear_refs").write_text("5")
    return _tensor_bytes(), _resident("VmRSS")


def _held_since(begin: tuple[int, int], shape: Shape) -> Held:
    """The last sampled token is not in the cache: nothing has asked for what follows it."""
    num_tokens = shape.num_episodes * (shape.length - 1)
    peak = _resident("VmHWM") - begin[1]
    return Held(num_tokens=num_tokens, tensor_bytes=_tensor_bytes() - begin[0], peak_bytes=peak)


def _tensor_bytes() -> int:
    gc.collect()
    tensors = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)]
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())


def _resident(name: str) -> int:
    """`VmRSS` (now) or `VmHWM` (at most), in bytes."""
    line = next(line for line in STATUS.read_text("utf-8").splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024
