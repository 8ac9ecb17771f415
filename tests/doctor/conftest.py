"""The model of `doctor_runs.py`, shared by all tests of the doctor."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from doctor_runs import teach


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def taught() -> dict[str, Any]:
    return teach()
