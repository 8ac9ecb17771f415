"""Errors of the disk during a run: one sentence with the path and the remedy, nothing is damaged, and the run is resumed."""

import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from interrupted_runs import Runs, left
from representatives import representatives
from small_environments import OnStep

from midthought.errors import StorageError
from midthought.report.run_folder import RunFolder


def mounted(*words: str) -> None:
    if os.geteuid() or subprocess.run(["mount", *words], capture_output=True, check=False).returncode:
        pytest.skip("mounting needs root")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """An empty file system of 24 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted("-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder))
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in (folder / "checkpoints").rglob("*"))


def assert_resumes(runs: Runs, run: Path, result: dict[str, Any]) -> None:
    runs.train(run)
    assert left(run) == result


def fill(folder: Path, num_left: int) -> None:
    """Leaves about this many bytes free."""
    with (folder / "filler").open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 65536):
                pass
        except OSError:
            file.truncate(max(0, file.tell() - num_left))


def test_a_checkpoint_that_cannot_be_written_leaves_the_others_and_the_run_is_resumed(runs, run, result):
    before, (soft, hard) = names(run), resource.getrlimit(resource.RLIMIT_FSIZE)
    limit = OnStep(lambda trainer: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard)), 4)
    try:
        message = r"larger than allowed here; raise the limit .*; then continue with --resume"
        with pytest.raises(StorageError, match=message):
            runs.train(run, callbacks=limit)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names(run) == before
    assert_resumes(runs, run, result)


@pytest.mark.parametrize("num_left", representatives([0, 40_000, 400_000], 40_000))
def test_on_a_full_disk_nothing_is_damaged_and_the_run_is_resumed(num_left, runs, stopped, disk, result):
    run = Path(shutil.copytree(stopped, disk / "run"))
    before = names(run)
    with pytest.raises(StorageError, match=r"no space is left on the device; free .*; then continue with --resume"):
        runs.train(run, callbacks=OnStep(lambda trainer: fill(disk, num_left), 4))
    assert names(run) == before
    (disk / "filler").unlink()
    assert_resumes(runs, run, result)


def test_a_full_disk_leaves_whole_lines(disk):
    run = RunFolder(disk / "run").create()
    run.metrics.append([{"step": 1}])
    fill(disk, 0)
    with pytest.raises(OSError, match="No space"):
        run.metrics.append([{"step": 2, "text": "x" * 100_000}])
    (disk / "filler").unlink()
    run.metrics.append([{"step": 2}])
    assert run.metrics_path.read_text() == '{"step": 1}\n{"step": 2}\n'
    run.unlock()


def test_a_read_only_folder_is_named_with_the_remedy(runs, stopped, disk, call):
    run = Path(shutil.copytree(stopped, disk / "run"))
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    with pytest.raises(StorageError, match=rf"{run}.*: the file system is read-only; make it writable"):
        runs.trainer(run)
    with pytest.raises(StorageError, match=rf"{disk}.*read-only"):
        runs.trainer(disk / "new", resume=False)
    code, _, error = call("report", str(run))
    assert code == 2 and error.startswith(f"midthought: {run}/report.html")


def test_a_run_whose_disk_vanishes_writes_nothing_elsewhere_and_is_resumed(runs, run, result, tmp_path):
    with pytest.raises(StorageError, match=rf"{run} is not the folder .*mount .*; then continue with --resume"):
        runs.train(run, callbacks=OnStep(lambda trainer: run.rename(tmp_path / "away"), 4))
    assert not run.exists()
    (tmp_path / "away").rename(run)
    assert_resumes(runs, run, result)
