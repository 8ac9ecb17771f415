"""Errors of file systems, as the libraries that write files raise them, become one sentence."""

import errno
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from midthought.errors import SettingsError, StorageError
from midthought.files.regular import THEN_RESUME, atomic_path, storage_error, storage_errors


def write_to_full_device(_: Path) -> None:
    with open("/dev/full", "wb", buffering=0) as file:
        file.write(b"x")


def save_tensors(folder: Path) -> None:
    save_file({"x": torch.zeros(2)}, folder / "gone/x.safetensors")


def save_tokenizer(folder: Path) -> None:
    Tokenizer(WordLevel({"a": 0}, unk_token="a")).save(str(folder / "gone/tokenizer.json"))


def write_table(folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as parquet

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
    def write_long_name(partial: Path) -> None:
        partial.write_text("x")

    for name, write in (("x.jsonl", write_to_full_device), ("x" * 250, write_long_name)):
        with pytest.raises(OSError) as caught, atomic_path(tmp_path / name) as partial:
            write(partial)
        assert str(storage_error(caught.value)).startswith(f"{tmp_path / name}: ") and not list(tmp_path.iterdir())
    with pytest.raises(OSError) as caught, atomic_path(tmp_path / "x"):
        (tmp_path / "other").read_text()
    assert caught.value.filename == str(tmp_path / "other")
