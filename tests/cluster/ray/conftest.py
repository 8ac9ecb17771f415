"""One Ray cluster for all tests of this folder, and one small model."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray_worlds
from one_thread import one_thread  # noqa: F401

from midthought.config import InferenceConfig
from midthought.engines.create import policy_engine
from midthought.rollout.episode import RolloutParts
from midthought.tokenization import Renderer
from midthought.tools.call_formats.in_thought import InThoughtFormat
from midthought.tools.executor import ToolExecutor
from midthought.tools.registry import ToolRegistry


@pytest.fixture(scope="session")
def cluster() -> Any:
    """Four CPUs, of which tests take what they need. Two GPUs that Ray only counts.

    Ray would give its workers the niceness 15, and other tests would take their processor time.
    """
    ray = pytest.importorskip("ray")
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


@pytest.fixture
def make_parts(policy: Any, renderer: Renderer) -> Callable[..., RolloutParts]:
    """Parts over an engine in this process, for environments of `ray_worlds`."""

    def make(environment: Any, *, deterministic: bool = True, **settings: Any) -> RolloutParts:
        return RolloutParts(
            engine=make_engine(policy, renderer, deterministic=deterministic)(),
            renderer=renderer,
            call_format=InThoughtFormat(),
            executor=ToolExecutor(ToolRegistry([ray_worlds.twice])),
            messages=ray_worlds.messages,
            environment=environment,
            inference=InferenceConfig(**({"max_tokens": 24} | settings)),
        )

    return make


def make_engine(policy: Any, renderer: Renderer, *, deterministic: bool = True) -> functools.partial[Any]:
    inference = ray_worlds.settings(inference={"deterministic": deterministic}).inference
    options = {"renderer": renderer, "inference": inference, "model_path": "", "max_seq_len": 256}
    return functools.partial(policy_engine, policy, None, **options)
