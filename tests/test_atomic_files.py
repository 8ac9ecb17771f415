"""A file is written atomically, and never in place of a pipe, socket or device."""

import os
import socket
from pathlib import Path

import pytest

from midthought.errors import OutputPathError
from midthought.files.regular import atomic_path


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_link_to_pipe(path: Path) -> None:
    os.mkfifo(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(path))  # an address has at most 107 bytes


@pytest.mark.parametrize(
    ("make", "kind"), [(make_pipe, "a named pipe"), (make_link_to_pipe, "a named pipe"), (make_socket, "a socket")]
)
def test_a_file_does_not_replace_a_special_file(make, kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "out"
    make(out)
    before = {path.name: path.lstat().st_mode for path in tmp_path.iterdir()}
    with (
        pytest.raises(OutputPathError, match=f"out is {kind}, and a file would replace it; give the path of a file"),
        atomic_path(out) as partial,
    ):
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
