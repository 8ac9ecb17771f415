"""Folders are replaced in one step, and only if this library wrote and marked them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from midthought.errors import OutputPathError
from midthought.output_folder import MARK, kind_of, recover, replaced


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


KILLED_AT = """
import os, signal, sys
from pathlib import Path
from midthought.output_folder import replaced

num_renames = 0
rename = Path.rename

def killed(self, target):
    global num_renames
    num_renames += 1
    if num_renames == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    return rename(self, target)

Path.rename = killed
with replaced(sys.argv[1], "model") as folder:
    (folder / "weights").write_text("second")
"""


@pytest.mark.parametrize("rename", [1, 2])
def test_a_process_killed_in_the_middle_of_a_replacement_loses_nothing(rename, tmp_path):
    write(tmp_path / "model", "first")
    done = subprocess.run([sys.executable, "-c", KILLED_AT, str(tmp_path / "model"), str(rename)], check=False)
    assert done.returncode == -9
    recover(tmp_path / "model")
    assert (tmp_path / "model/weights").read_text() == "first"
    write(tmp_path / "model", "third")
    assert (tmp_path / "model/weights").read_text() == "third" and os.listdir(tmp_path) == ["model"]


def test_an_empty_folder_that_a_killed_process_left_does_not_stop_the_next_one(tmp_path):
    (tmp_path / ".model.new").mkdir()
    write(tmp_path / "model", "first")
    assert os.listdir(tmp_path) == ["model"]


KILLED_AT_MARK = """
import os, sys
from pathlib import Path
from midthought.output_folder import replaced
path, number = Path(sys.argv[1]), int(sys.argv[2])
write_text = Path.write_text

def killed(path, text, **named):
    global number
    if "midthought.json" in path.name:
        number -= 1
        if number == 0:
            write_text(path, "")  # opened, and nothing is written yet
            os._exit(9)
    return write_text(path, text, **named)

Path.write_text = killed
with replaced(path, "model") as folder:
    write_text(folder / "weights", "second")
"""


@pytest.mark.parametrize("mark", [1, 2])
def test_a_process_killed_while_it_writes_a_mark_does_not_stop_the_next_one(mark, tmp_path):
    write(tmp_path / "model", "first")
    done = subprocess.run([sys.executable, "-c", KILLED_AT_MARK, str(tmp_path / "model"), str(mark)], check=False)
    assert done.returncode == 9
    write(tmp_path / "model", "third")
    assert (tmp_path / "model/weights").read_text() == "third" and os.listdir(tmp_path) == ["model"]
    assert sorted(os.listdir(tmp_path / "model")) == [MARK, "manifest.json", "weights"]


KILLED_WHILE_REMOVING = """
import os, sys
from pathlib import Path
from midthought import output_folder
path, number, task = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]

def counted(remove):
    def removes(*words, **named):
        global number
        number -= 1
        if number == 0:
            os._exit(9)
        remove(*words, **named)
    return removes

os.unlink, os.remove, os.rmdir = map(counted, (os.unlink, os.remove, os.rmdir))
if task == "replace":
    with output_folder.replaced(path, "model") as folder:
        (folder / "weights").write_text("second")
        (folder / "more").mkdir()
        (folder / "more/weights").write_text("second")
else:
    output_folder.remove(path)
"""


@pytest.mark.parametrize("task", ["replace", "remove"])
@pytest.mark.parametrize("number", range(1, 8))
def test_a_process_killed_while_it_removes_a_folder_does_not_stop_the_next_one(number, task, tmp_path):
    path = tmp_path / "model"
    with replaced(path, "model") as folder:
        (folder / "weights").write_text("first")
        (folder / "more").mkdir()
        (folder / "more/weights").write_text("first")
    words = [sys.executable, "-c", KILLED_WHILE_REMOVING, str(path), str(number), task]
    subprocess.run(words, check=False, env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)})
    write(path, "third")
    assert (path / "weights").read_text() == "third" and os.listdir(tmp_path) == ["model"]


def test_what_is_not_ours_in_the_way_of_a_replacement_is_named(tmp_path):
    write(tmp_path / "model", "first")
    (tmp_path / ".model.old").mkdir()
    (tmp_path / ".model.old/thesis.tex").write_text("years of work")
    with pytest.raises(OutputPathError, match=r"\.model\.old has files that midthought does not know.*remove it"):
        write(tmp_path / "model", "second")
    assert (tmp_path / "model/weights").read_text() == "first" and (tmp_path / ".model.old/thesis.tex").exists()
