"""The ten questions of docs/runs.md about a run that fails, each answered on the page in at most three clicks.

A choice in a list is two clicks: one opens the list. Scrolling, pointing and reading are none.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser_page import inspected, listed, until
from invented_runs import CONFIG, an_episode, record

from midthought.report.html import write_report
from midthought.report.run_folder import RunFolder
from midthought.types import StopReason, ToolOutcome

STOPS_CALLING = 5
LAST = 8


def fill_failing_run(path: Path) -> Path:
    """From iteration 5 on the policy guesses instead of calling its tool."""
    finding = {"check": "calls_vanish", "policy": "warn", "observation": "no calls", "start_step": 5, "step": 7}
    with RunFolder(path).create() as run:
        run.write_file("config.yaml", CONFIG)
        run.findings.append([finding])
        for step in range(1, LAST + 1):
            run.log("ppo", step, metrics(step, calls=step < STOPS_CALLING))
        for step in (1, 4, STOPS_CALLING, LAST):
            calls = step < STOPS_CALLING
            samples = [(task, calls, sample == 0 and (calls or task == 1)) for task in range(3) for sample in range(4)]
            episodes = [an_episode(task, calls=calls, right=right) for task, calls, right in samples]
            record(run, "train", step, episodes, [right for *_, right in samples], numbers_of(step))
        before = [an_episode(task, calls=True, right=True) for task in range(4)]
        after = [
            an_episode(0, calls=False, right=False),
            an_episode(1, calls=False, right=True),
            an_episode(2, calls=True, right=False, outcome=ToolOutcome.TIMED_OUT),
            an_episode(3, calls=False, right=False, stop=StopReason.LENGTH),
        ]
        record(run, "before.sampled", 0, before, [True] * 4, numbers_of(0))
        record(run, "after.sampled", LAST, after, [False, True, False, False], numbers_of(LAST))
    return path


def metrics(step: int, *, calls: bool) -> dict[str, float]:
    return {
        "reward/mean": 0.9 if calls else 0.3,
        "reward/correct": 0.85 if calls else 0.2,
        "reward/call_cost": -0.05 if calls else 0.0,
        "reward/format": 0.1,
        "episode/calls": float(calls),
        "episode/answered": 1.0 if calls else 0.75,
        "episode/length": 0.0 if calls else 0.25,
        "logprob_difference_mean": 0.5 if step == 4 else 1e-6,
        "kl_reference": 0.01 * step,
        "entropy": 1.0 - 0.12 * step,
    }


def numbers_of(step: int) -> Callable[[str, int, bool], Any]:
    """Right answers have the advantage 1, others -1. Engine and learner disagree by 0.5 nats at the end of iteration 4."""

    def numbers(column: str, length: int, right: bool) -> Any:
        values = np.full(length, -0.1)
        if column == "advantages":
            values[:] = 1.0 if right else -1.0
        elif column == "logprobs" and step == 4:
            values[-1] = -0.6
        elif column == "reference_logprobs":
            values[-1] = -0.1 * step
        elif column == "entropies":
            values[:] = 0.01 if step == LAST else 1.0
        return values

    return numbers


def number(text: str) -> float:
    return float(text.replace("−", "-"))


class Reader:
    """A person at the page, whose clicks are counted."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.num_clicks = 0

    def click(self, target: Any, **where: Any) -> None:
        target.click(**where)
        self.num_clicks += 1

    def choose(self, label: str, choice: str) -> None:
        self.page.locator("label", has_text=re.compile(f"^{label} ")).locator("select").select_option(label=choice)
        self.num_clicks += 2

    def go_to(self, section: str) -> None:
        self.click(self.page.get_by_role("navigation").get_by_role("link", name=section))

    def chart(self, title: str) -> Any:
        return self.page.locator("figure.chart", has=self.page.locator("b", has_text=re.compile(f"^{title}$"))).first

    def place(self, title: str, step: int) -> dict[str, float]:
        """The position of a step in the chart, in pixels from the corner of its picture."""
        chart = self.page.evaluate("(number) => DATA.charts[number]", self.chart(title).get_attribute("data-chart"))
        box = self.chart(title).locator("svg").bounding_box()
        share = (step - chart["low"]) / (chart["high"] - chart["low"])
        x = chart["left"] + share * (chart["right"] - chart["left"])
        return {"x": x / chart["width"] * box["width"], "y": box["height"] / 2}

    def values(self, title: str, step: int) -> dict[str, float]:
        """What the chart says if the pointer is at a step."""
        self.chart(title).locator("svg").hover(position=self.place(title, step))
        beside = self.chart(title).locator(".legend li").all_inner_texts()
        read = beside or [f"{title} {self.chart(title).locator('output').inner_text().split(': ')[1]}"]
        return {label: number(value) for label, value in (each.rsplit(" ", 1) for each in read)}

    def pick(self, title: str, step: int) -> None:
        """A click on a point of a curve."""
        self.click(self.chart(title).locator("svg"), position=self.place(title, step))
        until(
            self.page, f"shown.rows[0]?.arm === 'train' && shown.rows[0].step === {step} && detail.querySelector('.t')"
        )

    def listed(self) -> list[str]:
        return listed(self.page)

    def detail(self) -> str:
        return self.page.locator("#detail").inner_text()

    def point_at_token(self, selector: str, place: int = -1) -> dict[str, str]:
        """The values that the page shows of a token."""
        tokens = self.page.locator(f"#detail {selector}")
        tokens.nth(place % tokens.count()).hover()
        return inspected(self.page)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(fill_failing_run(tmp_path_factory.mktemp("failing") / "run"))


@pytest.fixture(scope="module")
def page(open_page: Callable[..., Any], report: Path) -> Any:
    return open_page(report)


@pytest.fixture
def reader(page: Any, report: Path) -> Iterator[Reader]:
    """The newly opened page. At most three clicks answer a question."""
    page.goto("about:blank")
    page.goto(report.as_uri())
    until(page, "performance.getEntriesByName('ready').length")
    reader = Reader(page)
    yield reader
    assert 1 <= reader.num_clicks <= 3


def test_which_part_of_the_reward_moved(reader: Reader) -> None:
    reader.go_to("Curves")
    first, last = reader.values("Reward by part", 1), reader.values("Reward by part", LAST)
    moved = {part: round(last[part] - first[part], 2) for part in first}
    assert moved == {"correct": -0.65, "call cost": 0.05, "format": 0.0}


def test_when_did_the_policy_stop_calling_its_tool_and_what_did_it_do_instead(reader: Reader) -> None:
    reader.go_to("Curves")
    calls = [reader.values("Calls per episode", step)["Calls per episode"] for step in range(1, LAST + 1)]
    assert calls.index(0.0) + 1 == STOPS_CALLING
    reader.pick("Calls per episode", STOPS_CALLING)
    assert len(reader.listed()) == 12
    assert "I think I know this one." in reader.detail() and "#call" not in reader.detail()


def test_which_tokens_were_pushed_down(reader: Reader) -> None:
    reader.pick("Reward", STOPS_CALLING)
    reader.choose("Sort by", "lowest reward")
    until(reader.page, "detail.querySelector('.t.minus')")
    text = "".join(reader.page.locator("#detail .t.minus").all_inner_texts())
    assert "So it was Bram Oster." in text.replace("\n", "") and reader.page.locator("#detail .t.plus").count() == 0
    assert reader.point_at_token(".t.minus")["advantage"] == "−1"


def test_what_did_the_samples_of_a_prompt_do_differently(reader: Reader) -> None:
    reader.pick("Reward", STOPS_CALLING)  # the prompt whose samples differ most is the first
    reader.click(reader.page.get_by_role("tab", name="Samples of this prompt"))
    until(reader.page, "detail.querySelectorAll('.sample').length === 4")
    answers = reader.page.locator(".sample .tokens").all_text_contents()
    assert ["Bram" in answer for answer in answers] == [True, False, False, False]
    assert ["Cleo" in answer for answer in answers] == [False, True, True, True]


def test_which_answers_were_right_before_and_are_wrong_now(reader: Reader) -> None:
    reader.choose("Answer", "right → wrong since before")
    assert reader.listed() == [f"after.sampled {LAST} who-00{task}" for task in (0, 2, 3)]
    reader.click(reader.page.get_by_role("tab", name="Differences"))
    until(reader.page, "detail.querySelector('.diff')")
    removed, added = (
        "".join(reader.page.locator(f".diff {kind}").all_inner_texts()).replace("\n", "") for kind in ("del", "ins")
    )
    assert "#call" in removed and "#call" not in added


def test_why_do_episodes_end_early(reader: Reader) -> None:
    reader.go_to("Curves")
    assert reader.values("How episodes end", LAST) == {"answered": 0.75, "length": 0.25}
    reader.choose("Ended", "length")
    assert reader.listed() == [f"after.sampled {LAST} who-003"]


def test_which_calls_fail(reader: Reader) -> None:
    reader.choose("Tool", "a call failed")
    assert reader.listed() == [f"after.sampled {LAST} who-002"]
    call = reader.page.locator(".events li").inner_text()
    assert "timed_out" in call and "12.3 ms" in call and '"query"' in call


def test_do_engine_and_learner_compute_the_same_probabilities(reader: Reader) -> None:
    title = "Sampled − recomputed log-probability"
    differences = [reader.values(title, step)[title] for step in range(1, LAST + 1)]
    assert differences.index(max(differences)) + 1 == 4
    reader.pick(title, 4)
    reader.choose("Color tokens by", "recomputed − sampled")
    assert number(reader.point_at_token(".t.minus")["recomputed − sampled"]) == pytest.approx(-0.5)


@pytest.mark.parametrize(
    ("curve", "quantity", "token", "value"),
    [("KL to the reference model", "policy − reference", ".t.plus", 0.7), ("Entropy", "entropy", ".policy .t", 0.01)],
    ids=["where has the policy left the reference", "where is it sure of everything"],
)
def test_a_point_of_a_curve_leads_to_the_tokens(
    reader: Reader, curve: str, quantity: str, token: str, value: float
) -> None:
    reader.pick(curve, LAST)
    reader.choose("Color tokens by", quantity)
    assert number(reader.point_at_token(token)[quantity]) == pytest.approx(value)


def test_what_did_a_check_report_and_which_episodes_show_it(reader: Reader) -> None:
    reader.go_to("Findings")
    assert "no calls" in reader.page.locator("#findings").inner_text()
    reader.click(reader.page.get_by_role("button", name="Episodes of iteration 5"))
    assert {each.rsplit(" ", 1)[0] for each in reader.listed()} == {"train 5"}
