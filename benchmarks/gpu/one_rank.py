"""Check 9: a process group of one rank (NCCL on a GPU, gloo on a CPU, models sharded by FSDP2) learns as no group does."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.gpu.findings import Report
from benchmarks.gpu.learning import make_batch
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.models import grpo_settings, make_model
from midthought.config import TrainingConfig
from midthought.learning.batch import TokenBatch
from midthought.learning.learner import Learner
from midthought.learning.learner_worker import LearnerWorker
from midthought.learning.model import Models
from midthought.learning.optimizer import NO_END

NUM_EPISODES = 8
LARGEST = 1e-4
"""Of |Δ log-probability| in float32, in nats; after an update at least `RELATIVE_MOVED` of what the update changed."""
RELATIVE_MOVED = 1e-3
RELATIVE = 1e-4
"""Of the gradient norm."""
TIMEOUT_SECONDS = 60.0


def run(machine: Machine, report: Report) -> None:
    name = machine.model_names[0]
    setting = f"{name} float32"
    training = grpo_settings(
        NUM_EPISODES,
        learning_rate=machine.pick(1e-7, 1e-5),
        micro_batch_tokens=machine.pick(4096, 64),
    )
    batch = make_batch(machine, name, NUM_EPISODES)
    alone_seconds, alone = machine.wall_seconds(lambda: _learn_alone(machine, name, training, batch))
    machine.clean()
    rank_seconds, ranked = machine.wall_seconds(lambda: _learn_as_rank(machine, name, training, batch))
    report.figure(setting, "backend", "NCCL" if machine.is_cuda else "gloo")
    report.figure(setting, "without a group, with the model's creation", alone_seconds, "s")
    report.figure(setting, "as one rank, with the model's creation", rank_seconds, "s")
    before, after = (
        (one - other)[batch.loss_mask].abs().max().item() for one, other in zip(alone[:2], ranked[:2], strict=True)
    )
    moved = (alone[1] - alone[0])[batch.loss_mask].abs().max().item()
    report.at_most(setting, "largest difference of log-probabilities before an update", before, LARGEST, "nats")
    report.require(
        setting, "the update moved log-probabilities by up to", moved, moved > LARGEST, f"> {LARGEST}", "nats"
    )
    limit = max(LARGEST, RELATIVE_MOVED * moved)
    report.at_most(setting, "largest difference of log-probabilities after an update", after, limit, "nats")
    report.at_most(setting, "gradient norm, relative difference", abs(alone[2] / ranked[2] - 1.0), RELATIVE)


def _learn_alone(
    machine: Machine, name: str, training: TrainingConfig, batch: TokenBatch
) -> tuple[torch.Tensor, torch.Tensor, float]:
    return _learn(Learner(make_model(machine, name, torch.float32), None, None, training), batch)


def _learn_as_rank(
    machine: Machine, name: str, training: TrainingConfig, batch: TokenBatch
) -> tuple[torch.Tensor, torch.Tensor, float]:
    for variable in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        os.environ.setdefault(variable, "lo")  # one rank speaks to nobody, and there may be no network
    worker = LearnerWorker(
        Models(make_model(machine, name, torch.float32), None, None), training, NO_END, str(machine.device)
    )
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        try:
            worker.join(dist.FileStore(f"{folder}/store", 1), 0, 1, TIMEOUT_SECONDS)
            worker.build_learner()
            return _learn(worker.learner, batch)
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()


def _learn(learner: Any, batch: TokenBatch) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Log-probabilities before and after an update, and its gradient norm."""
    scored, _ = learner.score(batch)
    metrics = learner.update(learner.credit(scored)[0])
    return scored.old_logprobs, learner.score(batch)[0].old_logprobs, metrics["grad_norm"]
