from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from midthought.errors import CheckpointError
from midthought.report.html import write_report
from midthought.report.run_folder import RunFolder
from midthought.report.run_record import choose_lines, is_right, read_run

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
HOSTILE = (
    "</script><script>document.title='taken'</script><!-- <img src=x onerror=\"document.title='taken'\"> ${x} \u2028"
)


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


def hostile_run(path: Path, run_path: Path) -> Path:
    """A run in which every text tries to inject HTML or JavaScript."""
    rows = [json.loads(line) for line in (run_path / "trajectories.jsonl").read_text().splitlines()[:1]]
    for row in rows:
        row.update(question=HOSTILE, answer=HOSTILE, error=HOSTILE, labels={HOSTILE: HOSTILE}, arm=HOSTILE)
        row["spans"] = [{"kind": HOSTILE, "text": HOSTILE, "num_tokens": 3}]
        row["events"] = [{"tool_name": HOSTILE, "parameters": {HOSTILE: HOSTILE}, "outcome": HOSTILE, "metadata": {}}]
    with RunFolder(path) as run:
        run.add_trajectories(rows)
        run.write_config(HOSTILE)
        run.write_summary({HOSTILE: HOSTILE, "after.exact_match": 0.5})
        run.metrics.append([{"stage": HOSTILE, "step": 1, HOSTILE: 1.0}])
        texts = dict.fromkeys(("guard", "subject", "policy", "observation", "action"), HOSTILE)
        run.findings.append([{**texts, "causes": [HOSTILE], "start_step": 1, "step": 1}])
        run.findings.append([{"rollback": {"guard": HOSTILE, "seed": HOSTILE, "settings": {HOSTILE: HOSTILE}}}])
    return path


def dom(page: Path, tmp_path: Path) -> str:
    """The page as Chromium has it after its script ran."""
    if CHROMIUM is None:
        pytest.skip("no chromium binary was found: the page's script was not run")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
    flags += ["--disable-background-networking", "--disable-component-update", "--host-resolver-rules=MAP * ~NOTFOUND"]
    profile = tmp_path / "profile"
    command = [CHROMIUM, *flags, f"--user-data-dir={profile}", "--dump-dom", page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


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
    assert "<b>0.262</b>" in html and "<b>0.843</b>" in html and "+0.581" in html and "Greedy: 0.304 → 0.861." in html
    assert "transcripts: sample  # &lt;script&gt;alert(1)&lt;/script&gt;" in html
    assert "retrieval.recall@1" in html and "Warm-up (SFT)" in html and "Validation" in html
    data = json.loads(Page(html).scripts[0])
    assert len(data["trajectories"]) == 36 and data["trajectories"][0]["arm"] == "before"
    assert len(data["charts"]) == html.count("<figure")
    assert {row["right"] for row in data["trajectories"]} == {True, False}


FINDINGS = [
    {
        "guard": "tool_fails",
        "policy": "warn",
        "observation": "60 % of the calls of 'memory' fail",
        "start_step": 12,
        "step": 14,
        "last_step": 20,
        "causes": ["the tool raises for these arguments", "the policy writes wrong arguments"],
        "action": "read the errors in trajectories.jsonl",
        "subject": "memory",
    },
    {"guard": "spike", "policy": "rollback", "observation": "KL 9", "start_step": 30, "step": 30, "subject": ""},
]
ROLLBACK = {
    "guard": "spike",
    "start_step": 30,
    "to_step": 25,
    "seed": 7919,
    "settings": {"training.learning_rate": 5e-7},
}


def test_the_page_shows_what_the_guards_reported(run_path: Path) -> None:
    assert "No guard reported anything" in write_report(run_path).read_text()
    RunFolder(run_path).findings.append([*FINDINGS, {"rollback": ROLLBACK}, FINDINGS[0]])
    html = write_report(run_path).read_text()
    section = html[html.index('id="findings"') : html.index('id="curves"')]
    texts = [
        "1. tool_fails: memory",
        "since iteration 12, reported after iteration 14, policy warn",
        "60 % of the calls of &#39;memory&#39; fail.",
        "the tool raises for these arguments",
        "the policy writes wrong arguments",
        "read the errors in trajectories.jsonl.",
        "2. spike",
        "3. rollback because of spike",
        "iteration 25, with sampling seed 7919, training.learning_rate=5e-07",
    ]
    places = [section.index(text) for text in texts]
    assert places == sorted(places)
    assert section.count("tool_fails") == 1  # a resumed run reported it again


def test_curves_of_iterations_mark_where_a_finding_starts(run_path: Path) -> None:
    RunFolder(run_path).findings.append([*FINDINGS, {**FINDINGS[1], "guard": "truncated"}])
    html = write_report(run_path).read_text()
    figures = html.split("<figure")[1:]
    reward, warm_up = (next(each for each in figures if f"<b>{title}</b>" in each) for title in ("Reward", "Loss"))
    assert re.findall(r'<text class="mark"[^>]*>([^<]*)<title>([^<]*)', reward) == [
        ("1", "Finding 1 starts in iteration 12"),
        ("2, 3", "Finding 2, 3 starts in iteration 30"),
    ]
    (x,) = re.findall(r'<line class="mark" x1="([0-9.]+)"[^>]*/><text[^>]*>1<', reward)
    assert float(x) == pytest.approx(50 + (12 - 1) / (40 - 1) * (402 - 50), abs=0.06)  # steps 1 to 40, pixels 50 to 402
    assert 'class="mark"' not in warm_up


def test_foreign_text_stays_text(run_path: Path, tmp_path: Path) -> None:
    plain = Page(write_report(run_path).read_text())
    html = write_report(hostile_run(tmp_path / "run", run_path)).read_text()
    page = Page(html)
    assert page.count("script") == plain.count("script") == 2 and page.count("img") == 0
    assert "<!--" not in html and page.scripts[1] == plain.scripts[1]
    assert json.loads(page.scripts[0])["trajectories"][0]["spans"][0]["text"] == HOSTILE


def test_the_page_can_be_written_at_every_point_of_a_run(tmp_path: Path, run_path: Path) -> None:
    for names in (["config.yaml"], ["metrics.jsonl"], ["trajectories.jsonl"], ["summary.json"]):
        part = tmp_path / names[0]
        part.mkdir()
        for name in names:
            shutil.copy(run_path / name, part)
        html = write_report(part).read_text()
        assert ("has not been evaluated yet" in html) == ("summary.json" not in names)
        assert ("Nothing has been logged yet" in html) == ("metrics.jsonl" not in names)
        assert ("No episode has been written yet" in html) == ("trajectories.jsonl" not in names)


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"is not a run folder: none of config\.yaml"):
        write_report(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_broken_summary_is_named(run_path: Path) -> None:
    (run_path / "summary.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"summary\.json: not JSON"):
        write_report(run_path)


def test_a_page_holds_so_many_trajectories_and_whole_pairs_first(make_run: Callable[..., Path], tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run", num_steps=3, num_tasks=30), max_trajectories=30)
    assert len(run.trajectories) == 30 and run.num_trajectories == 90
    arms: dict[str, set[str]] = {}
    for row in run.trajectories:
        arms.setdefault(row["task_id"], set()).add(row["arm"])
    assert set(map(frozenset, arms.values())) == {frozenset({"before", "after", "after.tool_off"})}
    assert list(arms) == [f"who-{number:03d}" for number in range(0, 30, 3)]


def test_training_episodes_fill_what_pairs_leave() -> None:
    keys = [("a", "train"), ("b", "before"), ("c", "train"), ("b", "after"), ("d", "train")]
    assert choose_lines(keys, 4) == [0, 1, 2, 3]
    assert choose_lines(keys, 9) == [0, 1, 2, 3, 4]
    assert choose_lines(keys, 1) == [1]
    assert choose_lines([], 5) == []


def test_whether_an_answer_was_right_is_said_or_read_from_the_reward_or_unknown() -> None:
    assert is_right({"exact_match": False, "reward": {"parts": {"correct": 1.0}}}) is False
    assert is_right({"exact_match": None, "reward": {"parts": {"format": 0.1, "correct": 1.0}}}) is True
    assert is_right({"reward": None}) is None


def test_in_a_browser_the_script_shows_rows_filters_and_reads_curves(run_path: Path, tmp_path: Path) -> None:
    RunFolder(run_path).findings.append(FINDINGS)
    page = write_report(run_path)
    probe = """<script>{
      const said = [], count = document.getElementById("count");
      const filter = (answer, text) => {
        form.elements.answer.value = answer;
        form.elements.text.value = text;
        form.dispatchEvent(new Event("input"));
        said.push(count.textContent);
      };
      filter("", ""); filter("gained", ""); filter("", "runs 7 minutes"); said.push(detail.textContent);
      document.querySelector(".chart svg").dispatchEvent(new KeyboardEvent("keydown", { key: "Home" }));
      said.push(document.querySelector(".chart output").textContent);
      const item = document.querySelector("#finding-1"), mark = document.querySelector("text.mark");
      const visible = (element) => element.getBoundingClientRect().width > 0;
      said.push([visible(item), visible(mark), getComputedStyle(item).borderLeftWidth, mark.firstChild.textContent]);
      document.body.append(make("pre", { id: "probe" }, JSON.stringify(said)));
    }</script></body>"""
    html = re.sub(r"<meta http-equiv[^>]*>", "", page.read_text()).replace("</body>", probe)
    probed = tmp_path / "probed.html"
    probed.write_text(html)
    shown = dom(probed, tmp_path)
    (said,) = re.findall(r'<pre id="probe">(.*?)</pre>', shown)
    everything, gained, searched, detail, read_out, finding = json.loads(said)
    assert finding == [True, True, "3px", "1"]
    rows = json.loads(Page(html).scripts[0])["trajectories"]
    right = {(row["task_id"], row["arm"]): row["right"] for row in rows}
    num_gained = sum(right[task, "after"] and not right[task, "before"] for task, arm in right if arm == "after")
    assert (everything, gained) == ("12 of 12 questions in after", f"{num_gained} of 12 questions in after")
    assert 0 < num_gained < 12
    assert searched == "1 of 12 questions in after" and read_out.startswith("step 1: ")
    assert "I think I know this one." in detail and "calls0" in detail and "null" not in detail
    panels = re.findall(r'<article class="panel">(.*?)</article>', shown, re.DOTALL)
    assert len(panels) == 2 and 'class="span tool"' in panels[1] and "#call memory" in panels[1]


def test_in_a_browser_foreign_text_stays_text(run_path: Path, tmp_path: Path) -> None:
    shown = dom(write_report(hostile_run(tmp_path / "run", run_path)), tmp_path)
    page = Page(shown)
    assert "<title>run · midthought</title>" in shown
    assert page.count("script") == 2 and page.count("img") == 0
    assert '<div class="text">&lt;/script&gt;&lt;script&gt;document.title=' in shown
    assert "1 of 1 questions" in shown


def test_doubtful_transcripts_are_listed_once(run_path):
    row = {"transcript": {"path": "talks/a.txt", "confidence": 0.63, "doubts": ["every speaker label occurs once"]}}
    RunFolder(run_path).findings.append([row, row])
    page = write_report(run_path).read_text()
    assert page.count("doubtful transcript: talks/a.txt") == 1 and "every speaker label occurs once" in page
