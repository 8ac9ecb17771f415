"""The user's questions in demonstrations: with their evidence, or what is nearest to one, under invented names."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from midthought.data.abstention import NO_ANSWER, UNANSWERABLE
from midthought.memory.chunks import Chunk
from midthought.recipes.podcast.synthetic_names import SyntheticNames
from midthought.types import Task


@dataclass(frozen=True, slots=True)
class Premise:
    """The name of a speaker or an episode that a question takes for granted."""

    name: str
    what: str
    """`speaker` or `episode`."""


class OwnQuestions:
    """Draws questions whose answer is the speaker or the episode of their evidence, and questions without an answer.

    Args:
        own: the questions, each with a chunk: its evidence, or what is nearest to it.
        names: speakers and episodes of the memory, with `speaker` or `episode`.
        made_up_share: share of names that are invented, also of those that an unanswerable question is wrong about: no name
            shows that there is no answer.
    """

    def __init__(
        self, own: Sequence[tuple[Task, Chunk]], names: Mapping[str, str], made_up: SyntheticNames, made_up_share: float
    ) -> None:
        self._own = [
            (task, chunk)
            for task, chunk in own
            if task.answer in (chunk.speaker, chunk.episode, NO_ANSWER) and all((chunk.speaker, chunk.episode))
        ]
        self._names = sorted(names.items(), key=lambda item: -len(item[0]))
        self._made_up, self._made_up_share = made_up, made_up_share
        self.may_abstain = any(task.answer == NO_ANSWER for task, _ in self._own)

    def __bool__(self) -> bool:
        return bool(self._own)

    def draw(self, rng: random.Random) -> tuple[Task, Chunk, Premise | None]:
        """Returns a question, its chunk, and what it takes for granted, all with the same names."""
        task, chunk = rng.choice(self._own)
        known = self._made_up.renamed(chunk, self._made_up_share, rng)
        prompt = task.prompt.replace(chunk.speaker, known.speaker).replace(chunk.episode, known.episode)
        kind, answer = UNANSWERABLE, NO_ANSWER
        if task.answer == NO_ANSWER:
            prompt, premise = self._with_premise(prompt, known, rng)
        else:
            kind = "speaker" if task.answer == chunk.speaker else "episode"
            answer = getattr(known, kind)
            premise = _first(prompt, [(known.speaker, "speaker"), (known.episode, "episode")])
        labels = {"needs_memory": True, "kind": kind, "quote": " ".join(prompt.split())}
        return replace(task, prompt=prompt, answer=answer, labels=labels), known, premise

    def _with_premise(self, prompt: str, chunk: Chunk, rng: random.Random) -> tuple[str, Premise | None]:
        """Returns an unanswerable question, perhaps with an invented name in place of the one that it is wrong about."""
        wrong = _first(prompt, [item for item in self._names if item[0] not in (chunk.speaker, chunk.episode)])
        if wrong is None or rng.random() >= self._made_up_share:
            return prompt, wrong
        new = self._made_up.name(rng) if wrong.what == "speaker" else self._made_up.title(rng)
        return prompt.replace(wrong.name, new), Premise(new, wrong.what)


def _first(prompt: str, names: Sequence[tuple[str, str]]) -> Premise | None:
    """Returns the first of the names that the question contains as whole words."""
    for name, what in names:
        if name in prompt and re.search(rf"(?<!\w){re.escape(name)}(?!\w)", prompt):
            return Premise(name, what)
    return None
