"""Invented names, titles and words, and the user's questions under invented names.

A small model learns to copy unseen names only if training shows many.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from midthought.data.final_answers import NO_ANSWER, UNANSWERABLE, is_answerable
from midthought.memory.chunks import Chunk
from midthought.tokenization import Renderer
from midthought.types import Task

_LETTERS = [chr(code) for code in range(0xC0, 0x180) if chr(code).isalpha()]
"""Latin letters with diacritics: in byte-level tokens each is a pair of bytes that does not occur in plain English."""
_CLUSTERS = ["br", "ch", "dr", "fr", "gr", "kl", "pr", "Sch", "sh", "st", "th", "tr", "ø", "ñ"]
_ONSETS = [*"bcdfghjklmnprstvwyz", "", *_CLUSTERS]
_VOWELS = ["a", "e", "i", "o", "u", "ai", "ee", "ou", "ia", "é", "ö", "á", "ü"]
_CODAS = ["", "", "n", "r", "l", "s", "ck", "t", "m", "sh", "ng", "y", "th", "nd", "ł"]

MARKED_SHARE = 0.35
"""Share of names in which one to three characters become letters with diacritics."""


class SyntheticNames:
    """Draws names, titles and text from the corpus' words and the tokenizer's vocabulary."""

    def __init__(self, texts: Sequence[str], renderer: Renderer | None) -> None:
        found = {word for text in texts for word in re.findall(r"[^\W\d_]{4,}", text)}
        self._title_words = sorted(found) or ["Episode"]
        self._renderer = renderer
        self._plain_ids = (
            [number for number in range(len(renderer.tokenizer)) if number not in renderer.control_token_ids]
            if renderer
            else []
        )

    def name(self, rng: random.Random) -> str:
        """Returns one to three words of one to three syllables, sometimes with a hyphen or a comma."""
        words = [
            "".join(self._syllable(rng) for _ in range(rng.choice([1, 2, 2, 3]))).capitalize() or "A"
            for _ in range(rng.choice([1, 2, 2, 2, 3]))
        ]
        name = rng.choice([" "] * 9 + ["-"]).join(words)
        if rng.random() < MARKED_SHARE:
            for _ in range(rng.randint(1, 3)):
                place = rng.randrange(len(name))
                name = f"{name[:place]}{rng.choice(_LETTERS)}{name[place + 1 :]}"
        return " ".join(name.split())

    def title(self, rng: random.Random) -> str:
        """Returns two to five capitalised words, sometimes with a number."""
        words = [rng.choice(self._title_words).capitalize() for _ in range(rng.randint(2, 5))]
        number = [str(rng.randint(1, 600))] if rng.random() < 0.4 else []
        return " ".join(words + number)

    def renamed(self, chunk: Chunk, share: float, rng: random.Random) -> Chunk:
        """Returns the chunk, with this probability each with an invented title and invented speakers."""
        new = {speaker: self.name(rng) for speaker in chunk.speakers if rng.random() < share}
        turns = tuple((start, new.get(speaker, speaker)) for start, speaker in chunk.turns)
        speaker = ", ".join(new.get(speaker, speaker) for speaker in chunk.speakers)
        episode = self.title(rng) if rng.random() < share else chunk.episode
        return replace(chunk, speaker=speaker, turns=turns, episode=episode)

    def words(self, rng: random.Random, num_words: int) -> str:
        """Returns words of one or two random tokens each."""
        return " ".join(self.tokens(rng, 1, 2) for _ in range(num_words))

    def tokens(self, rng: random.Random, fewest: int, most: int) -> str:
        """Returns text of random tokens, without quotes and line ends."""
        assert self._renderer is not None
        ids = [rng.choice(self._plain_ids) for _ in range(rng.randint(fewest, most))]
        return " ".join(re.sub(r'[\ufffd"\\\s]+', " ", self._renderer.decode(ids)).split()) or "x"

    @staticmethod
    def _syllable(rng: random.Random) -> str:
        return rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS)


# -- the user's questions ----------------------------------------------------------------------------------------


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
        invented_share: share of names that are invented, also of those that an unanswerable question is wrong about: no name
            shows that there is no answer.
    """

    def __init__(
        self,
        own: Sequence[tuple[Task, Chunk]],
        names: Mapping[str, str],
        made_up: SyntheticNames,
        invented_share: float,
    ) -> None:
        self._names, self._made_up, self._invented_share = names, made_up, invented_share
        self._own = [(task, chunk) for task, chunk in own if self._is_shown(task, chunk)]
        self.may_abstain = any(not is_answerable(task) for task, _ in self._own)

    def __bool__(self) -> bool:
        return bool(self._own)

    @staticmethod
    def _is_shown(task: Task, chunk: Chunk) -> bool:
        """Whether the chunk shows the answer, or there is none."""
        known = (*chunk.speakers, chunk.episode)
        return all(known) and (not is_answerable(task) or task.answer in known)

    def draw(self, rng: random.Random) -> tuple[Task, Chunk, Premise | None]:
        """Returns a question, its chunk, and what it takes for granted, all with the same names."""
        task, chunk = rng.choice(self._own)
        known = self._made_up.renamed(chunk, self._invented_share, rng)
        new = dict(zip(chunk.speakers, known.speakers, strict=False)) | {chunk.episode: known.episode}
        own = dict.fromkeys(chunk.speakers, "speaker") | {chunk.episode: "episode"}
        kind, answer = UNANSWERABLE, NO_ANSWER
        if not is_answerable(task):
            premise = _premise(task, {name: what for name, what in self._names.items() if name not in own})
            if premise and rng.random() < self._invented_share:
                invent = self._made_up.name if premise.what == "speaker" else self._made_up.title
                name = invent(rng)
                while name in (*known.speakers, known.episode):
                    name = invent(rng)
                new[premise.name] = name
        else:
            kind, answer = own[task.answer], new[task.answer]
            premise = _premise(task, own)
        prompt = _words(*sorted(new, key=len, reverse=True)).sub(lambda found: new[found[0]], task.prompt)
        labels = {"needs_memory": True, "kind": kind, "quote": " ".join(prompt.split())}
        named = premise and Premise(new.get(premise.name, premise.name), premise.what)
        return replace(task, prompt=prompt, answer=answer, labels=labels), known, named


def _premise(task: Task, names: Mapping[str, str]) -> Premise | None:
    """Returns the longest of these names that the question contains."""
    found = [name for name in names if name in task.prompt and _words(name).search(task.prompt)]
    longest = max(found, key=len, default=None)
    return None if longest is None else Premise(longest, names[longest])


def _words(*names: str) -> re.Pattern[str]:
    """Returns a pattern of these names as whole words."""
    return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, names))})(?!\w)")
