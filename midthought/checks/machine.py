"""Checks of what a run needs outside of this process: memory, disk, a tracker's login, servers."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Iterator

from midthought.background_loop import BackgroundLoop
from midthought.checks.registry import Finding, check
from midthought.checks.setup import Setup, SkippedError
from midthought.engines.create import check_backend
from midthought.engines.servers.connection import RetryPolicy
from midthought.engines.servers.generation import probe_text
from midthought.engines.servers.training import SERVER_ENGINES
from midthought.engines.weight_sync.synced_engine import SyncedEngine
from midthought.feedback.check import Found, check_feedback
from midthought.feedback.critics.settings import FeedbackSettings
from midthought.plan.engine_choice import before_choice
from midthought.plan.hardware import GIB
from midthought.pretrained import is_on_this_machine
from midthought.report.trackers import find_tracker

_RETRIES = RetryPolicy(connect_timeout_seconds=5.0, next_token_timeout_seconds=5.0)


@check("machine", "fit")
def machine(setup: Setup) -> Iterator[Finding]:
    """The model is here, trackers can log in, and the run fits into the memory and its checkpoints on the disk."""
    name, checkpoint = setup.config.model.local_path, setup.config.checkpoint
    if name and setup.policy is None and not is_on_this_machine(name):
        yield Finding(f"the model {name!r} is not on this machine", f"hf download {name}, or correct model.local_path")
    for name in checkpoint.trackers:
        if (problem := find_tracker(name).login_problem()) is not None:
            yield Finding(f"checkpoint.trackers has {name!r}, and {problem.observation}", problem.action, name, "stop")
    if setup.choice is None:
        raise SkippedError("the run is not planned")
    setup.choice.require_possible()
    if setup.path is None or (plan := setup.choice.plan) is None:
        return
    folder = next(path for path in (setup.path.resolve(), *setup.path.resolve().parents) if path.is_dir())
    free = shutil.disk_usage(folder).free if os.access(folder, os.W_OK) else 0
    trained = 4 * plan.adapter_parameters if plan.settings.lora_rank else plan.whole.weights
    one = int(trained + plan.whole.masters + plan.whole.moments)
    num_iters = setup.config.training.num_iters(len(setup.tasks) or None)
    count = min(checkpoint.keep_last_n, num_iters) + checkpoint.keep_best
    needed = (count + 1) * one + plan.width * plan.shape.parameters
    if needed > free:
        observation = f"{folder} takes {free / GIB:.1f} GiB, and {count} checkpoints of this run {needed / GIB:.1f} GiB"
        remedy = f"lower checkpoint.keep_last_n={checkpoint.keep_last_n}, or set run_path (--run) to a larger disk"
        yield Finding(observation, remedy, policy="stop" if 2 * one > free else "warn")


@check("servers", "check")
def servers(setup: Setup) -> Iterator[Finding]:
    """The servers of the policy and of the feedback critic answer, with the right model; those of the policy return the
    log-probabilities of what they sample. Without a tokenizer that is left out."""
    settings = getattr(setup.config, "feedback", None)
    for found in check_feedback(settings) if isinstance(settings, FeedbackSettings) else ():
        if found.found is Found.BAD:
            yield Finding(f"{found.what}: {found.words}", found.remedy, found.server, "stop")
    inference = before_choice(setup.config.inference)
    check_backend(inference)
    if inference.backend not in SERVER_ENGINES or inference.in_process or not inference.base_url:
        return
    if setup.source is not None and isinstance(setup.source.parts.engine, SyncedEngine):
        return  # the run's own engine has passed the same checks
    if not (name := inference.served_model_name or setup.config.model.local_path):
        raise SkippedError("inference.served_model_name does not name the model of the servers")
    renderer = None if setup.policy is None else setup.policy.renderer
    engine = SERVER_ENGINES[inference.backend](
        inference.base_url,
        name,
        eos_token_ids=frozenset() if renderer is None else renderer.eos_token_ids,
        probe=None if renderer is None else probe_text(renderer),
        max_seq_len=2,
        api_key_env=inference.api_key_env,
        retry_policy=_RETRIES,
        training_temperature=inference.temperature,
    )
    loop = BackgroundLoop("midthought-checks")
    try:
        with warnings.catch_warnings(action="ignore"):
            loop.run(engine.check())
    finally:
        loop.close()
