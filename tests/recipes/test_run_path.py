"""`--run DIR` of a folder that holds other files: refused at once, and nothing in it changes."""

import os
import re
import time

import pytest
from command_process import CommandProcess

from midthought.errors import OutputPathError
from midthought.recipes import find_recipe
from midthought.report.console import Console
from midthought.report.run_folder import RunFolder
from midthought.trainer.checkpoint import RunProgress


@pytest.mark.parametrize("recipe", ["podcast", "feedback"])
@pytest.mark.parametrize("stage", ["all", "evaluate"])
def test_a_folder_of_the_user_is_refused_before_anything_is_computed(recipe, stage, tmp_path):
    (tmp_path / "config.yaml").write_text("mine: 1\n")
    (tmp_path / "questions.jsonl").write_text("mine\n")
    before, began = files(tmp_path), time.process_time()
    with pytest.raises(OutputPathError, match=r"is not empty \(config.yaml, questions.jsonl\).*give another path"):
        find_recipe(recipe).run(tmp_path, Console(quiet=True), words=[], stage=stage, from_path=tmp_path)
    assert time.process_time() - began < 30
    assert files(tmp_path) == before


def files(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_a_second_process_in_a_run_folder_ends_before_doing_anything(tmp_path):
    run = tmp_path / "run"
    with RunFolder(run) as folder:
        folder.create()
        folder.write_file("config.yaml", find_recipe("feedback").config_class()().to_yaml())
        RunProgress(folder).save()
        before = files(run)
        command = CommandProcess("train", "feedback", "--run", str(run), "--resume")
        assert command.wait(100) == 2
        assert f"{run} is in use by process {os.getpid()} on host" in command.errors
        assert files(run) == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["training.learning_rate=0.5", "checkpoint.save_interval=3"], r"training.learning_rate: .* before, 0.5 now"),
        (["--stage", "sft"], "began with --stage all, and a resumed run keeps to it"),
        (["--from", "elsewhere"], "began from nothing, and a resumed run keeps to it"),
    ],
)
def test_the_command_refuses_to_resume_a_run_as_another_one(words, message, tmp_path, call):
    run = tmp_path / "run"
    with RunFolder(run) as folder:
        folder.create()
        config = find_recipe("feedback").config_class()()
        folder.record_settings(config.merged({"model": {"dtype": "float32"}}), [], "", 0)
        progress = RunProgress(folder)
        progress.stage = "all"
        progress.save()
    before = files(run)
    code, _, error = call("train", "feedback", "--run", str(run), "--resume", *words)
    assert code == 2 and re.search(message, error) and "save_interval" not in error
    assert files(run) == before
