"""Check 2: which runner the engine selects for bfloat16 and float32, and its error against a float32 forward pass.

For a Qwen3 it must be the fused decoder, the fastest one; a warning means that a slower one was selected.
"""

from __future__ import annotations

import warnings

import torch

from benchmarks.gpu.findings import Report
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.models import WIDTHS, is_left_out, make_model, short
from midthought.engines.local.runner import CachedRunner, RecomputingRunner, share_tensors
from midthought.engines.local.runner_selection import Trial, make_runner


def run(machine: Machine, report: Report) -> None:
    for name in machine.model_names:
        for dtype in (torch.bfloat16, torch.float32):
            setting = f"{name} {short(dtype)}"
            room = 1.5 * WIDTHS[dtype]
            if not is_left_out(machine, report, setting, name, bytes_per_parameter=room, seconds=3.0):
                _select(machine, report, setting, name, dtype)
                machine.clean()


def _select(machine: Machine, report: Report, setting: str, name: str, dtype: torch.dtype) -> None:
    model = make_model(machine, name, dtype)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        runner = make_runner(model)
    reasons = [
        str(warning.message)
        for warning in caught
        if "computes" in str(warning.message) or "decod" in str(warning.message)
    ]
    kind = "model without a cache"
    if isinstance(runner, CachedRunner):
        kind = "fused decoder with a cache" if not reasons else "the model's layers with a cache"
    report.require(setting, "runner", kind, not reasons, "fused decoder with a cache")
    for reason in reasons:
        report.figure(setting, "reason", reason)
    trial = Trial(RecomputingRunner(share_tensors(model)))
    found = trial.deviation(runner)
    report.figure(setting, "mean error of the model's own forward pass", trial.own.mean, "nats")
    report.figure(setting, "largest error of the model's own forward pass", trial.own.largest, "nats")
    report.at_most(setting, "mean error of the runner", found.mean, trial.bound.mean, "nats")
    report.at_most(setting, "largest error of the runner", found.largest, trial.bound.largest, "nats")
