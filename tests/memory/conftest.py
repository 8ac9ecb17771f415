from collections.abc import Iterator

import pytest
from episodes import episode
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
    store.build([chunk for stem, texts in SAID.items() for chunk in episode(stem, texts)])
    return store


@pytest.fixture(params=[False, True], ids=["small", "large"])
def is_large(request, monkeypatch) -> bool:
    """Whether memories of 7 rows have the indices of large ones."""
    monkeypatch.setattr("midthought.memory.indices.MIN_ROWS_FOR_VECTOR_INDEX", 7 if request.param else 1_000)
    return request.param
