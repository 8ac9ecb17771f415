"""The real transcripts, read once."""

import pytest

from benchmarks.retrieval import FOLDER
from benchmarks.retrieval.asked import Episodes
from midthought.memory.transcripts import read_transcripts


@pytest.fixture(scope="session")
def real_episodes() -> Episodes:
    if not FOLDER.is_dir():
        pytest.skip(f"the real transcripts are not in {FOLDER}")
    return Episodes(read_transcripts(FOLDER).require_all())
