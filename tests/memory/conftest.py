from collections.abc import Sequence

import numpy as np
import pytest

from midthought.memory.chunks import Chunk
from midthought.memory.embedding import HashingEmbedder

LINES = [
    ("Ann", "The tide clock has a single copper hand and no numerals at all."),
    ("Bob", "I don't wind it every third day, whatever my brother says."),
    ("Ann", "Somebody had used a boy's mitten to quieten the beat."),
    ("Zoë", "Kerdrozic found herring scales in the café, packed around the wheel."),
    ("Bob", "Yes."),
    ("Ann", "Yes."),
]


class CountingEmbedder(HashingEmbedder):
    """Remembers which texts it embedded."""

    def __init__(self, dimension: int = 64) -> None:
        super().__init__(dimension)
        self.embedded: list[str] = []

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        self.embedded += texts
        return super().embed(texts)


@pytest.fixture
def embedder() -> CountingEmbedder:
    return CountingEmbedder()


@pytest.fixture
def chunks() -> list[Chunk]:
    return [
        Chunk(f"tide_{number}", "The Tide Clock", "tide", speaker, text, f"00:00:0{number}", number)
        for number, (speaker, text) in enumerate(LINES)
    ]
