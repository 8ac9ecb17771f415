"""The pictures of the documentation, which `make pictures` writes."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.report_pictures import take
from midthought.report.html import write_report


def test_a_run_may_be_named_by_a_relative_path(browser: Any, run_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run_path.parent)
    take(browser, write_report(Path(run_path.name)), Path(), ["report"])
    assert Path("report.png").read_bytes().startswith(b"\x89PNG")
