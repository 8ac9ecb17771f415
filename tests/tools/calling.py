"""Calls in tests of tools, what call formats read, and plain tools that several files run."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

from midthought.tools.call_formats import ToolCallFormat
from midthought.tools.definition import Tool, ToolDefinition
from midthought.tools.executor import ToolExecutor
from midthought.types import ParsedAction, Task, ToolCall, ToolEvent, ToolOutcome

TASK = Task(task_id="t", prompt="Who?", answer="Ada")
LOOK, SEE = ("look", {"q": 1}), ("see", {})
"""Two calls as `read` returns them."""


def call(name: str | None, **parameters: Any) -> ParsedAction:
    return ParsedAction(tool_name=name, parameters=parameters, raw_text="", success=True)


def run(box: ToolExecutor, *calls: ParsedAction, task: Task = TASK, **options: Any) -> list[ToolEvent]:
    return asyncio.run(box.run(calls, task, **options))


def results(events: Sequence[ToolEvent]) -> list[str | None]:
    return [event.call.result for event in events]


def read(call_format: ToolCallFormat, text: str, **options: Any) -> list[Any]:
    """The calls in a text: name and arguments, or the error of one that cannot be run."""
    calls = call_format.parse_all(text, **options)
    return [(call.tool_name, dict(call.parameters)) if call.success else call.error for call in calls]


def event(words: str, outcome: ToolOutcome = ToolOutcome.OK, name: str | None = "look") -> ToolEvent:
    return ToolEvent(call=ToolCall(tool_name=name, success=outcome is ToolOutcome.OK, result=words), outcome=outcome)


class Quick(Tool):
    definition = ToolDefinition("quick", "Answers at once.")

    def execute(self) -> str:
        return "here"


class Hang(Tool):
    """A thread that waits until the test is over."""

    definition = ToolDefinition("hang", "Never returns.")

    def __init__(self) -> None:
        self.over = threading.Event()
        self.num_begun = 0

    def execute(self) -> str:
        self.num_begun += 1
        self.over.wait(60)
        return "too late"
