"""A run that is resumed with other transcripts, and what a whole run leaves. Kills: the same code of the feedback recipe."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from small_runs import PODCAST, metrics, start, stop_at, whole, write_short_transcripts

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return whole("podcast", tmp_path_factory.mktemp("whole") / "run")


def test_a_warm_up_does_not_continue_with_another_tokenizer(tmp_path: Path) -> None:
    texts = write_short_transcripts(tmp_path / "texts")
    run, words = tmp_path / "run", [*PODCAST, f"memory.transcripts={texts}"]
    assert stop_at(start("podcast", run, *words), run, 13, signal.SIGINT) == 130
    for path in texts.glob("*.md"):
        path.write_text(path.read_text().replace("the ", "zymurgy "))
    again = start("podcast", run, "--resume", "--allow-changes")
    assert again.wait() != 0 and "has another tokenizer than this trainer" in again.errors


def test_every_stage_left_its_lines_and_the_summary_its_keys(uninterrupted: Path) -> None:
    stages = [row["stage"] for row in metrics(uninterrupted)]
    assert {stage: stages.count(stage) for stage in set(stages)} == {"sft": 24, "ppo": 4, "validation": 2}
    summary = json.loads((uninterrupted / "summary.json").read_text())
    required = """before.exact_match after.unfinished before.oracle.exact_match after.exact_match after.tool_off.exact_match
        after.shuffled.exact_match after.oracle.exact_match after.no_memory.exact_match after.constant_guess
        after.call_rate_needed after.call_rate_needless num_questions seconds peak_rss_mib seed"""
    assert not set(required.split()) - summary.keys()
    assert summary["num_questions"] == 8
    assert (uninterrupted / "report.html").stat().st_size > 10_000
