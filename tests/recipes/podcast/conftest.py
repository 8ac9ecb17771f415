"""Small podcast data for tests: the first turns of the sample episodes, and a tokenizer made from them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from midthought.learning.small_model import make_tokenizer
from midthought.memory.build import chunk_all
from midthought.memory.chunks import Chunk
from midthought.memory.transcripts import read_transcripts
from midthought.recipes.podcast.demonstrations import corpus
from midthought.recipes.podcast.settings import sample_transcripts
from midthought.tokenization import Renderer

NUM_EPISODES, NUM_LINES = 6, 24


@pytest.fixture(scope="session")
def transcripts_path(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("episodes")
    for path in sorted(Path(sample_transcripts()).glob("*.md"))[:NUM_EPISODES]:
        lines = path.read_text("utf-8").splitlines()[:NUM_LINES]
        (folder / path.name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def chunks(transcripts_path) -> list[Chunk]:
    return chunk_all(read_transcripts(transcripts_path).require_all())


@pytest.fixture(scope="session")
def renderer(chunks) -> Renderer:
    return Renderer(make_tokenizer(corpus(chunks, random.Random(0)), 800))
