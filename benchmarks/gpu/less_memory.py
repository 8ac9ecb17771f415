"""Check 11: options that reduce the learner's memory, each alone: peak memory and seconds of an update beside no option.

They must take less memory on a GPU and move the log-probabilities as the update without an option does, up to what two such
updates differ by: attention's backward pass on a GPU adds in another order each time, and bfloat16 weights magnify that.
"""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.gpu.findings import Report
from benchmarks.gpu.learning import make_batch
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.models import grpo_settings, has_room, is_left_out, make_model
from midthought.errors import MissingExtraError
from midthought.learning.batch import TokenBatch
from midthought.learning.learner import Learner

OPTIONS: dict[str, dict[str, Any]] = {
    "no option": {},
    "no option, again": {},
    "gradient_checkpointing=true": {"gradient_checkpointing": True},
    "gradient_checkpointing=offload": {"gradient_checkpointing": "offload"},
    "optimizer=adamw_8bit": {"optimizer": "adamw_8bit"},
    "offload=optimizer": {"offload": "optimizer"},
}
NUM_EPISODES = 16
MAX_DIFFERENCE, REPEATED = 0.1, 1.5
"""Mean |Δ log-probability| to the update without an option, relative to what that update changed, or so many times what two
such updates differ by. AdamW on a CPU and with 8 bits rounds differently."""
MIB = 2**20


def run(machine: Machine, report: Report) -> None:
    name = machine.model_names[0]
    if not has_room(machine, name, 30):
        report.not_run(f"a learner of {name} does not fit into the free memory")
    batch = make_batch(machine, name, machine.pick(NUM_EPISODES, 4))
    plain_peak: int | None = None
    moved: torch.Tensor | None = None
    limit = MAX_DIFFERENCE
    for option, changes in OPTIONS.items():
        setting = f"{name} bfloat16, {option}"
        if is_left_out(machine, report, setting, name, seconds=3.0):
            continue
        try:
            seconds, peak, change = _update(machine, name, batch, changes)
        except MissingExtraError as error:
            report.left_out(setting, str(error))
            continue
        report.figure(setting, "update", seconds, "s")
        if moved is None:
            plain_peak, moved = peak, change
        else:
            difference = float((change - moved).abs().mean() / moved.abs().mean())
            words = "log-probabilities, relative difference to no option"
            if changes:
                report.at_most(setting, words, difference, limit)
            else:
                limit = max(MAX_DIFFERENCE, REPEATED * difference)
                report.figure(setting, words, difference)
        if peak is not None and plain_peak is not None:
            is_less = not changes or peak < plain_peak
            report.require(setting, "peak memory of the update", peak / MIB, is_less, "less than with no option", "MiB")
        machine.clean()


def _update(
    machine: Machine, name: str, batch: TokenBatch, changes: dict[str, Any]
) -> tuple[float, int | None, torch.Tensor]:
    """Seconds and peak bytes of the second update, and what both changed at the policy tokens."""
    training = grpo_settings(
        len(batch),
        learning_rate=machine.pick(1e-5, 1e-4),
        micro_batch_tokens=machine.pick(8192, 64),
        **{"gradient_checkpointing": False, **changes},
    )
    learner = Learner(make_model(machine, name, torch.bfloat16), None, None, training)
    scored, _ = learner.score(batch)
    credited, _ = learner.credit(scored)
    learner.update(credited)  # creates the optimizer's state
    machine.start_peak()
    seconds, _ = machine.wall_seconds(lambda: learner.update(credited))
    peak = machine.peak_bytes
    after = learner.score(batch)[0].old_logprobs
    assert after is not None and scored.old_logprobs is not None
    return seconds, peak, (after - scored.old_logprobs)[batch.loss_mask]
