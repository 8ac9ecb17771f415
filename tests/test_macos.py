"""What can be checked of macOS without a Mac: on a system that calls itself `darwin`, every module can be imported."""

import subprocess
import sys

import pytest

from midthought.trainer.checkpoint import process_peak_bytes

PROGRAM = """
import importlib, multiprocessing, pkgutil, subprocess, sys
import torch, transformers
for name in ("datasets", "fastapi", "gymnasium", "httpx", "lancedb", "mcp", "peft", "ray", "tensorboard", "uvicorn", "wandb"):
    try:
        importlib.import_module(name)  # with the system's real name: their Linux builds are installed
    except ImportError:
        pass
sys.platform = "darwin"
import midthought
for module in pkgutil.walk_packages(midthought.__path__, "midthought."):
    if not any(name in module.name for name in ("__main__", "verl", "triton_", "gluon_")):  # Triton has no build for macOS
        importlib.import_module(module.name)
from midthought import Trainer, create_default_config
few = {"num_train_iters": 1, "batch_size": 2, "mini_batch_size": 2}
config = create_default_config(training=few, inference={"max_tokens": 8})
with Trainer(config, dataset=[{"question": "1 + 1?", "answer": "2"}]) as trainer:
    print("iterations:", len(trainer.fit()))
"""


@pytest.mark.slow  # imports everything, about 20 s
@pytest.mark.skipif(sys.platform != "linux", reason="imitates macOS on Linux")
def test_every_module_can_be_imported_and_a_model_trains() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300)
    assert done.stdout.endswith("iterations: 1\n"), done.stderr


def test_memory_is_counted_in_bytes_there(monkeypatch: pytest.MonkeyPatch) -> None:
    on_linux = process_peak_bytes()
    monkeypatch.setattr(sys, "platform", "darwin")
    assert process_peak_bytes() < on_linux / 500
