from collections.abc import Iterator

import pytest
from scholar import SAID, Scholar
from word_embedder import WordEmbedder

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


@pytest.fixture
def scholar() -> Iterator[Scholar]:
    with Scholar() as server:
        yield server


@pytest.fixture
def talks(tmp_path, embedder) -> MemoryStore:
    """A memory of the two episodes that the scholar is asked about."""
    store = MemoryStore.open(tmp_path / "memory", embedder=embedder)
    store.build(
        [
            Chunk(f"{stem}_{n}", f"The {stem.title()}", stem, "Ann", text, f"00:00:0{n}", n)
            for stem, texts in SAID.items()
            for n, text in enumerate(texts)
        ]
    )
    return store
