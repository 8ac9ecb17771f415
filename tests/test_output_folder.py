"""Folders are replaced in one step, and only if this library wrote and marked them."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from midthought.errors import OutputPathError
from midthought.files.output_folder import MARK, kind_of, recover, remove, replaced


def write(path: Path, text: str, kind: str = "model") -> None:
    with replaced(path, kind) as folder:
        (folder / "weights").write_text(text)


def test_a_folder_that_was_written_here_is_replaced_and_nothing_is_left_beside_it(tmp_path):
    (tmp_path / "model").mkdir()
    for text in ("first", "second"):
        write(tmp_path / "model", text)
        assert (tmp_path / "model/weights").read_text() == text
    assert kind_of(tmp_path / "model") == "model" and '"weights"' in (tmp_path / "model" / MARK).read_text()
    assert os.listdir(tmp_path) == ["model"]


def test_a_folder_or_file_of_the_user_stays_as_it_is_and_is_named_with_the_remedy(tmp_path):
    thesis = tmp_path / "thesis"
    thesis.mkdir()
    (thesis / "chapter.tex").write_text("years of work")
    with pytest.raises(OutputPathError, match=r"is not empty \(chapter.tex\) and was not written by midthought.*give"):
        write(thesis, "model")
    with pytest.raises(OutputPathError, match=r"chapter.tex is a file"):
        write(thesis / "chapter.tex", "model")
    assert (thesis / "chapter.tex").read_text() == "years of work" and os.listdir(thesis) == ["chapter.tex"]


def test_a_file_that_the_user_added_to_our_folder_is_not_lost(tmp_path):
    write(tmp_path / "model", "first")
    (tmp_path / "model/README.md").write_text("mine")
    with pytest.raises(OutputPathError, match=r"holds 'README.md', which midthought did not write"):
        write(tmp_path / "model", "second")
    assert (tmp_path / "model/README.md").read_text() == "mine"


def test_a_checkpoint_does_not_replace_a_run(tmp_path):
    write(tmp_path / "a", "run", kind="run")
    with pytest.raises(OutputPathError, match="is a run that midthought wrote, and would become a checkpoint"):
        write(tmp_path / "a", "checkpoint", kind="checkpoint")


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
    """Runs a replacement or removal in a fork of this process, which ends at its step of this number. Returns its exit code."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        end_at_step(number)
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


def end_at_step(number: int) -> None:
    """The steps: two renames, the marks, and the removal of each file and folder. A mark has two: it is empty, it is written."""
    left, write_text = number, Path.write_text

    def step() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os._exit(9)

    def counted(act: Callable[..., object]) -> Callable[..., object]:
        def acts(*words: object, **named: object) -> object:
            step()
            return act(*words, **named)

        return acts

    def written(file: Path, text: str, **named: object) -> None:
        if "midthought.json" in file.name:
            write_text(file, "" if left == 1 else text, **named)
            step()  # opened, and nothing is written yet
        else:
            write_text(file, text, **named)

    os.unlink, os.remove, os.rmdir, Path.rename = map(counted, (os.unlink, os.remove, os.rmdir, Path.rename))
    Path.write_text = written


@pytest.mark.parametrize(("task", "last"), [("replace", 14), ("remove", 8)])
def test_a_process_killed_at_any_step_of_a_replacement_or_removal_loses_nothing_and_does_not_stop_the_next_one(
    task, last, tmp_path
):
    path, codes = tmp_path / "model", []
    for number in range(1, last + 1):
        with replaced(path, "model") as folder:
            (folder / "more").mkdir()
            for name in ("weights", "more/weights"):
                (folder / name).write_text("first")
        codes.append(killed(path, number, task))
        if task == "replace":
            recover(path)
            assert (path / "weights").read_text() in ("first", "second")
        write(path, "third")
        assert (path / "weights").read_text() == "third" and os.listdir(tmp_path) == ["model"]
        assert sorted(os.listdir(path)) == [MARK, "manifest.json", "weights"]
    assert codes == sorted(codes, reverse=True) and set(codes) == {0, 9}, "every step was the last one once"


def test_an_empty_folder_that_a_killed_process_left_does_not_stop_the_next_one(tmp_path):
    (tmp_path / ".model.new").mkdir()
    write(tmp_path / "model", "first")
    assert os.listdir(tmp_path) == ["model"]


@pytest.mark.parametrize("name", [".model.old", ".model.new"])
def test_what_is_not_ours_in_the_way_of_a_replacement_is_named_and_stays(tmp_path, name):
    write(tmp_path / "model", "first")
    (tmp_path / name).mkdir()
    (tmp_path / name / "thesis.tex").write_text("years of work")
    with pytest.raises(OutputPathError, match=rf"\{name} has files that midthought does not know.*remove it"):
        write(tmp_path / "model", "second")
    assert (tmp_path / "model/weights").read_text() == "first" and (tmp_path / name / "thesis.tex").exists()
