"""Evaluation on held-out tasks: greedy or sampled; with tools as in training, without, or with the results of other tasks."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Literal, get_args

from midthought.errors import SettingsError
from midthought.rollout.episode_source import EpisodeSource
from midthought.tools.definition import ToolOutput
from midthought.tools.executor import ToolExecutor
from midthought.tools.registry import ToolRegistry
from midthought.types import ParsedAction, Task, ToolOutcome, Trajectory

ToolAnswers = Literal["on", "off", "shuffled"]


class ToolOff(ToolExecutor):
    """Every call returns an error."""

    async def answer(self, action: ParsedAction, task: Task) -> ToolOutput:
        raise RuntimeError("the tool is switched off")


def states(text: str, task: Task) -> bool:
    """Whether a right answer of the task is a word of the text; if it has letters beyond ASCII, whether it occurs in the text."""
    answers = (each for each in (task.answer, *task.aliases) if each)
    forms = [rf"(?<!\w){re.escape(each)}(?!\w)" if each.isascii() else re.escape(each) for each in answers]
    return bool(forms) and re.search("|".join(forms), text, re.IGNORECASE) is not None


class OtherResults(ToolExecutor):
    """Every valid call returns the first result that the same tool had in another task's episode, one in which no right answer of
    this task is a word; an error if there is none."""

    def __init__(self, registry: ToolRegistry, episodes: Sequence[Trajectory]) -> None:
        super().__init__(registry)
        self.results: dict[str, dict[str, str]] = {}
        for episode in episodes:
            for event in episode.tool_events:
                if event.outcome is ToolOutcome.OK and event.call.tool_name and event.call.result:
                    of_tool = self.results.setdefault(event.call.tool_name, {})
                    of_tool.setdefault(episode.task.task_id, event.call.result)

    async def answer(self, action: ParsedAction, task: Task) -> ToolOutput:
        results = self.results.get(str(action.tool_name), {})
        others = [text for name, text in results.items() if name != task.task_id and not states(text, task)]
        if not others:
            raise RuntimeError("no other episode has a result of this tool")
        return ToolOutput(random.Random(f"shuffle-0-{task.task_id}").choice(others))


def evaluation_stage(tools: str, *, sampled: bool) -> str:
    """Returns the stage in `metrics.jsonl`: `validation`, with `.tool_off` or `.shuffled`, with `.sampled`."""
    if tools not in get_args(ToolAnswers):
        raise SettingsError(f"tools={tools!r}: give one of {', '.join(map(repr, get_args(ToolAnswers)))}")
    how = {"on": "", "off": ".tool_off", "shuffled": ".shuffled"}[tools]
    return f"validation{how}{'.sampled' if sampled else ''}"


def evaluated(source: EpisodeSource, tasks: Sequence[Task], tools: ToolAnswers, *, sampled: bool) -> list[Trajectory]:
    """Runs one episode per task. `shuffled` runs them twice: first with the tools on, for the results."""
    temperature = source.parts.inference.temperature if sampled else 0.0
    registry = source.parts.executor.registry
    if tools != "on" and not len(registry):
        raise SettingsError(f"tools={tools!r}: the trainer has no tools; give it some (tools=[…]), or leave this out")
    if tools == "off":
        return source.evaluate(tasks, temperature=temperature, executor=ToolOff(registry))
    done = source.evaluate(tasks, temperature=temperature)
    if tools == "on":
        return done
    others = OtherResults(registry, done)
    if not others.results:
        raise SettingsError(
            f"tools='shuffled': none of {len(done)} episodes had a result of a call; first train the policy to call (sft)"
        )
    return source.evaluate(tasks, temperature=temperature, executor=others)
