"""What must survive a loss of power is flushed to disk before it gets its name. The other tests do not flush (conftest.py)."""

import os
from pathlib import Path

import pytest

from midthought.files.output_folder import replaced
from midthought.report.json_lines import JsonLines
from midthought.report.run_folder import write_whole


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[int, bool]]:
    """Name of each flushed file or folder -> its size then, and whether anything was named `target` by then."""
    found: dict[str, tuple[int, bool]] = {}

    def fsync(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        found[path.name] = (os.fstat(descriptor).st_size, any(each.name == "target" for each in path.parents))

    monkeypatch.setattr(os, "fsync", fsync)
    return found


pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs Linux")


def test_the_files_of_a_folder_are_flushed_before_it_gets_its_name_and_then_the_folder_above(tmp_path, flushed):
    with replaced(tmp_path / "target", "model") as folder:
        (folder / "weights").write_bytes(b"12345")
        (folder / "inner").mkdir()
        (folder / "inner" / "config").write_bytes(b"123")
    assert flushed["weights"] == (5, False) and flushed["config"] == (3, False)
    assert {"inner", tmp_path.name} <= set(flushed) and (tmp_path / "target" / "weights").exists()


def test_a_whole_file_is_flushed_under_its_temporary_name(tmp_path, flushed):
    write_whole(tmp_path / "target", "12345")
    ((name, (size, _)),) = flushed.items()
    assert name != "target" and size == 5


def test_lines_are_flushed_on_request(tmp_path, flushed):
    lines = JsonLines(tmp_path / "lines")
    lines.append([{"a": 1}])
    assert not flushed
    lines.flush()
    assert flushed["lines"][0] == (tmp_path / "lines").stat().st_size > 0
