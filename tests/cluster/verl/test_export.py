"""Exporting a checkpoint of verl: errors that need no verl. The export itself: test_with_verl_feedback.py, …_training.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from midthought.cluster.verl import export as module
from midthought.cluster.verl.export import export, main
from midthought.errors import ModelPathError, SettingsError


def checkpoint_in(folder: Path) -> Path:
    (folder / "global_step_2" / "actor").mkdir(parents=True)
    (folder / "global_step_2" / "actor" / "fsdp_config.json").write_text('{"FSDP_version": 2, "world_size": 1}')
    return folder / "global_step_2"


def test_a_folder_without_shards_and_a_folder_in_use_are_named(tmp_path: Path) -> None:
    with pytest.raises(
        ModelPathError, match=r"nothing holds no policy that verl saved; give checkpoints/global_step_N"
    ):
        export(tmp_path / "nothing", tmp_path / "out")
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "mine").touch()
    with pytest.raises(SettingsError, match="used is not empty; give a new folder"):
        export(checkpoint_in(tmp_path), tmp_path / "used")


def test_a_failed_merge_ends_with_verls_last_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "Traceback" >&2\necho "KeyError: shard $5" >&2\nexit 1\n')
    python.chmod(0o755)
    monkeypatch.setattr(module, "require_verl", lambda: str(python))
    checkpoint = checkpoint_in(tmp_path)
    with pytest.raises(
        ModelPathError, match=r"verl cannot merge the shards in .*/global_step_2/actor: KeyError: shard fsdp"
    ):
        export(checkpoint, tmp_path / "out")


def test_the_command_prints_one_line_and_returns_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2 and capsys.readouterr().err.startswith("usage: ")
    assert main([str(tmp_path), str(tmp_path / "out")]) == 2
    assert "holds no policy that verl saved" in capsys.readouterr().err
