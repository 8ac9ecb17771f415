"""A plan by phase of an iteration: bytes by part, expected seconds, and both as the record that a run keeps.

Does not depend on measurements. The names of the phases are in `learning.phase_meter`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from midthought.plan.hardware import Hardware, gpu_of_device
from midthought.plan.memory import Memory
from midthought.plan.saving_memory import device_bytes
from midthought.plan.settings import PlanSettings
from midthought.plan.shape import Shape
from midthought.plan.timing import Timing

TITLES = {
    "sampling": "sampling",
    "scoring": "scoring and advantages",
    "update": "update",
    "weight_update": "weights to the engine",
    "validation": "validation",
    "saving": "saving",
}
"""Phases in the order of an iteration, as they are printed."""
SECONDS_OF = {
    "prefill": "sampling",
    "decoding": "sampling",
    "log-probabilities and values": "scoring",
    "forward and backward passes": "update",
    "optimizer steps": "update",
    "weights to the engine": "weight_update",
}
"""Parts of `Timing`, and the phase in which their time is spent."""
NO_CPU_SPEED = "a plan has no speed of a CPU; compare times on a GPU"


def bytes_by_phase(memory: Memory) -> dict[str, dict[str, int]]:
    """Returns the memory by part in each phase, on the device (or in the process) that learns."""
    settings = memory.settings
    stays = {**memory.held_while_sampling, "gradients": memory.held.gradients}
    awake = {} if settings.is_split else memory.engine
    asleep = {} if settings.is_split else memory.engine_while_learning
    moments = memory.moments
    update = max((parts for name, parts in moments.items() if name != "scoring"), key=lambda parts: sum(parts.values()))
    found = {
        "sampling": {**stays, **awake},
        "scoring": {**moments["scoring"], **asleep},
        "update": {**update, **asleep},
        "weight_update": {**stays, **asleep},
        "validation": {**stays, **awake},
        "saving": {**stays, **awake, "checks and copies": device_bytes(memory)},
    }
    return {phase: {part: size for part, size in parts.items() if size} for phase, parts in found.items()}


def seconds_by_phase(memory: Memory) -> dict[str, float]:
    """Returns the expected seconds of each phase in an iteration, for the phases that a plan times."""
    found: dict[str, float] = {}
    for part in Timing(memory).parts:
        phase = SECONDS_OF[part.name]
        found[phase] = found.get(phase, 0.0) + part.expected
    return found


def plan_record(memory: Memory | None, unknown: str, hardware: Hardware) -> dict[str, Any]:
    """Returns what a run folder keeps of a plan: bytes and seconds by phase, and what they were computed for, as JSON values.

    A figure that is not known is null, and `unknown` or `seconds_unknown` has the reason.
    """
    found: dict[str, Any] = {"device": hardware.kind, "hardware": str(hardware), "unknown": unknown}
    if memory is None:
        return {**found, "bytes": None, "seconds": None, "seconds_unknown": unknown, "settings": None, "shape": None}
    why = no_seconds(hardware)
    return {
        **found,
        "bytes": bytes_by_phase(memory),
        "seconds": None if why else seconds_by_phase(memory),
        "seconds_unknown": why,
        "settings": memory.settings.model_dump(),
        "shape": asdict(memory.shape),
    }


def no_seconds(hardware: Hardware) -> str:
    """Returns why the time on this hardware cannot be planned; empty if it can."""
    if hardware.kind == "cpu":
        return NO_CPU_SPEED
    if gpu_of_device(hardware.name) is None:
        return f"no data sheet of {hardware.name} is known here; give gpu_tflops and gpu_bandwidth_gbs to `midthought plan`"
    return ""


def as_run(planned: Mapping[str, Any], episodes: Mapping[str, int]) -> Memory | None:
    """Returns the plan of a record for the lengths of the run's episodes (`count`, `tokens`, `prompt_tokens`, `longest`,
    `longest_prompt`). None: there is no plan, or no episode."""
    if planned["settings"] is None or not episodes["count"]:
        return None
    settings = PlanSettings(**planned["settings"])
    mean, prompt = episodes["tokens"] / episodes["count"], episodes["prompt_tokens"] / episodes["count"]
    lengths = {
        "prompt_tokens": max(1, episodes["longest_prompt"]),
        "response_tokens": max(1, episodes["longest"] - episodes["longest_prompt"]),
        "micro_batch_tokens": min(settings.micro_batch_tokens, max(1, round(mean * settings.mini_batch_size))),
    }
    changed = settings.model_copy(update=lengths)
    response = max(1, round(mean - prompt))
    return Memory(Shape(**planned["shape"]), changed.model_copy(update={"mean_response_tokens": response}))
