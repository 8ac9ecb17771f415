import base64
import gzip
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from midthought.config import Change, RecipeConfig
from midthought.errors import CheckpointError
from midthought.report.html import write_report
from midthought.report.recorded_episodes import QUANTITIES
from midthought.report.run_folder import RunFolder


class Page(HTMLParser):
    """Elements of a page with their attributes, and the text of each script."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.lasttag == "script" and self.scripts:
            self.scripts[-1] += data

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.elements)


def packed(page: str, name: str) -> Any:
    """The JSON of a compressed script of the page."""
    (text,) = re.findall(f'<script type="text/plain" id="{name}">([^<]*)</script>', page)
    return json.loads(gzip.decompress(base64.b64decode(text)))


def test_the_page_loads_nothing_from_outside(run_path: Path) -> None:
    html = write_report(run_path).read_text()
    page = Page(html)
    for tag, attributes in page.elements:
        for name in ("src", "href", "srcset", "data", "action"):
            target = attributes.get(name)
            assert target is None or target.startswith("#") or target == "data:,", (tag, target)
    assert not re.search(r"url\((?!#)|@import|https?:|//[a-z]+\.", html.replace(page.scripts[0], "").replace("// ", ""))
    assert "default-src 'none'" in html and "script-src 'sha256-" in html


def test_the_page_shows_the_run(run_path: Path) -> None:
    html = write_report(run_path).read_text()
    assert "<title>demo-seed-1 · midthought</title>" in html
    assert "<b>0.262</b>" in html and "<b>0.843</b>" in html and "+0.581" in html
    assert "transcripts: sample  # &lt;script&gt;alert(1)&lt;/script&gt;" in html
    assert "retrieval.recall@1" in html and "Warm-up (SFT)" in html and "Validation" in html
    data = json.loads(Page(html).scripts[0])
    assert len(data["charts"]) == html.count("<figure")
    index, rows = packed(html, "index"), packed(html, "texts-0")
    assert len(rows) == 36 and "36 episodes. None has the values of its tokens" in html
    assert {index["arms"][arm] for arm in index["columns"]["arm"]} == {"before", "after", "after.tool_off"}
    assert set(index["columns"]["right"]) == {True, False}


FINDINGS = [
    {
        "check": "tool_fails",
        "policy": "warn",
        "observation": "60 % of the calls of 'memory' fail",
        "start_step": 12,
        "step": 14,
        "action": "read the errors in trajectories.jsonl",
        "subject": "memory",
    },
    {"check": "spike", "policy": "stop", "observation": "KL 9", "start_step": 30, "step": 30, "subject": ""},
]


def test_the_page_shows_what_the_checks_found(run_path: Path) -> None:
    assert "No check found anything" in write_report(run_path).read_text()
    RunFolder(run_path).findings.append([*FINDINGS, FINDINGS[0]])
    html = write_report(run_path).read_text()
    section = html[html.index('id="findings"') : html.index('id="curves"')]
    texts = [
        "1. tool_fails: memory",
        "since iteration 12, reported after iteration 14, policy warn",
        "60 % of the calls of &#39;memory&#39; fail.",
        "read the errors in trajectories.jsonl.",
        "2. spike",
    ]
    places = [section.index(text) for text in texts]
    assert places == sorted(places)
    assert section.count("tool_fails") == 1  # a resumed run reported it again


def test_the_page_shows_how_the_run_was_started(run_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/usr/bin/midthought", "train", "podcast", "memory.transcripts=my talks"])
    with RunFolder(run_path) as run:
        run.record_settings(RecipeConfig(), [], "beginning", 0)
        change = Change("training.clip_ratio", 0.2, 0.1, is_harmless=False)
        run.record_settings(RecipeConfig(), [change], "ppo", 7)
    html = write_report(run_path).read_text()
    assert "midthought train podcast &#39;memory.transcripts=my talks&#39;" in html
    assert re.search(r"torch <b>\d", html) and re.search(r"python <b>\d", html)
    assert "at step 7 of ppo" in html and "<code>training.clip_ratio</code>: 0.2 → 0.1" in html


def test_the_page_can_be_written_at_every_point_of_a_run(tmp_path: Path, run_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"is not a run folder: none of config\.yaml"):
        write_report(tmp_path)
    for name in ("config.yaml", "metrics.jsonl", "trajectories.jsonl", "summary.json"):
        part = tmp_path / name
        part.mkdir()
        shutil.copy(run_path / name, part)
        html = write_report(part).read_text()
        assert ("has not been evaluated yet" in html) == (name != "summary.json")
        assert ("Nothing has been logged yet" in html) == (name != "metrics.jsonl")
        assert ("No episode has been written yet" in html) == (name != "trajectories.jsonl")
    (run_path / "summary.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"summary\.json: not JSON"):
        write_report(run_path)


def test_the_documentation_lists_the_quantities_of_a_token() -> None:
    page = (Path(__file__).parents[2] / "docs" / "runs.md").read_text("utf-8")
    assert [f"| {each.label} | {each.meaning} |" in page for each in QUANTITIES] == [True] * len(QUANTITIES)
