"""A small world for the podcast recipe, and its bundle written by the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import write_bundle
from small_runs import small_embedding_model, write_short_transcripts

SMALL = ("memory.chunk_words=18", "questions.num_train=300", "memory.search=full_text")


def write(monkeypatch: pytest.MonkeyPatch, folder: Path, profile: str, *words: str) -> Path:
    """The recipe's bundle over the small world."""
    transcripts = f"memory.transcripts={write_short_transcripts(folder / 'episodes')}"
    small = (transcripts, small_embedding_model(), *SMALL)
    return write_bundle(monkeypatch, "podcast", folder / "bundle", "--config", profile, *small, *words)
