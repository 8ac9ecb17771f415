"""Splits an episode into rounds: the answer, whether it is right, the calls about it, and the verdict of the feedback.

Reads turns, tool events and the ground truth from the record. Does not depend on rewards or metrics.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from midthought.data.tasks import DATASET_LABEL
from midthought.env.answers import CHECKS
from midthought.env.reasoning import THINK_CLOSE
from midthought.tools.call_formats import ToolCallFormat
from midthought.types import ParsedAction, Task, ToolEvent, ToolOutcome, Trajectory, Turn


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


class Verdicts:
    """Cache of whether answers are right: the reward, the metrics and the shown episodes need the same verdicts.

    Thread-safe; two threads that need the same verdict at once may both compute it. Pickled copies have an empty cache.
    """

    def __init__(self, is_right: Callable[[Task, str], bool], max_kept: int = 100_000) -> None:
        self._is_right, self._max_kept = is_right, max_kept
        self._kept: OrderedDict[bytes, bool] = OrderedDict()

    def __call__(self, task: Task, answer: str) -> bool:
        """Returns whether the answer is right. Blocks while it is judged."""
        asked = json.dumps([str(task.labels.get(DATASET_LABEL, "")), task.answer, *task.aliases, answer])
        key = hashlib.sha256(asked.encode()).digest()
        verdict = self._kept.get(key)
        if verdict is None:
            verdict = self._kept[key] = self._is_right(task, answer)
            if len(self._kept) > self._max_kept:
                self._kept.popitem(last=False)
        return verdict

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": OrderedDict()}


@dataclass(frozen=True, slots=True)
class RoundReader:
    """Reads the rounds of episodes whose calls use this call format."""

    call_format: ToolCallFormat
    is_right: Callable[[Task, str], bool]

    def __call__(self, trajectory: Trajectory) -> list[Round]:
        """Returns one round per turn, in order. Blocks while answers are judged."""
        events = iter(trajectory.tool_events)
        return [self._round(trajectory.task, turn, events) for turn in trajectory.turns]

    def _round(self, task: Task, turn: Turn, events: Iterator[ToolEvent]) -> Round:
        calls = self.call_format.parse_all(turn.model_output, in_thought=turn.begins_in_thought)
        own = list(itertools.islice(events, len(calls)))
        answer = _said(turn, calls)
        key = _key(task, answer)
        told = [event for event in own if event.outcome is ToolOutcome.OK and "is_right" in event.metadata]
        wrong = [event for event in told if not event.metadata["is_right"]]
        asked = {_key(task, str(event.call.parameters.get("current_answer", ""))) for event in wrong}
        return Round(
            answer=answer,
            key=key,
            is_right=bool(answer) and self.is_right(task, answer),
            num_asks=len(calls),
            told_right=any(event.metadata["is_right"] for event in told),
            told_wrong=frozenset(asked),
        )


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
    check = CHECKS.get(str(task.labels.get(DATASET_LABEL, "")))
    found = check.extract(answer) if check is not None else None
    return found if found is not None else " ".join(answer.split())
