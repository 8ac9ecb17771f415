"""verl's `custom_reward_function` for our agent loop: returns the reward in the episode's record."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from midthought.cluster.verl.record import RECORD
from midthought.errors import RewardError


def compute_score(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: Mapping[str, Any] | None = None, **_: Any
) -> dict[str, float]:
    """Returns the total reward (`score`), and its parts and call counts for verl's log.

    Ignores the text: a policy may write anything about calls, and the environment scored the answer when the episode ended.
    Raises `RewardError` if another agent loop ran the episode or no environment scored it.
    """
    written = (extra_info or {}).get(RECORD)
    if written is None:
        raise RewardError(
            f"data_source {data_source!r}: extra_info has no {RECORD}, so the episode was not run by our agent loop; "
            "set actor_rollout_ref.rollout.agent.default_agent_loop=midthought, or agent_name in the rows"
        )
    record = json.loads(written)
    reward = record["reward"]
    if reward is None:
        raise RewardError(
            f"task {record['task_id']!r}: no environment scored the episode; set `supply` in agent_loop.yaml, or give "
            "verl your own reward function"
        )
    values = [*reward["parts"].values(), *reward["turns"], *reward.get("calls", ())]
    if any(value is None for value in values):
        raise RewardError(f"task {record['task_id']!r}: a part of the reward is not finite: {reward}")
    return {
        "score": math.fsum(values),
        **{f"reward_{name}": float(value) for name, value in reward["parts"].items()},
        "num_calls": float(len(record["tool_events"])),
        "num_failed_calls": float(record["num_failed_calls"]),
        "answered": float(record["stop_reason"] == "answered"),
    }
