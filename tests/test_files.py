"""A file is written atomically and flushed, and never in place of a pipe, socket or device. Errors of file systems, as the
libraries that write files raise them, become one sentence. The other tests do not flush (conftest.py)."""

import errno
import os
import socket
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from pyarrow import parquet
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from midthought.errors import OutputPathError, SettingsError, StorageError
from midthought.files.output_folder import replaced
from midthought.files.regular import THEN_RESUME, atomic_path, storage_error, storage_errors
from midthought.report.json_lines import JsonLines
from midthought.report.run_folder import write_whole


@pytest.mark.parametrize(
    ("kind", "words"), [("pipe", "a named pipe"), ("link", "a named pipe"), ("socket", "a socket")]
)
def test_a_file_does_not_replace_a_special_file(kind, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the address of a socket has at most 107 bytes
    if kind == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("out")
    else:
        os.mkfifo("out" if kind == "pipe" else "elsewhere")
        if kind == "link":
            Path("out").symlink_to("elsewhere")
    before = {path.name: path.lstat().st_mode for path in tmp_path.iterdir()}
    message = f"out is {words}, and a file would replace it; give the path of a file"
    with pytest.raises(OutputPathError, match=message), atomic_path(tmp_path / "out") as partial:
        partial.write_text("new")
    assert {path.name: path.lstat().st_mode for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_is_replaced_and_the_file_to_which_it_leads_stays(exists, tmp_path):
    if exists:
        (tmp_path / "elsewhere").write_text("old")
    (tmp_path / "out").symlink_to("elsewhere")
    with atomic_path(tmp_path / "out") as partial:
        partial.write_text("new")
    assert (tmp_path / "out").read_text() == "new" and not (tmp_path / "out").is_symlink()
    assert (tmp_path / "elsewhere").exists() == exists
    assert not exists or (tmp_path / "elsewhere").read_text() == "old"


# -- errors ----------------------------------------------------------------------------------------------------------


def write_to_full_device(_: Path) -> None:
    with open("/dev/full", "wb", buffering=0) as file:
        file.write(b"x")


def save_tensors(folder: Path) -> None:
    save_file({"x": torch.zeros(2)}, folder / "gone/x.safetensors")


def save_tokenizer(folder: Path) -> None:
    Tokenizer(WordLevel({"a": 0}, unk_token="a")).save(str(folder / "gone/tokenizer.json"))


def write_table(folder: Path) -> None:
    parquet.write_table(pa.table({"x": [1]}), folder / "gone/x.parquet")


def write_below_a_file(folder: Path) -> None:
    (folder / "file").write_text("x")
    (folder / "file/inner").write_text("x")


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (write_to_full_device, "no space is left on the device; free some space there"),
        (save_tensors, "there is no such file or folder; check that its disk is mounted"),
        (save_tokenizer, "there is no such file or folder"),
        (write_table, "there is no such file or folder"),
        (write_below_a_file, "a part of the path is a file, not a folder; move that file"),
        (lambda folder: folder.read_bytes(), "it is a folder, not a file"),
    ],
)
def test_an_error_of_any_library_has_the_path_the_cause_and_the_remedy(write, words, tmp_path):
    with pytest.raises(Exception) as caught:
        write(tmp_path)
    message = str(storage_error(caught.value))
    assert words in message and "\n" not in message
    if write is not write_to_full_device and isinstance(caught.value, OSError) and caught.value.filename:
        assert str(tmp_path) in message


def test_the_errors_of_a_run_folder_say_how_to_continue(tmp_path):
    with pytest.raises(StorageError) as caught, storage_errors(tmp_path, THEN_RESUME):
        write_to_full_device(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}: no space is left on the device; free some space there; then continue with --resume (resume=True): what "
        "was saved before is intact"
    )


@pytest.mark.parametrize(
    "error",
    [FileNotFoundError(errno.ENOENT, "No such file", "/elsewhere/mine.csv"), ValueError("x"), SettingsError("y")],
)
def test_other_errors_and_those_of_other_folders_stay_what_they_are(error, tmp_path):
    with pytest.raises(type(error)) as caught, storage_errors(tmp_path):
        raise error
    assert caught.value is error


def test_an_atomic_write_that_fails_has_the_path_that_was_given(tmp_path):
    for name, write in (("x.jsonl", write_to_full_device), ("x" * 250, lambda partial: partial.write_text("x"))):
        with pytest.raises(OSError) as caught, atomic_path(tmp_path / name) as partial:
            write(partial)
        assert str(storage_error(caught.value)).startswith(f"{tmp_path / name}: ") and not list(tmp_path.iterdir())
    with pytest.raises(OSError) as caught, atomic_path(tmp_path / "x"):
        (tmp_path / "other").read_text()
    assert caught.value.filename == str(tmp_path / "other")


# -- flushed ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[int, bool]]:
    """Name of each flushed file or folder -> its size then, and whether anything was named `target` by then."""
    if not Path("/proc/self/fd").is_dir():
        pytest.skip("needs Linux")
    found: dict[str, tuple[int, bool]] = {}

    def fsync(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        found[path.name] = (os.fstat(descriptor).st_size, any(each.name == "target" for each in path.parents))

    monkeypatch.setattr(os, "fsync", fsync)
    return found


def test_the_files_of_a_folder_are_flushed_before_it_gets_its_name_and_then_the_folder_above(tmp_path, flushed):
    with replaced(tmp_path / "target", "model") as folder:
        (folder / "weights").write_bytes(b"12345")
        (folder / "inner").mkdir()
        (folder / "inner" / "config").write_bytes(b"123")
    assert flushed["weights"] == (5, False) and flushed["config"] == (3, False)
    assert {"inner", tmp_path.name} <= set(flushed) and (tmp_path / "target" / "weights").exists()


def test_a_whole_file_is_flushed_under_its_temporary_name_and_lines_on_request(tmp_path, flushed):
    lines = JsonLines(tmp_path / "lines")
    lines.append([{"a": 1}])
    write_whole(tmp_path / "target", "12345")
    ((name, (size, _)),) = flushed.items()
    assert name not in ("target", "lines") and size == 5
    lines.flush()
    assert flushed["lines"][0] == (tmp_path / "lines").stat().st_size > 0
