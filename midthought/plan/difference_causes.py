"""Likely causes of a difference between a plan and a measurement, as one sentence. Computes no plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from midthought.plan.memory import MIB

FRAGMENTED = 1.2
"""Ratio of reserved to allocated memory beyond which fragmentation is named."""
KEPT_SHARE = 0.8
"""Share of the largest phase's peak beyond which another phase's resident memory is likely to be what that phase left."""
SMALL_BYTES = 512 * MIB
"""Resident memory that libraries take and keep beside tensors: buffers, compiled kernels, pages kept by the C library."""


def memory_cause(
    planned: float,
    measured: float,
    as_run: float | None,
    *,
    fits_again: bool,
    parts: Mapping[str, int],
    measurements: Mapping[str, Any],
    phase: str,
    num_halved: int,
    lengths: str,
) -> str:
    """Returns the likely cause. `as_run`: the plan with the lengths of the run's episodes. `parts`: the plan's, in bytes."""
    if as_run is not None and fits_again and as_run != planned:
        return f"the run had {lengths}; a plan for these says {as_run / MIB:.0f} MiB."
    if num_halved:
        return f"memory ran out: micro-batches were halved {num_halved} times, so passes are smaller than planned."
    expected = planned if as_run is None else as_run
    largest = max(found["peak_bytes"] for found in measurements["phases"].values())
    own = measurements["phases"][phase]["peak_bytes"]
    is_resident = measurements["memory"] == "resident"
    if is_resident and expected < measured - SMALL_BYTES and KEPT_SHARE * largest < own < largest:
        return "the C library keeps pages of the phase with the largest peak; only that phase can be compared on a CPU."
    if is_resident and abs(expected - measured) < SMALL_BYTES:
        known = (
            ""
            if expected == planned
            else f"the run had {lengths}, and a plan for these says {expected / MIB:.0f} MiB; "
        )
        return (
            f"{known}{abs(expected - measured) / MIB:.0f} MiB are not explained: resident memory includes memory of libraries, "
            "and pages that the C library keeps from earlier phases."
        )
    found = measurements["phases"].get(phase, {})
    if found.get("reserved_bytes", 0) > FRAGMENTED * found.get("peak_bytes", 0) > 0:
        reserved = found["reserved_bytes"] / MIB
        return f"the allocator is fragmented ({reserved:.0f} MiB reserved): try PYTORCH_ALLOC_CONF=expandable_segments:True."
    also = f" (a plan for the run's {lengths} says {as_run / MIB:.0f} MiB)" if as_run not in (None, planned) else ""
    return f"the cause is not known{also}; the plan's largest parts are {_largest(parts)}."


def seconds_cause(
    phase: str,
    planned: float,
    measured: float,
    as_run: float | None,
    *,
    fits_again: bool,
    lengths: str,
    settings: Mapping[str, Any],
    tool_seconds: float | None,
) -> str:
    """Returns the likely cause. `tool_seconds`: mean seconds that an episode waited for tools."""
    if as_run is not None and fits_again and as_run != planned:
        return f"the run had {lengths}; a plan for these says {as_run:.3g} s."
    expected = planned if as_run is None else as_run
    if phase == "sampling" and tool_seconds and tool_seconds > 0.2 * measured:
        return f"an episode waited {tool_seconds:.3g} s for tools, which a plan does not include."
    if phase == "weight_update":
        return f"the plan counts only the transfer; the engine took {measured:.3g} s with everything around it."
    name, share = ("bandwidth_share", settings["bandwidth_share"]) if phase == "sampling" else ("mfu", settings["mfu"])
    reached = share * expected / measured
    if 0 < reached <= 1:
        return f"the plan assumes {name}={share:g}; with the run's lengths this run reached {name}={reached:.2g}."
    return f"the cause is not known; the plan assumes {name}={share:g}."


def _largest(parts: Mapping[str, int]) -> str:
    ordered = sorted(parts.items(), key=lambda part: -part[1])[:3]
    return ", ".join(f"{name} ({size / MIB:.0f} MiB)" for name, size in ordered)
