"""Splits an episode into rounds: the answer, whether it is right, the calls about it, and the verdict of the feedback.

Reads turns, tool events and the ground truth from the record. Does not depend on rewards or metrics.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

from midthought.data.tasks import DATASET_LABEL
from midthought.env.answers import CHECKS, task_is_right
from midthought.env.reasoning import THINK_CLOSE
from midthought.tools.call_formats.tagged import HermesFormat
from midthought.types import ParsedAction, Task, ToolEvent, ToolOutcome, Trajectory, Turn

CALL_FORMAT = HermesFormat()
"""How calls are written in the recipe's conversations."""


@dataclass(frozen=True, slots=True)
class Round:
    """One turn of the policy."""

    answer: str
    """Text of the turn without its thought and its calls; if that is empty, the answer in its first usable call."""
    key: str
    """The answer in normalized form: equal answers have equal keys."""
    is_right: bool
    num_asks: int
    """Number of calls, including calls that could not be run."""
    told_right: bool = False
    """Whether feedback confirmed an answer as right."""
    told_wrong: frozenset[str] = field(default_factory=frozenset)
    """Keys of the answers that feedback rejected as wrong."""


def rounds_of(trajectory: Trajectory) -> list[Round]:
    """Returns one round per turn, in order. Blocks while answers are judged."""
    events = iter(trajectory.tool_events)
    return [_round(trajectory.task, turn, events) for turn in trajectory.turns]


def _round(task: Task, turn: Turn, events: Iterator[ToolEvent]) -> Round:
    calls = CALL_FORMAT.parse_all(turn.model_output, in_thought=turn.begins_in_thought)
    own = list(itertools.islice(events, len(calls)))
    answer = _said(turn, calls)
    told = [event for event in own if event.outcome is ToolOutcome.OK and "is_right" in event.metadata]
    wrong = [event for event in told if not event.metadata["is_right"]]
    return Round(
        answer=answer,
        key=_key(task, answer),
        is_right=bool(answer) and _is_right(_data_set(task), (task.answer, *task.aliases), answer),
        num_asks=len(calls),
        told_right=any(event.metadata["is_right"] for event in told),
        told_wrong=frozenset(_key(task, str(event.call.parameters.get("current_answer", ""))) for event in wrong),
    )


@functools.lru_cache(maxsize=10_000)
def _is_right(data_set: str, truths: tuple[str, ...], answer: str) -> bool:
    """Cached: the reward, the metrics and the shown episodes need the same verdicts."""
    task = Task(task_id="", prompt="", answer=truths[0], aliases=truths[1:], labels={DATASET_LABEL: data_set})
    return task_is_right(task, answer)


def _said(turn: Turn, calls: list[ParsedAction]) -> str:
    text = turn.model_output
    _, mark, after_thought = text.rpartition(THINK_CLOSE)
    if mark:
        text = after_thought
    elif turn.begins_in_thought:
        return ""
    for call in calls:
        text = text.replace(call.raw_text, "")
    if text.strip():
        return text.strip()
    asked = (str(call.parameters.get("current_answer", "")).strip() for call in calls if call.success)
    return next(filter(None, asked), "")


def _key(task: Task, answer: str) -> str:
    check = CHECKS.get(_data_set(task))
    found = check.extract(answer) if check is not None else None
    return found if found is not None else " ".join(answer.split())


def _data_set(task: Task) -> str:
    return str(task.labels.get(DATASET_LABEL, ""))
