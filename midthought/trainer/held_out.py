"""Evaluations of a trainer on held-out tasks: greedy or sampled, with the tools as in training, off, or with others' results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from midthought.errors import SettingsError
from midthought.evaluation.arms import OtherResults, ToolOff
from midthought.rollout.local_rollouts import Rollouts
from midthought.types import Task, Trajectory

ToolAnswers = Literal["on", "off", "shuffled"]


def evaluation_stage(tools: str, *, sampled: bool) -> str:
    """Returns the stage in `metrics.jsonl`: `validation`, with `.tool_off` or `.shuffled`, with `.sampled`.

    Raises `SettingsError` for an unknown word.
    """
    if tools not in get_args(ToolAnswers):
        raise SettingsError(f"tools={tools!r}: give one of {', '.join(map(repr, get_args(ToolAnswers)))}")
    how = {"on": "", "off": ".tool_off", "shuffled": ".shuffled"}[tools]
    return f"validation{how}{'.sampled' if sampled else ''}"


def evaluated(source: Rollouts, tasks: Sequence[Task], tools: ToolAnswers, *, sampled: bool) -> list[Trajectory]:
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
    if not others.num_results:
        raise SettingsError(
            f"tools='shuffled': none of {len(done)} episodes had a result of a call; first train the policy to call (sft)"
        )
    return source.evaluate(tasks, temperature=temperature, executor=others)
