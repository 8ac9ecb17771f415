"""Folders are replaced in one step, and only if this library wrote and marked them."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from midthought.errors import OutputPathError
from midthought.files.output_folder import MARK, kind_of, recover, remove, replaced


def write(path: Path, text: str, kind: str = "model") -> None:
    with replaced(path, kind) as folder:
        (folder / "weights").write_text(text)


def test_a_folder_that_was_written_here_is_replaced_and_nothing_is_left_beside_it(tmp_path):
    for name in ("model", ".model.new"):  # as a killed process left it
        (tmp_path / name).mkdir()
    for text in ("first", "second"):
        write(tmp_path / "model", text)
        assert (tmp_path / "model/weights").read_text() == text
    assert kind_of(tmp_path / "model") == "model" and '"weights"' in (tmp_path / "model" / MARK).read_text()
    assert os.listdir(tmp_path) == ["model"]


def test_what_is_not_ours_stays_as_it_is_and_is_named_with_the_remedy(tmp_path):
    for name in ("model", "run", "in-the-way", "in-the-way-2"):
        write(tmp_path / name, "first", kind="run" if name == "run" else "model")
    refused = {
        "thesis/chapter.tex": (
            "thesis",
            r"is not empty \(chapter.tex\) and was not written by midthought.*give another path",
        ),
        "notes.txt": (
            "notes.txt",
            "notes.txt is a file, and a folder with a model would replace it; give another path",
        ),
        "model/README.md": ("model", r"holds 'README.md', which midthought did not write.*move that file"),
        "run/weights": ("run", "is a run that midthought wrote, and would become a model; give another path"),
        ".in-the-way.old/thesis.tex": ("in-the-way", r"\.old has files that midthought does not know.*remove it"),
        ".in-the-way-2.new/thesis.tex": ("in-the-way-2", r"\.new has files that midthought does not know.*remove it"),
    }
    for file in refused:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("years of work")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for name, message in refused.values():
        with pytest.raises(OutputPathError, match=message):
            write(tmp_path / name, "second")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_writing_through_a_link_keeps_the_link(tmp_path):
    write(tmp_path / "disk/model", "first")
    (tmp_path / "latest").symlink_to("disk/model")
    write(tmp_path / "latest", "second")
    assert (tmp_path / "latest").is_symlink() and (tmp_path / "disk/model/weights").read_text() == "second"


def test_what_was_there_stays_if_writing_fails(tmp_path):
    write(tmp_path / "model", "first")
    with pytest.raises(OSError, match="full"), replaced(tmp_path / "model", "model") as folder:
        (folder / "weights").write_text("half")
        raise OSError("disk full")
    assert (tmp_path / "model/weights").read_text() == "first" and os.listdir(tmp_path) == ["model"]


def killed(path: Path, number: int, task: str) -> int:
    """Runs a replacement or removal in a fork of this process, which ends at its step of this number. Returns its exit code.

    The steps: renames, removals of files and folders, and marks and manifests of which nothing is written yet.
    """
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    left = number

    def step(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        is_written = event == "open" and arguments[1] == "w"
        left -= is_written or event in ("os.rename", "os.remove", "os.rmdir")
        if left == 0:
            if is_written:
                Path(arguments[0]).touch()
            os._exit(9)

    sys.addaudithook(step)
    try:
        if task == "replace":
            with replaced(path, "model") as folder:
                (folder / "more").mkdir()
                for name in ("weights", "more/weights"):
                    (folder / name).write_bytes(b"second")
        else:
            remove(path)
    except BaseException:
        os._exit(1)
    os._exit(0)


@pytest.mark.parametrize(("task", "min_steps"), [("replace", 14), ("remove", 6)])
def test_a_process_killed_at_any_step_of_a_replacement_or_removal_loses_nothing_and_does_not_stop_the_next_one(
    task, min_steps, tmp_path
):
    path, codes = tmp_path / "model", []
    while 0 not in codes:
        with replaced(path, "model") as folder:
            (folder / "more").mkdir()
            for name in ("weights", "more/weights"):
                (folder / name).write_text("first")
        codes.append(killed(path, len(codes) + 1, task))
        if task == "replace":
            recover(path)
            assert (path / "weights").read_text() in ("first", "second")
        write(path, "third")
        assert (path / "weights").read_text() == "third" and os.listdir(tmp_path) == ["model"]
        assert sorted(os.listdir(path)) == [MARK, "manifest.json", "weights"]
    assert codes == [9] * (len(codes) - 1) + [0] and len(codes) > min_steps, "every step was the last one once"
