"""A run that is resumed with other transcripts. Kills: the same code of the feedback recipe."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from small_runs import PODCAST, start, stop_at, write_short_transcripts


@pytest.mark.slow
def test_a_warm_up_does_not_continue_with_another_tokenizer(tmp_path: Path) -> None:
    texts = write_short_transcripts(tmp_path / "texts")
    run, words = tmp_path / "run", [*PODCAST, f"memory.transcripts={texts}"]
    assert stop_at(start("podcast", run, *words), run, 13, signal.SIGINT) == 130
    for path in texts.glob("*.md"):
        path.write_text(path.read_text().replace("the ", "zymurgy "))
    again = start("podcast", run, "--resume", "--allow-changes")
    assert again.wait() != 0 and "has another tokenizer than this trainer" in again.errors
