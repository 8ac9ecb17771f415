"""A run folder from someone else: evaluating its policy starts no program that its settings name, and sends no key."""

from __future__ import annotations

from pathlib import Path

import pytest

from midthought.errors import SettingsError
from midthought.recipes import find_recipe
from midthought.recipes.recipe import require_no_programs
from midthought.report.console import Console
from midthought.report.run_folder import RunFolder

HOSTILE = {
    "inference: {backend: vllm, server_python: ./evil}": "inference.server_python=./evil",
    "inference: {backend: vllm, base_url: ['https://evil'], api_key_env: AWS_SECRET}": "inference.api_key_env=AWS_SECRET",
    "feedback: {servers: ['https://evil/v1'], api_key_env: AWS_SECRET}": "feedback.api_key_env=AWS_SECRET",
    "memory: {embedding_model: 'https://evil/v1?api_key_env=AWS_SECRET#m'}": "api_key_env=AWS_SECRET",
}


def run_of_a_stranger(folder: Path, settings: str) -> Path:
    (folder / "policy").mkdir(parents=True)
    (folder / "config.yaml").write_text(f"{settings}\n")
    (folder / "metrics.jsonl").write_text("")
    (folder / "progress.json").write_text('{"is_given": false}')
    return folder


@pytest.mark.parametrize("settings", HOSTILE)
def test_programs_and_keys_in_the_settings_of_a_run_are_named_before_anything_starts(settings, tmp_path):
    stranger = run_of_a_stranger(tmp_path / "run", settings)
    recipe = find_recipe("feedback" if "feedback" in settings else "podcast")
    with pytest.raises(SettingsError, match="if you trust it, add ") as raised:
        recipe.run(tmp_path / "out", Console(quiet=True), words=[], stage="evaluate", from_path=stranger / "policy")
    assert HOSTILE[settings] in str(raised.value) and str(stranger) in str(raised.value)
    assert not (tmp_path / "out").exists()


def test_what_the_command_repeats_is_permitted(tmp_path):
    stranger = run_of_a_stranger(tmp_path / "run", "inference: {server_python: ./python, backend: vllm}")
    with pytest.raises(SettingsError, match="server_python"):
        require_no_programs(stranger, ["inference.backend=vllm"])
    require_no_programs(stranger, ["inference.server_python=./python"])
    require_no_programs(run_of_a_stranger(tmp_path / "own", "checkpoint: {trackers: [tensorboard, wandb]}"))


def test_a_recipe_says_as_what_it_reads_the_run_to_resume(tmp_path):
    (tmp_path / "config.yaml").write_text("environment: {max_steps: 2}\n")
    with pytest.raises(SettingsError, match="read as a podcast run: unknown key 'environment'"):
        find_recipe("podcast").begin(tmp_path, words=[], resume=True)


def test_a_run_of_a_program_is_not_played_as_a_recipe(tmp_path):
    RunFolder(tmp_path / "run", trackers=()).create().unlock()
    begin = {"words": [], "stage": "evaluate"}
    with pytest.raises(SettingsError, match=r"run is a run of a program .* give .*policy to play"):
        find_recipe("podcast").make_run(tmp_path, Console(quiet=True), **begin, from_path=tmp_path / "run")
    config, _ = find_recipe("podcast").begin(tmp_path, **begin, from_path=tmp_path / "run" / "policy")
    assert config.model.local_path == str(tmp_path / "run" / "policy")
