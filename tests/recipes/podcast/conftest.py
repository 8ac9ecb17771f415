"""Small podcast data for tests: the first turns of the sample episodes, and a tokenizer made from them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from small_runs import write_short_transcripts

from midthought.memory.build import chunk_all
from midthought.memory.chunks import Chunk
from midthought.memory.transcripts import read_transcripts
from midthought.models.small_model import make_tokenizer
from midthought.recipes.podcast.demonstrations import corpus
from midthought.tokenization import Renderer


@pytest.fixture(scope="session")
def transcripts_path(tmp_path_factory) -> Path:
    return write_short_transcripts(tmp_path_factory.mktemp("episodes"))


@pytest.fixture(scope="session")
def chunks(transcripts_path) -> list[Chunk]:
    return chunk_all(read_transcripts(transcripts_path).require_all())


@pytest.fixture(scope="session")
def renderer(chunks) -> Renderer:
    return Renderer(make_tokenizer(corpus(chunks, random.Random(0)), 800))
