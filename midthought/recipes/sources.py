"""The source of a recipe's episodes, as its settings say: which engine, in this process or on Ray's workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from midthought.config import InferenceConfig, RayConfig
from midthought.engines.background_loop import BackgroundLoop
from midthought.engines.policy_engine import policy_engine
from midthought.rollout.episode import EpisodeEnvironment, RolloutParts, RolloutSettings
from midthought.rollout.local_rollouts import Rollouts
from midthought.tokenization import Renderer
from midthought.tools.call_formats import ToolCallFormat
from midthought.tools.executor import ToolExecutor
from midthought.trainer.rollouts import choose_source, make_worker_group
from midthought.types import Task


def recipe_source(
    policy: Any,
    renderer: Renderer,
    inference: InferenceConfig,
    ray: RayConfig,
    *,
    call_format: ToolCallFormat,
    executor: ToolExecutor,
    messages: Callable[[Task], list[Mapping[str, str]]],
    environment: EpisodeEnvironment,
    tasks: Iterable[Task],
    model_path: str,
    seed: int,
    policy_version: int = 0,
    trained: Any = None,
) -> Rollouts:
    """The rollout loop over the present policy. Close it after use.

    Args:
        tasks: all that may be asked; the longest prompt among them says how long sequences may get.
        policy_version: how many updates the policy has seen.
        trained: what a learner trains, the policy or the policy with its adapters. Then the engine is the one of
            `inference.backend`, with `inference.partial_rollouts` episodes may outlive an iteration, and with `ray.use_ray`
            they run on Ray's workers. None: all in this process.
    """
    longest = max(len(renderer.prompt(messages(task))) for task in tasks)
    engine = policy_engine(
        policy,
        trained,
        renderer,
        inference if trained is not None else inference.model_copy(update={"backend": "local"}),
        model_path=model_path,
        max_seq_len=longest + inference.max_tokens,
    )
    engine.policy_version = policy_version
    parts = RolloutParts(
        engine=engine,
        renderer=renderer,
        call_format=call_format,
        executor=executor,
        messages=messages,
        environment=lambda task: environment,
        settings=RolloutSettings.from_config(inference),
    )
    has_stream = trained is not None and inference.partial_rollouts
    loop = BackgroundLoop("midthought-rollout") if has_stream else None
    worker_group = (
        make_worker_group(policy, renderer, inference, ray, max_seq_len=engine.max_seq_len)
        if trained is not None
        else None
    )
    return choose_source(parts, engine, inference, seed=seed, loop=loop, worker_group=worker_group)
