"""Threads of torch that wait spin for a short time beside other processes, unless the user says otherwise."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

(TORCH,) = map(Path, find_spec("torch").submodule_search_locations)
LIBRARIES = [*TORCH.glob("lib/libgomp*"), *TORCH.parent.glob("torch.libs/libgomp*")]
"""OpenMP, which reads its settings when `import torch` loads it. To import all of torch takes seconds."""


@pytest.mark.skipif(not LIBRARIES, reason="this torch has no OpenMP of GNU's")
@pytest.mark.parametrize(
    ("load", "given", "used"),
    [
        (1.5, {}, "GOMP_SPINCOUNT = '1000'"),
        (1.5, {"GOMP_SPINCOUNT": "7"}, "GOMP_SPINCOUNT = '7'"),
        (1.5, {"OMP_WAIT_POLICY": "PASSIVE"}, "GOMP_SPINCOUNT = '0'"),
        (0.1, {"GOMP_SPINCOUNT": "7"}, "GOMP_SPINCOUNT = '7'"),
    ],
)
def test_openmp_reads_the_time_when_it_is_loaded(load, given, used):
    assert used in displayed(load, given)


@pytest.mark.skipif(not LIBRARIES, reason="this torch has no OpenMP of GNU's")
def test_on_an_idle_machine_it_is_left_to_openmp():
    assert "GOMP_SPINCOUNT = '1000'" not in displayed(0.1, {})


def displayed(load: float, given: dict[str, str]) -> str:
    """Returns what OpenMP prints of its variables."""
    others = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    code = f"import ctypes, os; os.getloadavg = lambda: ({load}, 0.0, 0.0); import midthought; ctypes.CDLL({str(LIBRARIES[0])!r})"
    environment = others | given | {"OMP_DISPLAY_ENV": "VERBOSE", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stderr
