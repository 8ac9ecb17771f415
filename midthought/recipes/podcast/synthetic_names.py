"""Invented names, titles and words: a small model learns to copy unseen names only if training shows many."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import replace

from midthought.memory.chunks import Chunk
from midthought.tokenization import Renderer

_LETTERS = [chr(code) for code in range(0xC0, 0x180) if chr(code).isalpha()]
"""Latin letters with diacritics: in byte-level tokens each is a pair of bytes that does not occur in plain English."""
_ONSETS = [
    *"bcdfghjklmnprstvwyz",
    "",
    *["br", "ch", "dr", "fr", "gr", "kl", "pr", "Sch", "sh", "st", "th", "tr", "ø", "ñ"],
]
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
