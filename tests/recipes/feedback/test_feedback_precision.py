"""The precision of the warm-up: measured once, recorded, and kept by a resumed run."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from small_runs import FEEDBACK, metrics

from midthought.learning import sft
from midthought.learning.checkpoint import latest
from midthought.models.precision import PrecisionChoice
from midthought.recipes.feedback import recipe
from midthought.report.console import Console
from midthought.report.run_folder import RunFolder

SETTINGS = [*FEEDBACK, "inference.deterministic=false", "sft.num_steps=3", "checkpoint.save_minutes=1e-9"]


def warm_up(path: Path, *words: str, resume: bool = False, out: Any = None) -> dict[str, Any]:
    """The state of the newest checkpoint afterwards."""
    console = Console(plain=True, out=out or StringIO())
    recipe.run(path, console, words=[] if resume else [*SETTINGS, *words], stage="sft", resume=resume)
    return json.loads((latest(path / "checkpoints/sft") / "state.json").read_text())


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[PrecisionChoice]:
    """What was measured; bfloat16 is twice as fast whenever it is."""
    made: list[PrecisionChoice] = []

    def measure(*_: Any) -> PrecisionChoice:
        made.append(PrecisionChoice(float32_seconds=2.0, bfloat16_seconds=1.0))
        return made[-1]

    monkeypatch.setattr(sft, "measure_precision", measure)
    return made


@pytest.mark.slow
def test_it_is_measured_once_printed_recorded_and_kept_by_a_resumed_run(
    tmp_path: Path, measured: list[PrecisionChoice], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, log = StringIO(), RunFolder.log

    def interrupt(self: RunFolder, stage: str, step: int, figures: Any) -> None:
        log(self, stage, step, figures)
        if step == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(RunFolder, "log", interrupt)
        warm_up(tmp_path / "run", out=out)
    assert "Supervised steps are computed in bfloat16 (measured: bfloat16 is 2.00 times as fast" in out.getvalue()
    state = warm_up(tmp_path / "run", resume=True)
    assert state["precision"] == "bfloat16"
    assert len(measured) == 1
    warm_up(tmp_path / "fixed", "sft.mixed_precision=true")
    assert metrics(tmp_path / "run") == metrics(tmp_path / "fixed")


@pytest.mark.parametrize("word", ["sft.mixed_precision=false", "inference.deterministic=true"])
def test_nothing_is_measured_if_the_setting_says_it_or_the_run_must_not_depend_on_times(
    word: str, tmp_path: Path, measured: list[PrecisionChoice]
) -> None:
    assert warm_up(tmp_path / "run", word)["precision"] is None
    assert not measured
