"""The page's script in a real browser. One browser and one page of a recorded run are shared by all tests of this file."""

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser_page import inspected, listed, until

from midthought.report.html import write_report
from midthought.report.recorded_episodes import QUANTITIES, RecordedSegment, read_recording
from midthought.report.run_folder import RunFolder

HOSTILE = (
    "</script><script>document.title='taken'</script><!-- <img src=x onerror=\"document.title='taken'\"> ${x} \u2028"
    "\u202eright to left \u0000\u001b[31m שלום"
)
TOKENS_OF = """async (number) => { const row = await episode(number); return Array.from(
  {length: row.tokens.count}, (_, token) => DATA.quantities.map((quantity) => valueAt(row.tokens, quantity, token) ?? null)); }"""


@pytest.fixture(scope="module")
def report(recorded_run: Path) -> Path:
    return write_report(recorded_run)


@pytest.fixture(scope="module")
def page(open_page: Callable[..., Any], report: Path) -> Any:
    return open_page(report)


def go(page: Any, address: str) -> None:
    """Follows a deep link within the page, and waits until the episode is shown."""
    page.evaluate("(address) => apply(Object.fromEntries(new URLSearchParams(address)))", address)


def test_every_token_has_the_values_of_the_recording(page: Any, recorded_run: Path) -> None:
    expected = [
        [values_of(segment, place) for segment in each.segments or () for place in range(len(segment))]
        for each in sorted(read_recording(recorded_run), key=lambda each: (each.arm == "train", each.step))
    ]
    numbers = page.evaluate("all().filter((number) => EPISODES.recorded[number])")
    assert len(numbers) == len(expected) == 48
    for number, tokens in zip(numbers[::4], expected[::4], strict=True):  # of each arm and iteration
        assert page.evaluate(TOKENS_OF, number) == tokens


def values_of(segment: RecordedSegment, place: int) -> list[Any]:
    own = {"token_id": int(segment.token_ids[place]), "text": segment.texts[place], "author": segment.authors[place]}
    own["in_loss"] = int(segment.in_loss[place])
    own["policy_version"] = int(segment.policy_versions[place]) if own["author"] == "policy" else None
    numbers = {name: np.float64(column[place]) for name, column in segment.columns.items()}
    for each in QUANTITIES:
        if each.column:
            value = numbers[each.column] - (numbers[each.minus] if each.minus else 0.0)
            own[each.name] = None if math.isnan(value) else float(value)
    return [own[each.name] for each in QUANTITIES]


def test_pointing_at_a_token_shows_its_values_and_the_address_leads_back_to_it(
    page: Any, open_page: Any, report: Path
) -> None:
    go(page, "arm=train&step=2&color=entropy")
    page.locator(".span.policy .t").nth(3).hover()
    shown = inspected(page)
    assert shown["author"] == "policy" and shown["mask"] == "in the loss"
    assert {"id", "advantage", "ratio", "value", "entropy", "log-probability, reference"} <= shown.keys()
    page.locator(".span.policy .t").nth(3).click()
    until(page, "location.hash.includes('token=')")
    address = page.evaluate("location.hash")
    assert "color=entropy" in address
    again = open_page(report, address)
    assert inspected(again) == shown
    assert again.evaluate("colors.querySelector('select').value") == "entropy"
    again.close()


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ("arm=train&step=2&answer=right", [f"train 2 who-00{n}" for n in range(3) for _ in range(2)]),
        ("arm=after.sampled&answer=gained", ["after.sampled 0 who-001", "after.sampled 0 who-002"]),
        ("arm=before.sampled&tool=silent", [f"before.sampled 0 who-00{n}" for n in (1, 2, 3)]),
        ("arm=train&step=3&low=1.1", [f"train 3 who-00{n}" for n in range(3)]),  # right without a call
        ("arm=evaluation&answer=lost", []),
        ("arm=validation&text=runs 3 minutes", ["validation 2 who-003"]),
        ("arm=validation&text=i think i know&tool=silent", ["validation 2 who-002", "validation 2 who-003"]),
    ],
)
def test_filters(page: Any, filters: str, expected: list[str]) -> None:
    go(page, filters)
    until(page, "!form.elements.text.value || searchTexts")
    until(page, f"listed.numbers.length === {len(expected)}")
    assert listed(page) == expected


def test_samples_of_a_prompt_start_where_they_diverge(page: Any) -> None:
    go(page, "arm=train&step=1&view=samples")
    assert page.locator(".sample").count() == 4
    shared, texts = page.evaluate("""(async () => {
        const rows = await Promise.all(samplesOf(shown.number).map(episode));
        return [Number(detail.querySelector('#view .support').textContent.match(/first ([0-9,]+)/)[1].replace(',', '')),
                rows.map((row) => row.tokens.texts)];
    })()""")
    assert len({tuple(text[:shared]) for text in texts}) == 1 < len({text[shared] for text in texts})
    firsts = page.evaluate(
        "[...detail.querySelectorAll('.sample')].map((column) => placeOf.get(column.querySelector('.t')).token)"
    )
    assert set(firsts) == {shared}
    page.locator(".sample").nth(2).locator("header button").click()
    until(page, "shown.view === 'episode' && !detail.querySelector('.sample')")
    assert page.evaluate("samplesOf(shown.number).indexOf(shown.number)") == 2


def test_the_same_prompt_is_compared_across_iterations(page: Any) -> None:
    go(page, "arm=after.sampled&answer=gained&view=diff")
    assert page.locator(".diff del").count() > 0 and page.locator(".diff ins").count() > 0
    kept = page.evaluate("""(async () => {
        const [first, second] = await Promise.all([EPISODES.before[shown.number], shown.number].map(episode));
        const texts = (row) => pieces(row, true).filter(([, author]) => author !== 'prompt').map(([text]) => text);
        const parts = difference(texts(first), texts(second));
        const side = (kind) => parts.filter(([each]) => each === 'same' || each === kind).map(([, text]) => text).join('');
        return side('removed') === texts(first).join('') && side('added') === texts(second).join('');
    })()""")
    assert kept
    for first, second, num_edits in (("", "ab", 2), ("abcabba", "cbabac", 5), ("xay", "xby", 2), ("ab", "ab", 0)):
        parts = page.evaluate("([first, second]) => difference([...first], [...second])", [first, second])
        assert sum(kind != "same" for kind, _ in parts) == num_edits
        assert "".join(text for kind, text in parts if kind != "added") == first
        assert "".join(text for kind, text in parts if kind != "removed") == second


def test_calls_are_on_a_timeline_and_lead_to_their_token(page: Any) -> None:
    go(page, "arm=after.sampled&answer=right")
    assert page.locator(".bar span").count() in (0, 3)  # no engine time was measured in these invented episodes
    call = page.locator(".events li").first
    text = call.inner_text()
    assert "memory" in text and "12.3 ms" in text and '"query"' in text
    call.locator("button").click()
    assert inspected(page)["text"] == '"}"' and inspected(page)["author"] == "policy"


def test_keys_move_through_episodes_and_tokens(page: Any) -> None:
    go(page, "arm=validation")
    before = page.evaluate("shown.number")
    page.keyboard.press("j")
    assert page.evaluate("shown.number") == before + 1
    until(page, "detail.querySelector('.tokens')")
    page.locator("#list").focus()
    page.keyboard.press("End")
    assert page.evaluate("listed.numbers.indexOf(shown.number)") == 3
    page.wait_for_timeout(50)
    page.locator(".tokens").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    token = page.evaluate("placeOf.get(inspected.element).token")
    assert (
        page.evaluate("shown.token") == token
        and page.evaluate("placeOf.get(inspected.element).row.tokens.authors")[token] == "policy"
    )
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.name") == "text"


def test_only_the_visible_rows_of_the_list_are_in_the_page(page: Any) -> None:
    go(page, "")
    assert page.evaluate("listed.numbers.length") == 84
    assert page.locator(".item").count() < 30
    page.locator("#list").focus()
    page.keyboard.press("End")
    until(page, "document.querySelector('.item[aria-posinset=\"84\"]')")


def test_foreign_text_stays_text(open_page: Callable[..., Any], run_path: Path, tmp_path: Path) -> None:
    opened = open_page(write_report(hostile_run(tmp_path / "run", run_path)))
    assert opened.title() == "run · midthought"
    assert opened.evaluate("document.querySelectorAll('img, #browser script').length") == 0
    escaped = (
        HOSTILE.replace("\u2028", "\\u2028")
        .replace("\u202e", "\\u202e")
        .replace("\0", "\\u0000")
        .replace("\x1b", "\\u001b")
    )
    assert opened.evaluate("[...detail.querySelectorAll('.span .text')].map((each) => each.textContent)")[0] == escaped
    shown = opened.evaluate("detail.querySelectorAll('.span .text')[1].textContent")
    assert len(shown) == 20_000 and set(shown) == {"m"}  # of a million characters
    assert opened.locator(".more").inner_text() == "Show the next 20,000 of 1,000,000 characters"
    opened.locator(".more").click()
    assert opened.evaluate("detail.querySelectorAll('.span .text')[1].textContent.length") == 40_000
    assert opened.locator(".error").inner_text().startswith("</script>")
    opened.close()


def hostile_run(path: Path, run_path: Path) -> Path:
    """A run in which every text tries to inject HTML or JavaScript."""
    rows = [json.loads(line) for line in (run_path / "trajectories.jsonl").read_text().splitlines()[:1]]
    for row in rows:
        row.update(
            question=HOSTILE, answer=HOSTILE, error=HOSTILE, labels={HOSTILE: HOSTILE}, arm=HOSTILE, stop_reason=HOSTILE
        )
        row["reward"] = {"total": 1.0, "parts": {HOSTILE: 1.0}}
        row["spans"] = [
            {"kind": HOSTILE, "text": HOSTILE, "num_tokens": 3},
            {"kind": "policy", "text": "m" * 10**6, "num_tokens": 9},
        ]
        row["events"] = [{"tool_name": HOSTILE, "parameters": {HOSTILE: HOSTILE}, "outcome": HOSTILE, "metadata": {}}]
    with RunFolder(path) as run:
        run.add_trajectories(rows)
        run.write_file("config.yaml", HOSTILE)
        run.write_summary({HOSTILE: HOSTILE, "after.exact_match": 0.5})
        run.metrics.append([{"stage": HOSTILE, "step": 1, HOSTILE: 1.0}])
        texts = dict.fromkeys(("check", "subject", "policy", "observation", "action"), HOSTILE)
        run.findings.append([{**texts, "start_step": 1, "step": 1}])
    return path


def test_asynchronous_training_has_a_timeline_that_a_screen_reader_can_read(
    open_page: Callable[..., Any], run_path: Path
) -> None:
    with RunFolder(run_path) as run:
        for step in range(1, 4):
            idle = {"time/idle_engine": 0.5, "time/idle_learner": 1.5, "time/waiting": 0.25}
            run.log("ppo", step, {"time/wall": 2.0, "time/weight_update_seconds": 0.1, **idle})
    opened = open_page(write_report(run_path))
    words = opened.locator(".lanes svg").get_attribute("aria-label")
    assert words == "Shares of 6 seconds: sampling 75%, learning 25%, new weights 5%, waiting 12%"
    widths = opened.evaluate(
        "[...document.querySelectorAll('.lanes rect')].map((bar) => bar.getBoundingClientRect().width)"
    )
    assert len(widths) == 12 and all(width > 0 for width in widths)
    opened.close()


def test_a_curve_is_read_at_its_own_steps_and_only_iterations_lead_to_training_episodes(
    open_page: Callable[..., Any], tmp_path: Path
) -> None:
    with RunFolder(tmp_path / "run") as run:
        run.log("sft", 1, {"loss": 2.0})
        run.log("ppo", 1, {"tool/a/failures": 0.25})
        run.log("ppo", 2, {"tool/a/failures": 0.5, "tool/b/failures": 0.75})
        run.log("ppo", 3, {"tool/b/failures": 1.0})
        run.add_trajectories([{"step": 1, "arm": "train", "task_id": "a", "question": "?", "spans": [], "events": []}])
    opened = open_page(write_report(tmp_path / "run"))
    svg = opened.locator("[data-iterations] figure svg")
    assert svg.count() == 1 < opened.locator("figure svg").count()
    read = "[...document.querySelectorAll('[data-iterations] .legend b')].map((each) => each.textContent)"
    assert opened.evaluate(read) == ["–", "1"]
    svg.focus()
    for key, expected in (("Home", ["0.25", "–"]), ("ArrowRight", ["0.5", "0.75"]), ("ArrowRight", ["–", "1"])):
        svg.press(key)
        assert opened.evaluate(read) == expected
    opened.close()


AXE = Path(os.environ.get("MIDTHOUGHT_AXE", Path(__file__).parents[2] / ".venv" / "axe" / "package" / "axe.min.js"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_reports_nothing_serious(open_page: Callable[..., Any], report: Path, scheme: str) -> None:
    if not AXE.is_file():
        pytest.skip(f"axe-core is not at {AXE}: make axe")
    opened = open_page(report, color_scheme=scheme)
    opened.evaluate(AXE.read_text("utf-8"))
    for address in ("arm=train&step=1&color=advantage", "arm=train&step=2&view=samples", "arm=after.sampled&view=diff"):
        go(opened, address)
        found = opened.evaluate("axe.run({ resultTypes: ['violations'] }).then((result) => result.violations)")
        assert [each["id"] for each in found if each["impact"] in ("serious", "critical")] == [], found
    opened.close()
