"""The user's questions in demonstrations: with their evidence, or what is nearest to one, under invented names."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from midthought.data.abstention import NO_ANSWER, UNANSWERABLE, is_answerable
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
    """Draws questions whose answer is a speaker or the episode of their evidence, and questions without an answer.

    Args:
        own: the questions, each with a chunk: its evidence, or what is nearest to it.
        names: speakers and episodes of the memory, with `speaker` or `episode`.
        made_up_share: share of names that are invented, also of those that an unanswerable question is wrong about: no name
            shows that there is no answer.
    """

    def __init__(
        self, own: Sequence[tuple[Task, Chunk]], names: Mapping[str, str], made_up: SyntheticNames, made_up_share: float
    ) -> None:
        self._names, self._made_up, self._made_up_share = names, made_up, made_up_share
        self._own = [(task, chunk) for task, chunk in own if self._is_shown(task, chunk)]
        self.may_abstain = any(not is_answerable(task) for task, _ in self._own)

    def __bool__(self) -> bool:
        return bool(self._own)

    @staticmethod
    def _is_shown(task: Task, chunk: Chunk) -> bool:
        """Whether the chunk shows the answer, or there is none."""
        known = (*chunk.speakers, chunk.episode)
        if not all(known):
            return False
        return not is_answerable(task) or task.answer in known

    def draw(self, rng: random.Random) -> tuple[Task, Chunk, Premise | None]:
        """Returns a question, its chunk, and what it takes for granted, all with the same names."""
        task, chunk = rng.choice(self._own)
        known = self._made_up.renamed(chunk, self._made_up_share, rng)
        new = dict(zip(chunk.speakers, known.speakers, strict=False)) | {chunk.episode: known.episode}
        own = dict.fromkeys(chunk.speakers, "speaker") | {chunk.episode: "episode"}
        kind, answer = UNANSWERABLE, NO_ANSWER
        if not is_answerable(task):
            premise = _premise(task, {name: what for name, what in self._names.items() if name not in own})
            if premise and rng.random() < self._made_up_share:
                invent = self._made_up.name if premise.what == "speaker" else self._made_up.title
                name = invent(rng)
                while name in (*known.speakers, known.episode):
                    name = invent(rng)
                new[premise.name] = name
        else:
            kind, answer = own[task.answer], new[task.answer]
            premise = _premise(task, own)
        prompt = _replaced(task.prompt, new)
        labels = {"needs_memory": True, "kind": kind, "quote": " ".join(prompt.split())}
        named = premise and Premise(new.get(premise.name, premise.name), premise.what)
        return replace(task, prompt=prompt, answer=answer, labels=labels), known, named


def _premise(task: Task, names: Mapping[str, str]) -> Premise | None:
    """Returns the longest of these names that the question contains."""
    found = [name for name in names if name in task.prompt and _words(name).search(task.prompt)]
    longest = max(found, key=len, default=None)
    return None if longest is None else Premise(longest, names[longest])


def _replaced(text: str, new: Mapping[str, str]) -> str:
    """Returns the text with each of these names, as whole words, replaced."""
    names = sorted(new, key=len, reverse=True)
    return _words(*names).sub(lambda found: new[found[0]], text)


def _words(*names: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, names))})(?!\w)")
