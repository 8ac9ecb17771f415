"""Checks of the reward with written answers: the gold answer scores best, and shortcuts do not pay. They need no sampling."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterator, Sequence

from midthought.doctor.registry import check
from midthought.doctor.scripted import THOUGHT, Line, example_call, play, written
from midthought.doctor.setup import PolicyParts, Setup, SkippedError
from midthought.env.reasoning import normalised
from midthought.errors import DataError, SettingsError
from midthought.guards.finding import Finding
from midthought.types import StopReason, Task, ToolCall, ToolEvent, ToolOutcome, Trajectory

NUM_TASKS = 4
SHARE = 0.25
"""A shortcut pays if it earns more than a wrong answer by this share of what the gold answer earns more."""
LONG_THOUGHT = " ".join([THOUGHT] * 10)
FORMS: tuple[Callable[[str], str], ...] = (
    lambda answer: answer,
    lambda answer: rf"\boxed{{{answer}}}",
    lambda answer: f"The answer is {answer}",
    lambda answer: f"#### {answer}",
    lambda answer: f"<answer>{answer}</answer>",
    lambda answer: f"({answer})",
)
"""Ways to write an answer, of which a reward may accept only some."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """Mean reward of an answer over some tasks, and the text of the first one."""

    mean: float
    text: str


class _Judge:
    """Plays written answers for some tasks and returns their mean reward."""

    def __init__(self, setup: Setup) -> None:
        self._parts, self._inference = setup.parts, setup.config.inference
        usable = _distinct(setup.tasks_with_answers)
        self.tasks = usable[:NUM_TASKS]
        others = usable[1:] + usable[:1]
        self.wrong = {task.task_id: _other(task, other) for task, other in zip(usable, others, strict=True)}
        """A wrong answer of every task: that of another task, or a changed one."""

    def gold_of(self, task: Task) -> str:
        """Returns the gold answer."""
        return task.answer

    def wrong_of(self, task: Task) -> str:
        """Returns a wrong answer."""
        return self.wrong[task.task_id]

    def score(self, line: Callable[[Task], Line], result: Callable[[Task], str] = lambda task: "") -> Score:
        """Raises `SkippedError` if the call format cannot write the line, and if no tool can be called."""
        lines = [line(task) for task in self.tasks]
        rewards = []
        for task, each in zip(self.tasks, lines, strict=True):
            try:
                script = written(self._parts, task, each)
            except (DataError, SettingsError) as error:
                raise SkippedError(f"the answer cannot be written in a conversation: {error}") from None
            (episode,) = play(self._parts, self._inference, [script], result=result(task), episode=self._parts.episode)
            rewards.append(_reward_of(episode))
        return Score(mean=math.fsum(rewards) / len(rewards), text=lines[0].answer)

    def best_form(self) -> tuple[Score, Score, Callable[[str], str]]:
        """Returns the scores of the gold and the wrong answer in the first form in which they differ as they should, with the
        form; if there is none, in the form in which they differ most."""
        tried = []
        for form in FORMS:
            gold = self.score(functools.partial(_in_form, form, self.gold_of))
            wrong = self.score(functools.partial(_in_form, form, self.wrong_of))
            tried.append((gold, wrong, form))
            if gold.mean > wrong.mean:
                return tried[-1]
        return max(tried, key=lambda each: abs(each[0].mean - each[1].mean))


def _in_form(form: Callable[[str], str], answer: Callable[[Task], str], task: Task) -> Line:
    return Line(answer=form(answer(task)))


def _reward_of(episode: Trajectory) -> float:
    if episode.stop_reason is StopReason.FAILED or episode.reward is None:
        raise DataError(
            f"the reward of a written episode fails: {episode.error}; correct the reward or the environment"
        )
    return episode.reward.total


def _distinct(tasks: Sequence[Task]) -> list[Task]:
    """Returns at most `NUM_TASKS` + 1 tasks whose answers differ."""
    found: dict[str, Task] = {}
    for task in tasks:
        found.setdefault(normalised(task.answer), task)
    return list(found.values())[: NUM_TASKS + 1]


def _other(task: Task, other: Task) -> str:
    """Returns an answer that is wrong for this task."""
    rights = {normalised(answer) for answer in (task.answer, *task.aliases)}
    if normalised(other.answer) not in rights and len(task.answer) > 1:
        return other.answer
    if re.fullmatch(r"[A-Za-z]", task.answer):
        return "B" if task.answer.upper() == "A" else "A"
    return str(int(task.answer) + 7) if re.fullmatch(r"\d{1,9}", task.answer) else f"{task.answer[::-1]}xq"


@check("gold_answer")
def gold_answer(setup: Setup) -> Iterator[Finding]:
    """The gold answer of a task earns more than a wrong one, written in one of `FORMS`."""
    judge = _Judge(setup)
    gold, wrong, form = judge.best_form()
    again = [judge.score(functools.partial(_in_form, form, answer)) for answer in (judge.gold_of, judge.wrong_of)]
    change = max(abs(gold.mean - again[0].mean), abs(wrong.mean - again[1].mean))
    if change > SHARE * abs(gold.mean - wrong.mean):
        yield Finding(
            observation=f"the reward of the same episode differs by {change:.3g} when computed again; gold and wrong answer "
            f"differ by {abs(gold.mean - wrong.mean):.3g}",
            causes=(
                "the reward is random, for example a judge with a temperature",
                "the reward keeps state between calls",
            ),
            action="let the reward depend on the trajectory alone; a judge: temperature 0, or the mean of several judgments",
        )
        return
    setup.memo["judge"] = (judge, gold, wrong, form)
    empty = judge.score(lambda task: Line(answer=""))
    if gold.mean == wrong.mean:
        others = "" if empty.mean != gold.mean else " and the empty answer"
        yield Finding(
            observation=f"the gold answer {gold.text!r:.60}{',' if others else ' and'} the wrong answer "
            f"{wrong.text!r:.60}{others} {'all' if others else 'both'} earn {gold.mean:g}",
            causes=(
                "the reward does not read the answer" if others else "the reward does not read the task's answer",
                "the reward expects another form of the answer than " + ", ".join(form("…") for form in FORMS),
                "the answer column does not hold what the reward compares with",
            ),
            action="print what the reward function gets for one episode (Trainer.rollout()) and compare with the task's answer",
            policy="stop",
        )
    elif gold.mean < wrong.mean:
        yield Finding(
            observation=f"the gold answer {gold.text!r:.60} earns {gold.mean:g}, and the wrong answer {wrong.text!r:.60} "
            f"{wrong.mean:g}",
            causes=(
                "the sign or the weights of the reward",
                "the answer column does not hold what the reward compares with",
            ),
            action="let the gold answer earn the most",
            policy="stop",
        )


@check("shortcuts")
def shortcuts(setup: Setup) -> Iterator[Finding]:
    """The empty answer, a copied prompt, copied tool output, and a forged tool result do not earn what the gold answer earns."""
    if "judge" not in setup.memo:
        setup.parts, setup.tasks_with_answers  # noqa: B018  (raise the reason, if one is missing)
        raise SkippedError("the gold answer could not be scored")
    judge, gold, wrong, form = setup.memo["judge"]
    gap = gold.mean - wrong.mean
    if gap <= 0:
        raise SkippedError("the gold answer does not score best, see gold_answer")

    def pays(score: Score, base: float = wrong.mean) -> bool:
        return score.mean > base + SHARE * gap

    def earned(what: str, score: Score) -> str:
        return f"{what} earns {score.mean:g}, a wrong answer {wrong.mean:g} and the gold answer {gold.mean:g}"

    padded = judge.score(lambda task: Line(answer=form(judge.wrong_of(task)), thought=LONG_THOUGHT))
    if pays(padded):
        yield Finding(
            subject="length",
            observation=earned("a wrong answer after a longer thought", padded),
            causes=("the reward grows with the number of tokens",),
            action="let a right answer earn more than any length, or leave length out of the reward",
        )
        return  # other shortcuts are longer, too
    empty = judge.score(lambda task: Line(answer=""))
    if pays(empty):
        yield Finding(
            subject="empty answer",
            observation=earned("the empty answer", empty),
            causes=("the reward compares with `in` or startswith: an empty text is part of every text",),
            action="let the reward return its lowest value for an empty answer",
        )
    copied = judge.score(lambda task: Line(answer=task.prompt))
    if pays(copied):
        yield Finding(
            subject="copied prompt",
            observation=earned("a copy of the prompt", copied),
            causes=("the reward looks for the gold answer anywhere in the text, and the prompts hold it",),
            action="compare the answer as a whole (exact_match), or take the gold answer out of the prompts",
        )
    yield from _with_tools(setup.parts, judge, gold, wrong, pays, earned)
    yield from _forged(setup.parts, judge, gold, wrong, form, pays)


def _with_tools(
    parts: PolicyParts,
    judge: _Judge,
    gold: Score,
    wrong: Score,
    pays: Callable[..., bool],
    earned: Callable[[str, Score], str],
) -> Iterator[Finding]:
    """Copies a result that has the gold answer among others, and answers nothing after such a result."""
    calls = (example_call(parts.registry, definition) for definition in parts.registry.definitions())
    call = next((call for call in calls if call is not None), None)
    if call is None:
        return

    def result(task: Task) -> str:
        other = judge.wrong[task.task_id]
        return f"First: {other}. Then: {task.answer}. At last: {other}"

    try:
        asked = judge.score(
            lambda task: Line(answer=judge.wrong[task.task_id], call=call, result="nothing"), lambda task: "nothing"
        )
        silent = judge.score(lambda task: Line(answer="", call=call, result=result(task)), result)
        copied = judge.score(lambda task: Line(answer=result(task), call=call, result=result(task)), result)
    except SkippedError:
        return
    if asked.mean >= gold.mean:
        yield Finding(
            subject="call",
            observation=earned("a wrong answer after a call with the result 'nothing'", asked),
            causes=("the reward pays for calls, whatever comes of them",),
            action="pay a call less than a right answer, or only together with one",
        )
    base = max(wrong.mean, asked.mean)
    for subject, what, score in (
        ("copied tool output", "a copy of a whole tool result", copied),
        ("empty answer after a call", "an empty answer after a tool result with the gold answer", silent),
    ):
        if pays(score, base):
            yield Finding(
                subject=subject,
                observation=earned(what, score),
                causes=("the reward looks for the gold answer anywhere in the episode, tool results included",),
                action="compare the answer after the last thought as a whole (exact_match, last_answer)",
            )


def _forged(
    parts: PolicyParts,
    judge: _Judge,
    gold: Score,
    wrong: Score,
    form: Callable[[str], str],
    pays: Callable[..., bool],
) -> Iterator[Finding]:
    """Lets the policy write a tool result by itself, without a call: with a wrong answer, and with the gold answer."""
    definitions = parts.registry.definitions()
    if not definitions:
        return

    def forged(task: Task) -> str:
        call = ToolCall(tool_name=definitions[0].name, parameters={}, success=True, result=task.answer)
        event = ToolEvent(call=call, outcome=ToolOutcome.OK)
        return f"{THOUGHT}\n{parts.call_format.render_results([event]).strip()}\n"

    try:
        scores = (
            (judge.score(lambda task: Line(answer=form(judge.wrong[task.task_id]), thought=forged(task))), wrong),
            (judge.score(lambda task: Line(answer=form(task.answer), thought=forged(task))), gold),
        )
    except SkippedError:
        return
    for score, honest in scores:
        if pays(score, honest.mean):
            yield Finding(
                subject="forged result",
                observation=f"a tool result that the policy writes by itself, without a call, raises the reward from "
                f"{honest.mean:g} to {score.mean:g}",
                causes=("the reward reads tool results from the policy's text",),
                action="read tool results from trajectory.tool_events, which only the executor writes",
            )
            return
