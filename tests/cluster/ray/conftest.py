"""One Ray cluster for all tests of this folder, and one small model."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray_worlds
from one_thread import one_thread  # noqa: F401

from midthought.tokenization import Renderer


@pytest.fixture(scope="session")
def cluster() -> Any:
    """Four CPUs, of which tests take what they need. Two GPUs that Ray only counts.

    Ray would give its workers the niceness 15, and other tests would take their processor time.
    """
    import ray

    os.environ.setdefault("RAY_worker_niceness", "0")
    ray.init(address="local", num_cpus=4, num_gpus=2, include_dashboard=False, logging_level="ERROR")
    return ray


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Ends the cluster after the last test of this folder; the other tests of the process run without it."""
    yield
    if nextitem is None or Path(__file__).parent not in nextitem.path.parents:
        ray = sys.modules.get("ray")
        if ray is not None:
            ray.shutdown()


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return ray_worlds.tokenizer()


@pytest.fixture(scope="session")
def renderer(tokenizer: Any) -> Renderer:
    return Renderer(tokenizer)


@pytest.fixture
def policy(tokenizer: Any) -> Any:
    return ray_worlds.policy(tokenizer)
