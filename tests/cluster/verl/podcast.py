"""A small world for the podcast recipe, and its bundle written by the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import write_bundle

from midthought.recipes.podcast.settings import sample_transcripts

NUM_EPISODES, NUM_LINES = 6, 24
SMALL = ("memory.chunk_words=18", "questions.max_quote_words=10", "questions.num_train=300", "memory.search=full_text")


def write_transcripts(folder: Path) -> Path:
    """The first turns of the sample episodes."""
    folder.mkdir()
    for path in sorted(Path(sample_transcripts()).glob("*.md"))[:NUM_EPISODES]:
        lines = path.read_text("utf-8").splitlines()[:NUM_LINES]
        (folder / path.name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def write(monkeypatch: pytest.MonkeyPatch, folder: Path, profile: str, *words: str) -> Path:
    """The recipe's bundle over the small world."""
    transcripts = f"memory.transcripts={write_transcripts(folder / 'episodes')}"
    return write_bundle(monkeypatch, "podcast", folder / "bundle", "--config", profile, transcripts, *SMALL, *words)
