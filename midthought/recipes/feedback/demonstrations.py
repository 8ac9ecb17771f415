"""Demonstrations for the warm-up: how an answer looks, how feedback is asked for, read and followed, and when to stop.

Written by rule over the made problems, in the words of the real tool. Their first answers are those of somebody who sees one
column ahead and mostly overlooks the carries beyond; whether they ask is mixed, so that the choice is left to reinforcement
learning.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from midthought.engines.background_loop import BackgroundLoop
from midthought.feedback.critics.settings import FeedbackSettings
from midthought.feedback.prompts import TOOL_NAME
from midthought.feedback.tool import FeedbackTool
from midthought.recipes.feedback.arithmetic import NUM_DIGITS, Columns, draw_problem
from midthought.recipes.feedback.settings import SftSection
from midthought.tokenization import Renderer
from midthought.tools.call_formats import ToolCallFormat
from midthought.tools.definition import ToolOutput
from midthought.types import Task, ToolCall, ToolEvent, ToolOutcome, Trajectory

_WRONG_PLACE = re.compile(r"The digit at (?:the ([a-z ]+) place|place (\d+) from the right) is wrong")
_PLACES = ("ones", "tens", "hundreds", "thousands", "ten thousands", "hundred thousands", "millions")
_SUSPECTED = 0.1
"""How often a carry is guessed that cannot be seen; mostly it is overlooked."""


@dataclass(frozen=True, slots=True)
class Writing:
    """How episodes are written down: the conversation's beginning, calls and results, in tokens."""

    renderer: Renderer
    call_format: ToolCallFormat
    system: Sequence[str]
    """What is said before the task."""

    def begin(self, task: Task) -> Trajectory:
        return Trajectory(task, self.renderer.prompt(task.messages(*self.system)))

    def ask(
        self,
        trajectory: Trajectory,
        answer: str,
        arguments: Mapping[str, str],
        output: ToolOutput,
        *,
        is_taught: bool = True,
    ) -> None:
        """An answer, the call about it, and the result, as the rollout loop puts it into the conversation.

        Where it is not taught, answer and call stand there as context: what follows is learned, asking is not.
        """
        call = self.call_format.render_call(TOOL_NAME, arguments)
        token_ids = [*self.renderer.foreign(f"{answer}\n{call}"), self._end]
        if is_taught:
            trajectory.add_demonstrated(token_ids)
        else:
            trajectory.add_reply(token_ids)
        done = ToolCall(tool_name=TOOL_NAME, parameters=arguments, success=True, result=output.text)
        event = ToolEvent(call=done, outcome=ToolOutcome.OK, metadata=output.metadata)
        content = self.call_format.render_results([event])
        trajectory.add_results([event], self.renderer.following([{"role": "tool", "content": content}]))

    def answer(self, trajectory: Trajectory, answer: str) -> None:
        """The last answer."""
        trajectory.add_demonstrated([*self.renderer.foreign(answer), self._end])

    @property
    def _end(self) -> int:
        return int(self.renderer.tokenizer.eos_token_id)


class Demonstrator:
    """Writes demonstrations of the made problems, as Trajectories whose mask marks the policy's words.

    Args:
        held_out: prompts that are never shown.
        max_asks: most calls in one episode.
    """

    def __init__(
        self, writing: Writing, settings: SftSection, *, hard_share: float, held_out: Collection[str], max_asks: int
    ) -> None:
        self._writing, self._settings = writing, settings
        self._hard_share, self._held_out, self._max_asks = hard_share, held_out, max_asks
        self._hints, self._retry = (
            FeedbackTool.from_settings(FeedbackSettings(critic=critic)) for critic in ("hints", "none")
        )

    def batch(self, seed: int, step: int) -> list[Trajectory]:
        """Demonstrations of about `sft.batch_tokens` tokens together; a function of seed and step alone."""
        draw = random.Random(f"demonstrations-{seed}-{step}")
        loop = BackgroundLoop("midthought-demonstrations")
        try:
            return loop.run(self._batch(draw))
        finally:
            loop.close()

    async def _batch(self, draw: random.Random) -> list[Trajectory]:
        written: list[Trajectory] = []
        while sum(len(each.token_ids) for each in written) < self._settings.batch_tokens:
            written.append(await self.write(draw))
        return written

    async def write(self, draw: random.Random) -> Trajectory:
        """One demonstration, drawn with `draw` alone."""
        is_practice = draw.random() < self._settings.practice_share
        is_hard = is_practice or draw.random() < self._hard_share
        task = draw_problem(draw, is_hard=is_hard, task_id="demonstration", taken=self._held_out)
        critic = self._retry if draw.random() < self._settings.retry_share else self._hints
        ask_share = 1.0 if is_practice else self._settings.ask_hard if is_hard else self._settings.ask_easy
        columns, trajectory = Columns.of(task), self._writing.begin(task)
        guess = [draw.random() < _SUSPECTED for _ in columns.guessed]
        tried: list[list[bool]] = []
        for num_asks in itertools.count():
            answer = columns.answer(guess)
            tried.append(guess)
            if num_asks >= self._max_asks or draw.random() >= (self._settings.ask_again if num_asks else ask_share):
                break
            output = await critic.for_task(task).execute(current_answer=answer)
            is_taught = num_asks > 0 or not is_practice
            self._writing.ask(trajectory, answer, {"current_answer": answer}, output, is_taught=is_taught)
            if output.metadata["is_right"]:
                break
            guess = mended(columns, guess, output.text) or _another(columns, tried, draw)
        self._writing.answer(trajectory, columns.answer(guess))
        return trajectory


def mended(columns: Columns, guess: Sequence[bool], feedback: str) -> list[bool] | None:
    """The guesses with the one at the place that the feedback names turned round; None where it names none of them."""
    found = _WRONG_PLACE.search(feedback)
    if found is None or (found[1] is not None and found[1] not in _PLACES):
        return None
    from_right = int(found[2]) - 1 if found[2] else _PLACES.index(found[1])
    place = len(columns.values) - 1 - from_right
    if place not in columns.guessed:
        return None
    return [was != (guessed == place) for guessed, was in zip(columns.guessed, guess, strict=True)]


def _another(columns: Columns, tried: Sequence[Sequence[bool]], draw: random.Random) -> list[bool]:
    """Guesses that have not been tried; there are more of them than an episode has turns."""
    every = [list(each) for each in itertools.product((False, True), repeat=len(columns.guessed))]
    return draw.choice([each for each in every if each not in tried] or every)


def corpus() -> Iterator[str]:
    """Texts from which the small model's tokenizer is made: what stands around the digits of its episodes."""
    from midthought.feedback.prompts import RETRY_ONLY, RIGHT_ANSWER, wrong_answer_result
    from midthought.tools.call_formats.hermes import HermesFormat

    call = HermesFormat().render_call(TOOL_NAME, {"current_answer": "1"})
    begins = [f"The digit at the {place} place is wrong" for place in _PLACES]
    begins += [f"The digit at place {NUM_DIGITS} from the right is wrong"]
    rights = ["", "; what is to its right is right", "; the 2 digits to its right are right"]
    works = ["the steps", "that column and its carry"]
    hints = [f"{begin}{right}. Go through {work} again." for begin in begins for right in rights for work in works]
    results = [wrong_answer_result(f"{RETRY_ONLY} {hint}") for hint in hints] + [wrong_answer_result(RETRY_ONLY)] * len(
        hints
    )
    for text in (
        "Calculate 1 + 1.",
        "Calculate 1 * 1.",
        f"1\n{call}",
        RIGHT_ANSWER,
        "user\n",
        "assistant\n",
        "tool\n",
        *results,
    ):
        yield from itertools.repeat(text, 20)
