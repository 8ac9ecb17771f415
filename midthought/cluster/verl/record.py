"""Our records in verl's forms: tasks as rows of its data, a Trajectory as tokens for its trainer and as JSON, from which
`compute_score`, verl's `custom_reward_function`, reads the reward. Does not import verl."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from midthought.cluster.verl.settings import AGENT_NAME
from midthought.config.references import optional
from midthought.errors import DataError, RecordError, RewardError
from midthought.files.regular import atomic_path
from midthought.report.json_lines import json_value
from midthought.tools.registry import encodable
from midthought.types import Task, ToolOutcome, Trajectory

RECORD = "midthought_record"
"""Name of the episode's record among verl's `extra_fields`; reward functions find it in `extra_info`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Response:
    """An episode's tokens, as in verl's AgentLoopOutput. Mask and log-probabilities are as long as `response_ids`."""

    response_ids: list[int]
    prompt_ids: list[int]
    response_mask: list[int]
    """1 for tokens that the policy sampled, 0 for results and replies, and for tokens without a log-probability."""
    response_logprobs: list[float] | None
    """0.0 for tokens with mask 0. None: the servers returned no log-probabilities."""


def response_of(trajectory: Trajectory, *, with_logprobs: bool) -> Response:
    """Returns the episode's tokens. Raises `RecordError` if the episode has several segments: verl supports one.

    Sampled tokens whose log-probability is not finite get mask 0, except if the servers returned no log-probabilities.
    """
    if len(trajectory.segments) != 1:
        raise RecordError(f"task {trajectory.task.task_id!r}: {len(trajectory.segments)} segments; verl supports one")
    start = trajectory.spans[0].end
    logprobs = trajectory.sampled_logprobs[start:]
    mask = [int(flag and not (with_logprobs and not math.isfinite(logprob)))
            for flag, logprob in zip(trajectory.loss_mask[start:], logprobs, strict=True)]  # fmt: skip
    return Response(
        prompt_ids=trajectory.token_ids[:start],
        response_ids=trajectory.token_ids[start:],
        response_mask=mask,
        response_logprobs=[logprob if flag else 0.0 for flag, logprob in zip(mask, logprobs, strict=True)]
        if with_logprobs
        else None,
    )


def record_of(trajectory: Trajectory) -> str:
    """Returns the episode as JSON: calls with outcomes, stop reason, and the reward by parts (null: not scored)."""
    reward = trajectory.reward
    row = {
        "task_id": trajectory.task.task_id,
        "stop_reason": trajectory.stop_reason,
        "num_sampled": trajectory.num_sampled,
        "num_cut": trajectory.num_cut,
        "num_turns": len(trajectory.turns),
        "tool_events": [asdict(event) for event in trajectory.tool_events],
        "num_failed_calls": sum(event.outcome is not ToolOutcome.OK for event in trajectory.tool_events),
        "answer": trajectory.turns[-1].model_output if trajectory.turns else "",
        "reward": reward.to_dict() if reward and any(reward.to_dict().values()) else None,
    }
    return json.dumps({name: _to_json(value) for name, value in row.items()})


def _to_json(value: Any) -> Any:
    """Returns the value as JSON; values of other types are written as text."""
    try:
        return json_value(value)
    except TypeError:
        return [_to_json(item) for item in value] if isinstance(value, list) else str(value)


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


def task_of(row: Mapping[str, Any]) -> Task:
    """Returns the task of a row of verl's data: from `extra_info.task` if present, else from the row's other fields.

    Raises `DataError` if `extra_info.task` cannot be read.
    """
    extra_info = row.get("extra_info") or {}
    if (written := extra_info.get("task")) is not None:
        try:
            return Task.from_dict(json.loads(written))
        except (TypeError, ValueError) as error:
            raise DataError(f"extra_info.task of row {extra_info.get('index')} holds no task: {error}") from None
    truth = (row.get("reward_model") or {}).get("ground_truth", "")
    return Task(
        task_id=str(extra_info.get("index", row.get("index", ""))),
        prompt=str(next((m["content"] for m in reversed(list(row["raw_prompt"])) if m["role"] == "user"), "")),
        answer=truth if isinstance(truth, str) else json.dumps(json_value(truth)),
    )


def rows_of(
    tasks: Sequence[Task],
    messages: Callable[[Task], Sequence[Mapping[str, str]]],
    *,
    data_source: str,
    ability: str,
    split: str,
) -> list[dict[str, Any]]:
    """Returns one row per task, in order. verl distinguishes prompts by `extra_info.index`, the row number."""
    return [
        {
            "data_source": data_source,
            "agent_name": AGENT_NAME,
            "prompt": [{"role": said["role"], "content": encodable(said["content"])} for said in messages(task)],
            "ability": ability,
            "reward_model": {"style": "rule", "ground_truth": encodable(task.answer)},
            "extra_info": {
                "split": split,
                "index": index,
                "question": encodable(task.prompt),
                "answer": encodable(task.answer),
                "task": json.dumps(task.to_dict()),
            },
        }
        for index, task in enumerate(tasks)
    ]


def write_parquet(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Writes the rows, atomically. Raises `MissingExtraError` without pyarrow."""
    table = optional("pyarrow", "verl").Table.from_pylist(list(rows))
    with atomic_path(path) as partial:
        optional("pyarrow.parquet", "verl").write_table(table, partial)
