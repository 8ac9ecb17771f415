import zlib
from collections.abc import Sequence

import numpy as np
import pytest

from midthought.memory.chunks import Chunk
from midthought.memory.store import MemoryStore

LINES = [
    ("Ann", "The tide clock has a single copper hand and no numerals at all."),
    ("Bob", "I don't wind it every third day, whatever my brother says."),
    ("Ann", "Somebody had used a boy's mitten to quieten the beat."),
    ("Zoë", "Kerdrozic found herring scales in the café, packed around the wheel."),
    ("Bob", "Yes."),
    ("Ann", "Yes."),
]


class WordEmbedder:
    """Counts words in hashed places, so that texts are near if they share words; remembers what it embedded."""

    name = "words"

    def __init__(self, dimension: int = 64) -> None:
        self.dimension = dimension
        self.embedded: list[str] = []

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        self.embedded += texts
        vectors = np.zeros((len(texts), self.dimension), dtype=np.float32)
        vectors[:, 0] = 0.1
        for row, text in enumerate(texts):
            for word in text.lower().split():
                vectors[row, zlib.crc32(word.encode()) % self.dimension] += 1
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.fixture(scope="session")
def new_embedder() -> type[WordEmbedder]:
    return WordEmbedder


@pytest.fixture
def embedder() -> WordEmbedder:
    return WordEmbedder()


@pytest.fixture
def chunks() -> list[Chunk]:
    return [
        Chunk(f"tide_{number}", "The Tide Clock", "tide", speaker, text, f"00:00:0{number}", number)
        for number, (speaker, text) in enumerate(LINES)
    ]


@pytest.fixture
def store(tmp_path, embedder, chunks) -> MemoryStore:
    store = MemoryStore.open(tmp_path / "memory", embedder=embedder)
    store.build(chunks)
    return store
