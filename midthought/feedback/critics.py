"""Critics, which give feedback on a wrong answer, by name; those to compare others with (`none`, `outcome`, `wrong`)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from typing import Protocol

from midthought.data.tasks import DATASET_LABEL
from midthought.env.answers import CHECKS, extract
from midthought.errors import SettingsError, near_names
from midthought.feedback.hints import Hints, equations, step_is_wrong
from midthought.feedback.masking import can_be_quoted, mask_answer
from midthought.feedback.model import ModelCritic
from midthought.feedback.prompts import RETRY_ONLY
from midthought.feedback.settings import FeedbackSettings
from midthought.types import Task

MAX_ANSWER_CHARS = 200
MAX_SENTENCE_CHARS = 160
"""Limits of what is quoted."""

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")


class Critic(Protocol):
    """Gives feedback on a wrong answer."""

    async def feedback(self, task: Task, answer: str, reasoning: str) -> str:
        """What is wrong with `answer`, which `reasoning` led to. May raise ConnectionError or TimeoutError."""
        ...


async def masked_feedback(critic: Critic, task: Task, answer: str, reasoning: str) -> str:
    """Returns a critic's feedback with the task's answer masked."""
    return mask_answer(await critic.feedback(task, answer, reasoning), task)


class RetryOnly:
    """`none`: says only that the answer was wrong. Gains from feedback are compared with this arm."""

    async def feedback(self, task: Task, answer: str, reasoning: str) -> str:
        return RETRY_ONLY


class Outcome:
    """`outcome`: the answer was wrong, and which text was judged, if the task's data set is known."""

    async def feedback(self, task: Task, answer: str, reasoning: str) -> str:
        dataset = str(task.labels.get(DATASET_LABEL, ""))
        if dataset not in CHECKS:
            return RETRY_ONLY
        said = extract(dataset, answer)
        if said is None:
            return f"{RETRY_ONLY} No final answer was found in it."
        is_short = len(said) <= MAX_ANSWER_CHARS
        return f"{RETRY_ONLY} This was judged: {said}" if is_short and can_be_quoted(task, said) else RETRY_ONLY


class Wrong:
    """`wrong`: misleading feedback, which shows whether a gain depends on the content of feedback.

    Claims that a true step is false; without such a step, that one of the reasoning's sentences is the mistake.
    """

    async def feedback(self, task: Task, answer: str, reasoning: str) -> str:
        steps = f"{reasoning}\n{answer}"
        true = (f"{each.left} = {each.right}" for each in equations(steps) if each.is_true)
        if statement := _one_of(true, task, steps):
            return f"{RETRY_ONLY} {step_is_wrong(statement)}"
        sentences = (each.strip()[:MAX_SENTENCE_CHARS] for each in _SENTENCE_END.split(steps))
        if sentence := _one_of(sentences, task, steps):
            return f"{RETRY_ONLY} You go wrong here: {sentence}"
        return f"{RETRY_ONLY} You misread the problem: it asks for the opposite."


def _one_of(texts: Iterable[str], task: Task, steps: str) -> str:
    """Returns one of the texts that can be quoted; empty if there is none. Every process makes the same choice."""
    quotable = [text for text in texts if text and can_be_quoted(task, text)]
    digest = hashlib.blake2b(f"{task.task_id}\x1f{steps}".encode(errors="replace"), digest_size=8).digest()
    return quotable[int.from_bytes(digest) % len(quotable)] if quotable else ""


_CRITICS: dict[str, Callable[[FeedbackSettings], Critic]] = {
    "outcome": lambda settings: Outcome(),
    "model": ModelCritic,
    "hints": lambda settings: Hints(),
    "wrong": lambda settings: Wrong(),
    "none": lambda settings: RetryOnly(),
}


def register_critic(name: str, make: Callable[[FeedbackSettings], Critic]) -> None:
    """Registers a critic under a name for `FeedbackSettings.critic`. Raises SettingsError if the name is taken."""
    if not name or name in _CRITICS:
        raise SettingsError(f"a critic cannot be registered as {name!r}: the name is {'taken' if name else 'empty'}")
    _CRITICS[name] = make


def make_critic(settings: FeedbackSettings) -> Critic:
    """The critic that `settings.critic` names. Raises SettingsError for an unknown name (with similar names), and if the
    critic's own settings do not work."""
    if settings.critic not in _CRITICS:
        raise SettingsError(f"critic={settings.critic!r} is unknown. {near_names(settings.critic, _CRITICS)}")
    return _CRITICS[settings.critic](settings)
