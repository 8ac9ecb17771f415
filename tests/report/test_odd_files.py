"""Pipes, devices, links, endless lines and odd values in place of a run's files: one sentence with the path, and no waiting."""

import json
import os
import shutil
import socket
from pathlib import Path

import pytest
from invented_runs import fill_run
from typer.testing import CliRunner

from midthought.cli import app
from midthought.errors import CheckpointError, MidthoughtError, StorageError
from midthought.files.regular import lines_of, storage_error
from midthought.report.run_folder import RunFolder, require_intact_run


def pipe(file: Path) -> None:
    os.mkfifo(file)


def device(file: Path) -> None:
    file.symlink_to("/dev/zero")


def unix_socket(file: Path) -> None:
    here = os.getcwd()
    os.chdir(file.parent)  # addresses are short
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(file.name)
    finally:
        os.chdir(here)


def folder(file: Path) -> None:
    (file / "inner").mkdir(parents=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    return fill_run(tmp_path_factory.mktemp("whole") / "run", num_steps=4, num_tasks=2)


@pytest.fixture
def run(whole, tmp_path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "run"))


@pytest.mark.parametrize(
    ("name", "words", "odd"),
    [
        *(("metrics.jsonl", ["report"], odd) for odd in (pipe, device, unix_socket, folder)),
        ("metrics.jsonl", ["watch", "--once"], pipe),
        ("trajectories.jsonl", ["report"], device),
        ("summary.json", ["compare"], pipe),
        *(("config.yaml", ["report"], odd) for odd in (pipe, folder)),
    ],
)
def test_a_reader_says_which_file_is_none(name, words, odd, run, whole):
    file = run / name
    file.unlink()
    odd(file)
    command, *options = words
    others = [str(whole)] if command == "compare" else []
    result = CliRunner().invoke(app, [command, *options, str(run), *others])
    error = result.exception
    if error is not None and not isinstance(error, SystemExit):
        assert isinstance(error, MidthoughtError) or storage_error(error), error
    assert name in f"{result.stderr}{error}"


def test_a_summary_that_is_too_large_is_not_read(run):
    os.truncate(run / "summary.json", 2**35)
    error = CliRunner().invoke(app, ["report", str(run)]).exception
    assert isinstance(error, StorageError) and "summary.json has 34,359,738,368 bytes" in str(error)


def test_a_pipe_in_place_of_the_mark_is_not_waited_for(run):
    (run / ".midthought.json").unlink()
    pipe(run / ".midthought.json")
    assert CliRunner().invoke(app, ["report", str(run)]).exit_code == 0


def test_a_line_without_an_end_is_not_read_into_memory(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"stage": "ppo", "step": 1}\n' + "x" * 300)
    with pytest.raises(StorageError, match=r"metrics.jsonl, line 2 has more than 100 bytes.* restore the file"):
        list(lines_of(file, max_bytes=100))


@pytest.mark.parametrize(
    ("words", "row"), [(["report"], {"stage": "ppo", "step": [1]}), (["watch", "--once"], {"step": 1})]
)
def test_a_row_without_a_value_or_with_one_of_another_type_is_named_with_its_run(words, row, run):
    assert not isinstance(CliRunner().invoke(app, [*words, str(run)]).exception, CheckpointError)
    (run / "metrics.jsonl").write_text(json.dumps({"reward/mean": 0.5, "reward/std": 0.5, **row}) + "\n")
    error = CliRunner().invoke(app, [*words, str(run)]).exception
    assert isinstance(error, CheckpointError) and str(run) in str(error) and "\n" not in str(error)


@pytest.mark.parametrize("wrong", [7, "x", {"size": 1}, [1], None])
def test_a_manifest_with_values_of_other_types_is_written_again(wrong, run):
    file = run / "manifest.json"
    content = json.loads(file.read_text())
    content["files"]["config.yaml"] = wrong
    file.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"config.yaml has .*delete .*manifest.json"):
        require_intact_run(run)
    RunFolder(run).write_file("config.yaml", "training: {seed: 2}\n")
    require_intact_run(run)
