"""Check of the reward with written answers: the gold answer earns most, and shortcuts do not pay. It needs no sampling."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from statistics import fmean
from typing import Any

from midthought.checks.registry import Finding, check
from midthought.checks.setup import Setup, SkippedError
from midthought.env.reasoning import normalised
from midthought.errors import DataError, SettingsError
from midthought.rollout.written import THOUGHT, PolicyParts, example_calls, play, written
from midthought.types import Task, ToolCall, ToolEvent, ToolOutcome

NUM_TASKS = 4
SHARE = 0.25
"""A shortcut pays if it earns more than a wrong answer by this share of what the gold answer earns more."""
FORMS = ("{}", r"\boxed{{{}}}", "The answer is {}", "#### {}", "<answer>{}</answer>", "({})")
"""Ways to write an answer, of which a reward may accept only some."""
WHOLE = "compare the answer after the last thought as a whole (correct, exact_match)"
EVENTS = "read tool results from trajectory.tool_events, which only the executor writes"
Text = Callable[[Task], str]


@check("reward", "check")
def reward(setup: Setup) -> Iterator[Finding]:
    """The gold answer earns more than a wrong one, in one of `FORMS`, and the same again. No shortcut pays."""
    tasks: dict[str, Task] = {}
    for task in setup.known_tasks:
        tasks.setdefault(normalised(task.answer), task)
    usable = [task for task in tasks.values() if task.answer][: NUM_TASKS + 1]
    if not usable:
        raise SkippedError("the tasks have no gold answer")
    wrongs = {task.task_id: _wrong(task, other) for task, other in zip(usable, usable[1:] + usable[:1], strict=True)}

    def earned(text: Text, form: str = "{}", **said: Any) -> float:
        return fmean(_reward_of(setup, task, form.format(text(task)), said) for task in usable[:NUM_TASKS])

    def right(task: Task) -> str:
        return task.answer

    def wrong(task: Task) -> str:
        return wrongs[task.task_id]

    tried = []
    for form in FORMS:
        tried.append((earned(right, form), earned(wrong, form), form))
        if tried[-1][0] > tried[-1][1]:
            break
    best, worst, form = max(tried, key=lambda each: (each[0] > each[1], abs(each[0] - each[1])))
    change = max(abs(best - earned(right, form)), abs(worst - earned(wrong, form)))
    if change > SHARE * abs(best - worst):
        remedy = "let the reward depend on the trajectory alone (a judge: temperature 0)"
        yield Finding(f"the reward of the same episode differs by {change:.3g} when it is computed again", remedy)
    elif best <= worst:
        texts = f"{usable[0].answer!r:.60} earns {best:g}, and the wrong answer {wrong(usable[0])!r:.60} {worst:g}"
        remedy = "let the reward function compare the answer with task.answer and pay the right one more"
        yield Finding(f"the gold answer {texts}", remedy, policy="stop")
    else:
        setup.memo["right_from"] = (best + worst) / 2
        with contextlib.suppress(SkippedError):  # of a call format that only reads calls
            for what, amount, limit, remedy in _shortcuts(setup.parts, earned, wrong, form, best, worst):
                if amount > limit:
                    observation = f"{what} earns {amount:g}, a wrong answer {worst:g} and the gold answer {best:g}"
                    yield Finding(observation, remedy, what)
                    if what == "a longer thought":  # the other shortcuts are longer, too
                        return


def _shortcuts(
    parts: PolicyParts, earned: Callable[..., float], wrong: Text, form: str, best: float, worst: float
) -> Iterator[tuple[str, float, float, str]]:
    """Returns what is written, what it earns, what it may earn at most, and the remedy."""

    def mixed(task: Task) -> str:
        return f"First: {wrong(task)}. Then: {task.answer}. At last: {wrong(task)}"

    def forged(task: Task) -> str:
        call = ToolCall(tool_name=next(iter(parts.registry)), parameters={}, success=True, result=task.answer)
        result = parts.call_format.render_results([ToolEvent(call=call, outcome=ToolOutcome.OK)])
        return f"{THOUGHT}\n{result.strip()}\n"

    limit, long = worst + SHARE * (best - worst), " ".join([THOUGHT] * 10)
    yield "a longer thought", earned(wrong, form, thought=long), limit, "leave the length out of the reward"
    yield "the empty answer", earned(_empty), limit, "return the lowest reward for an empty answer"
    yield "a copy of the prompt", earned(lambda task: task.prompt), limit, WHOLE
    if call := next(example_calls(parts.registry), None):
        asked = earned(wrong, call=call, result="nothing")
        yield "a call without a result", asked, best, "pay a call less than a right answer"
        after = max(limit, asked + limit - worst)
        yield "a copy of a tool result", earned(mixed, call=call, result=mixed), after, WHOLE
        yield "an empty answer after a tool result", earned(_empty, call=call, result=mixed), after, WHOLE
        yield "a tool result that the policy writes", earned(wrong, form, thought=forged), limit, EVENTS


def _empty(task: Task) -> str:
    return ""


def _reward_of(setup: Setup, task: Task, answer: str, said: dict[str, Any]) -> float:
    """Plays an answer. Values of `said` (`written`) may be functions of the task."""
    said = {name: value(task) if callable(value) else value for name, value in said.items()}
    try:
        script = written(setup.parts, task, answer, **said)
    except (DataError, SettingsError) as error:
        raise SkippedError(f"the answer cannot be written in a conversation: {error}") from None
    episode = play(setup.parts, setup.config.inference, script, setup.parts.episode, said.get("result", ""))
    if episode.reward is None:
        raise DataError(f"the reward of a written episode fails: {episode.error}; correct the reward function")
    return episode.reward.total


def _wrong(task: Task, other: Task) -> str:
    """Returns a wrong answer: that of another task, or a changed one."""
    rights = {normalised(answer) for answer in (task.answer, *task.aliases)}
    if normalised(other.answer) not in rights and len(task.answer) > 1:
        return other.answer
    if re.fullmatch(r"[A-Za-z]", task.answer):
        return "B" if task.answer.upper() == "A" else "A"
    return str(int(task.answer) + 7) if re.fullmatch(r"\d{1,9}", task.answer) else f"{task.answer[::-1]}xq"
