"""The report with 5,000 recorded episodes: first paint within 1 s, every interaction within 100 ms (issue 26)."""

import shutil
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


def test_a_page_of_5000_episodes_opens_and_answers_at_once(tmp_path: Path) -> None:
    pytest.importorskip("playwright", reason="the dev extra is not installed")
    if shutil.which("chromium") is None:
        pytest.skip("no chromium binary was found")
    from benchmarks.report_page import INTERACTIONS, measure, write_run
    from midthought.report.html import write_report

    page = write_report(write_run(tmp_path / "run", 5_000, num_policy_tokens=80))
    assert page.stat().st_size <= 21 * 2**20
    found = measure(page)
    assert found["episodes"] == 5_000
    assert found["first paint"] <= 1_000, found
    assert max(found[name] for name in INTERACTIONS) <= 100, found
