"""Files of a run whose values have other types than a run writes: one sentence with the path, never a traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from midthought.cli import app
from midthought.errors import CheckpointError

ROW = {"stage": "ppo", "step": 1, "reward/mean": 0.5, "reward/std": 0.5}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "metrics.jsonl").write_text(json.dumps(ROW) + "\n")
    (folder / "config.yaml").write_text("training: {seed: 1}\n")
    return folder


def invoked(*words: object) -> BaseException | None:
    return CliRunner().invoke(app, [str(word) for word in words]).exception


DAMAGED = {
    "a row without a step": (["guard"], "metrics.jsonl", '{"stage": "ppo"}\n'),
    "a row whose step is a text": (["report"], "metrics.jsonl", json.dumps({**ROW, "step": "x"}) + "\n"),
    "a row whose stage is a list": (["watch", "--once"], "metrics.jsonl", json.dumps({**ROW, "stage": []}) + "\n"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_value_of_another_type_is_named_with_its_run(name, run):
    (command, *options), file, text = DAMAGED[name]
    assert not isinstance(invoked(command, run, *options), CheckpointError)
    (run / file).write_text(text)
    error = invoked(command, run, *options)
    assert isinstance(error, CheckpointError), error
    assert str(run) in str(error) and "\n" not in str(error)
