"""Checks of the machine: memory, disk space, the login of a tracker. They need no policy."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

from midthought.doctor.registry import check
from midthought.doctor.setup import Setup, SkippedError
from midthought.guards.finding import Finding
from midthought.plan.hardware import GIB
from midthought.plan.memory import Memory
from midthought.pretrained import is_on_this_machine
from midthought.report.trackers import find_tracker


@check("model")
def model(setup: Setup) -> Iterator[Finding]:
    """The model of the settings is on this machine. It is not downloaded to find that out."""
    name = setup.config.model.local_path
    if name and setup.policy is None and not is_on_this_machine(name):
        yield Finding(
            observation=f"the model {name!r} is not on this machine",
            causes=("a name of the Hugging Face hub that was not downloaded yet", "a folder on another machine"),
            action=f"give its folder as model.local_path, or download it: hf download {name}",
        )


@check("memory", is_fast=True)
def memory(setup: Setup) -> Iterator[Finding]:
    """The plan of the run fits into the memory of this machine. What does not fit is raised, with settings that fit."""
    if setup.choice is None:
        raise SkippedError("the run is not planned")
    setup.choice.require_possible()
    if setup.choice.plan is None:
        raise SkippedError(setup.choice.unknown)
    yield from ()


@check("disk", is_fast=True)
def disk(setup: Setup) -> Iterator[Finding]:
    """The checkpoints that the settings keep, one more while it is written, and the policy fit on the disk."""
    if setup.path is None:
        raise SkippedError("there is no run folder, so nothing is written")
    plan = None if setup.choice is None else setup.choice.plan
    if plan is None:
        raise SkippedError("the size of a checkpoint is not known, because the run is not planned")
    folder = next(path for path in (setup.path.resolve(), *setup.path.resolve().parents) if path.is_dir())
    free = shutil.disk_usage(folder).free
    if not os.access(folder, os.W_OK):
        yield Finding(
            observation=f"{folder} is not writable", action="give another run folder (--run, run_path)", policy="stop"
        )
    one, count = _checkpoint_bytes(plan), _num_kept(setup)
    needed = (count + 1) * one + plan.width * plan.shape.parameters
    if needed > free:
        yield Finding(
            observation=f"{folder} has {free / GIB:.1f} GiB left, and the run writes up to {needed / GIB:.1f} GiB: {count} "
            f"checkpoints of {one / GIB:.2f} GiB, the next one, and the policy",
            action=f"give a run folder on a larger disk, or lower checkpoint.keep_last_n={setup.config.checkpoint.keep_last_n}",
            policy="stop" if 2 * one > free else "warn",
        )


def _num_kept(setup: Setup) -> int:
    """Returns the largest number of checkpoints that are kept at once."""
    checkpoint, training = setup.config.checkpoint, setup.config.training
    return min(checkpoint.keep_last_n, training.num_iters(len(setup.tasks) or None)) + checkpoint.keep_best


def _checkpoint_bytes(plan: Memory) -> int:
    """Returns the bytes of weights and optimizer states in a checkpoint; with LoRA, the bytes of the adapters."""
    whole = plan.whole
    trained = 4 * plan.adapter_parameters if plan.settings.lora_rank else whole.weights
    return int(trained + whole.masters + whole.moments)


@check("tracker", is_fast=True)
def tracker(setup: Setup) -> Iterator[Finding]:
    """The trackers can log in without a question."""
    for name in setup.config.checkpoint.trackers:
        if (problem := find_tracker(name).login_problem()) is not None:
            yield Finding(
                observation=f"checkpoint.trackers has {name!r}, and {problem.observation}",
                causes=problem.causes,
                action=problem.action,
                policy="stop",
            )
