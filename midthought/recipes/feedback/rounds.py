"""An episode as rounds: what was answered, whether it is right, whether the policy asked, and what it was told of it.

Read from the record: turns, tool events, the ground truth. Knows no reward and no figures.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from midthought.env.reasoning import THINK_CLOSE
from midthought.feedback.answers import CHECKS
from midthought.feedback.problems.fields import DATASET_LABEL
from midthought.tools.call_formats import ToolCallFormat
from midthought.types import ParsedAction, Task, ToolEvent, ToolOutcome, Trajectory, Turn


@dataclass(frozen=True, slots=True)
class Round:
    """One turn of the policy."""

    answer: str
    """What the turn says, its thought and its calls left out; where that is nothing, the answer that it asks about."""
    key: str
    """The answer in the form in which answers are compared: equal for answers that are the same."""
    is_right: bool
    num_asks: int
    """Calls in it, also such as could not be run."""
    told_right: bool = False
    """Feedback said that the answer is right."""
    told_wrong: frozenset[str] = field(default_factory=frozenset)
    """Keys of the answers that feedback said are wrong."""


class Verdicts:
    """Whether answers are right, each judged once: the reward asks first, figures and shown episodes ask again.

    Safe to call from any thread; two that ask for the same at once may both judge it. Copies that travel begin empty.
    """

    def __init__(self, is_right: Callable[[Task, str], bool], max_kept: int = 100_000) -> None:
        self._is_right, self._max_kept = is_right, max_kept
        self._kept: OrderedDict[bytes, bool] = OrderedDict()

    def __call__(self, task: Task, answer: str) -> bool:
        """Blocks as long as judging takes."""
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
    """Reads the rounds of episodes whose calls are written in this call format."""

    call_format: ToolCallFormat
    is_right: Callable[[Task, str], bool]

    def __call__(self, trajectory: Trajectory) -> list[Round]:
        """One round a turn, in order. Blocks as long as judging its answers takes."""
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
