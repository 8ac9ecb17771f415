"""Checks of what a run needs: memory, disk, servers, and settings with which the policy can change."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import warnings
from collections.abc import Iterator
from statistics import fmean

from midthought.checks.before import Setup, SkippedError
from midthought.checks.during import History
from midthought.checks.registry import Finding, check
from midthought.engines.create import check_backend
from midthought.engines.servers.connection import RetryPolicy
from midthought.engines.servers.engine import ServerEngine
from midthought.engines.servers.launch import SERVERS
from midthought.engines.servers.preparation import probe_text
from midthought.engines.weight_sync.synced_engine import SyncedEngine
from midthought.feedback.commands import check_feedback
from midthought.feedback.settings import FeedbackSettings
from midthought.learning.lr_schedule import TrainingSchedule, learning_rate_factor
from midthought.learning.optimizer import ADAM_EPSILON
from midthought.models.pretrained import is_on_this_machine
from midthought.plan.hardware import GIB
from midthought.tools.background_loop import BackgroundLoop

MIN_TRAINED_SHARE, MAX_KL_COEF = 1e-3, 1.0
"""Share of the weights that learn, without adapters (a single layer of a large model has more); coefficient of a KL penalty."""
MIN_CHANGE, MIN_STEP, USUAL_WEIGHT = 5e-8, 1e-3, 0.02
"""Change of the weights per step, relative to their size (the smallest learning rates in use, 1e-7, reach 4e-7), and to the peak
learning rate (AdamW's is 0.1 to 1); size of a trained matrix' weights."""


@check("machine", "fit")
def machine(setup: Setup) -> Iterator[Finding]:
    """The model is here, and the run fits into the memory and its checkpoints on the disk."""
    name, checkpoint = setup.config.model.local_path, setup.config.checkpoint
    if name and setup.policy is None and not is_on_this_machine(name):
        yield Finding(f"the model {name!r} is not on this machine", f"hf download {name}, or correct model.local_path")
    if setup.choice is None:
        raise SkippedError("the run is not planned")
    setup.choice.require_possible()
    if setup.path is None or (plan := setup.choice.plan) is None:
        return
    folder = next(path for path in (setup.path.resolve(), *setup.path.resolve().parents) if path.is_dir())
    free = shutil.disk_usage(folder).free if os.access(folder, os.W_OK) else 0
    trained = 4 * plan.adapter_parameters if plan.lora_rank else plan.learned.weights
    one = trained + plan.learned.masters + plan.learned.moments
    num_iters = setup.config.training.num_iters(len(setup.tasks) or None)
    count = min(checkpoint.keep_last_n, num_iters) + checkpoint.keep_best
    needed = (count + 1) * one + plan.width * plan.shape.parameters
    if needed > free:
        observation = f"{folder} takes {free / GIB:.1f} GiB, and {count} checkpoints of this run {needed / GIB:.1f} GiB"
        remedy = f"lower checkpoint.keep_last_n={checkpoint.keep_last_n}, or set run_path (--run) to a larger disk"
        yield Finding(observation, remedy, policy="stop" if 2 * one > free else "warn")


@check("servers", "check")
def servers(setup: Setup) -> Iterator[Finding]:
    """The servers of the policy and of the feedback critic answer, with the right model and usable log-probabilities."""
    settings = getattr(setup.config, "feedback", None)
    for found in check_feedback(settings) if isinstance(settings, FeedbackSettings) else ():
        if found.remedy:
            yield Finding(f"{found.what}: {found.words}", found.remedy, found.server, "stop")
    inference = setup.config.inference
    check_backend(inference)
    if inference.engine not in SERVERS or inference.in_process or not inference.base_url:
        return
    if setup.source is not None and isinstance(setup.source.parts.engine, SyncedEngine):
        return  # the run's own engine has passed the same checks
    if not (name := inference.served_model_name or setup.config.model.local_path):
        raise SkippedError("inference.served_model_name does not name the model of the servers")
    engine = ServerEngine(
        SERVERS[inference.engine],
        inference.base_url,
        name,
        eos_token_ids=(),
        probe=None if setup.policy is None else probe_text(setup.policy.renderer),
        max_seq_len=2,
        api_key_env=inference.api_key_env,
        retry_policy=RetryPolicy(connect_timeout_seconds=5.0, next_token_timeout_seconds=5.0),
        training_temperature=inference.temperature,
    )
    with contextlib.closing(BackgroundLoop("midthought-checks")) as loop, warnings.catch_warnings(action="ignore"):
        loop.run(engine.check())


@check("movement", "fit")
def movement(setup: Setup) -> Iterator[Finding]:
    """Learning rate, schedule, clipping and KL penalty let the policy change, and its weights learn."""
    training = setup.config.training
    weights = [(each.numel(), each.requires_grad) for each in getattr(setup.parts.model, "parameters", list)()]
    trained, total = sum(number for number, learns in weights if learns), sum(number for number, _ in weights)
    schedule = TrainingSchedule.from_config(training, training.num_iters(len(setup.all_tasks) or None))
    steps = range(0, schedule.total_steps or 1, max(1, (schedule.total_steps or 1) // 100))
    factor = fmean(learning_rate_factor(step, training, schedule.total_steps) for step in steps)
    history = History(setup.config.to_dict())
    if name := hindrance(history, factor * training.peak_learning_rate, max(trained, 1)):
        observation = f"{name}={history.setting(name)} keeps the policy as it is in all {schedule.total_steps} steps"
        yield Finding(observation, f"leave {name} at its default")
    if trained < MIN_TRAINED_SHARE * total and not hasattr(setup.parts.model, "peft_config"):
        remedy = "call model.requires_grad_(True), or train adapters (model.lora_rank)"
        yield Finding(f"{trained:,} of the {total:,} weights of the policy learn", remedy, "frozen")
    for name in ("kl_coef", "kl_loss_coef"):
        if (coefficient := getattr(training, name)) > MAX_KL_COEF:
            yield Finding(f"training.{name}={coefficient:g} (usual: 0.001 to 0.1)", f"lower training.{name}", name)


def hindrance(history: History, rate: float, num_weights: float = 1e6) -> str:
    """Returns the setting that keeps the policy as it is; empty if none does. `rate`: the mean one, after its schedule."""
    peak = history.setting("training.learning_rate", rate)
    gradient = min(history.setting("training.max_grad_norm", 1.0), 1.0) / math.sqrt(num_weights)
    if peak / USUAL_WEIGHT < MIN_CHANGE:
        return "training.learning_rate"
    if rate < 0.05 * peak:
        return "training.warmup_steps"
    return "training.max_grad_norm" if gradient / (gradient + ADAM_EPSILON) < MIN_STEP else ""
