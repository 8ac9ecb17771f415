"""Evaluations of a trainer on held-out tasks: greedy or sampled, with the tools as in training, off, or with others' results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from midthought.errors import SettingsError
from midthought.evaluation.arms import Shuffled, ToolOff
from midthought.rollout.local_rollouts import Rollouts
from midthought.types import Task, ToolOutcome, Trajectory

ToolAnswers = Literal["on", "off", "shuffled"]


def evaluation_stage(tools: str, temperature: float) -> str:
    """Returns the stage in `metrics.jsonl`: `validation`, or that with `.sampled`, `.tool_off` or `.shuffled`.

    Raises `SettingsError` for an unknown word.
    """
    if tools not in get_args(ToolAnswers):
        raise SettingsError(f"tools={tools!r}: give one of {', '.join(map(repr, get_args(ToolAnswers)))}")
    how = {"on": ".sampled" if temperature else "", "off": ".tool_off", "shuffled": ".shuffled"}
    return f"validation{how[tools]}"


def evaluated(source: Rollouts, tasks: Sequence[Task], temperature: float, tools: ToolAnswers) -> list[Trajectory]:
    """Runs one episode per task. `shuffled` runs them twice: first with the tools on, for the results."""
    registry = source.parts.executor.registry
    if tools == "on":
        return source.evaluate(tasks, temperature=temperature)
    if tools == "off":
        return source.evaluate(tasks, temperature=temperature, executor=ToolOff(registry))
    results = {each.task.task_id: _first_result(each) for each in source.evaluate(tasks, temperature=temperature)}
    try:
        executor = Shuffled(registry, lambda task: results[task.task_id], tasks, seed=0)
    except ValueError as error:
        num_results = sum(map(bool, results.values()))
        raise SettingsError(
            f"tools='shuffled': {error} ({num_results} of {len(tasks)} episodes had a result of a call)"
        ) from None
    return source.evaluate(tasks, temperature=temperature, executor=executor)


def _first_result(trajectory: Trajectory) -> str:
    """Returns what the episode's first successful call returned; empty if there was none."""
    results = (event.call.result for event in trajectory.tool_events if event.outcome is ToolOutcome.OK)
    return next(results, None) or ""
