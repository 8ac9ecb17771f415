"""Runs a bundle's `train.sh` with verl on a CPU. Only for tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent


def on_cpu(model: str, engine: str) -> list[str]:
    """Keys of one model: float32 with padded rows, because packed rows need flash attention."""
    return [
        f"{model}.use_remove_padding=false",
        f"+{model}.override_config.attn_implementation=eager",
        f"{engine}.use_torch_compile=false",
        f"+{engine}.mixed_precision.param_dtype=fp32",
    ]


def merged(shards: Path, folder: Path) -> Path:
    """Merges the shards of a checkpoint, as the bundle's script says."""
    words = ["merge", "--backend", "fsdp", "--local_dir", str(shards), "--target_dir", str(folder)]
    subprocess.run([sys.executable, "-m", "verl.model_merger", *words], check=True)
    return folder


def run_on_cpu(bundle: Path, words: Sequence[str], shims: Sequence[str] = ("cpu_platform",), **environment: str) -> str:
    """Runs the script with these overrides and returns its output; `shims`: modules that verl imports in each process."""
    more = {
        "PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[1])]),
        "VERL_USE_EXTERNAL_MODULES": ",".join(shims),
        "VERL_PLATFORM": "cpu",
        "VERL_ENGINE_DEVICE": "cuda",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        ["bash", str(bundle / "train.sh"), *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **more, **environment},
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-12000:]
    return done.stdout
