"""Systems are timed in turn, ratios are taken round by round, goals are judged by the median."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from benchmarks.table import Row, describe_machine, to_markdown, write_json
from benchmarks.timing import Spread, Timings, compare

TIMINGS = Timings({"a": [2.0, 9.0, 8.0], "b": [1.0, 3.0, 4.0]})


class Noting:
    """Writes down what is asked of it."""

    def __init__(self, name: str, notes: list[tuple[str, str]]) -> None:
        self.name, self.notes = name, notes

    def prepare(self, work: object) -> None:
        self.notes.append((self.name, f"prepare {work}"))

    def run(self) -> None:
        time.sleep(0.01)
        self.notes.append((self.name, "run"))

    def check(self) -> None:
        self.notes.append((self.name, "check"))


def test_systems_take_turns_in_an_order_that_turns_and_the_first_round_does_not_count() -> None:
    notes: list[tuple[str, str]] = []
    systems = {name: Noting(name, notes) for name in "ab"}
    timings = compare(systems, lambda name, seed: f"{name}{seed}", num_rounds=2)  # type: ignore[arg-type, return-value]
    assert [words for name, words in notes if name == "a"] == [
        word for seed in (1, 4, 5) for word in (f"prepare a{seed}", "run", "check")
    ]
    assert [name for name, words in notes if words == "run"] == ["a", "b", "b", "a", "a", "b"]
    assert {name: len(seconds) for name, seconds in timings.seconds.items()} == {"a": 2, "b": 2}
    assert all(0.01 <= each < 1 for seconds in timings.seconds.values() for each in seconds)


def test_a_ratio_is_the_median_of_the_rounds_ratios_with_its_range() -> None:
    assert TIMINGS.ratio("a", "b") == Spread(2.0, 2.0, 3.0)
    assert TIMINGS.against("a", "b", 1.0) == Spread(1.6, 1.0, 2.25)
    assert TIMINGS.medians("a") == {"a": 8.0}


@pytest.mark.parametrize(
    ("goal", "words", "is_met"),
    [
        ({"at_least": 2.0}, "≥ 2", True),
        ({"at_least": 2.1}, "≥ 2.1", False),
        ({"at_most": 2.0}, "≤ 2", True),
        ({"at_most": 1.9}, "≤ 1.9", False),
        ({}, "", None),
    ],
)
def test_a_goal_is_met_by_the_median(goal: dict[str, float], words: str, is_met: bool | None) -> None:
    row = Row(part="p", setting="s", figure="f", value=Spread(2.0, 1.0, 3.0), **goal)
    assert (row.goal, row.is_met) == (words, is_met)


def test_the_table_is_written_as_markdown_and_json(tmp_path: Path) -> None:
    row = Row(
        part="rollout", setting="tiny", figure="time", value=Spread(1.234, 1.0, 2.0), at_most=1.1, seconds={"ours": 0.5}
    )
    assert to_markdown([row]).splitlines()[-1] == (
        "| rollout | tiny | time | 1.23 | 1 … 2 | ≤ 1.1 | **not met** | ours 0.5 |"
    )
    write_json(tmp_path / "new" / "bench.json", [row], {"cores": 2})
    written = json.loads((tmp_path / "new" / "bench.json").read_text("utf-8"))
    assert written["machine"] == {"cores": 2}
    assert written["rows"][0]["value"] == {"median": 1.234, "lowest": 1.0, "highest": 2.0}
    assert written["rows"][0]["is_met"] is False


def test_the_machine_is_described_without_its_name() -> None:
    machine = describe_machine("cpu")
    assert {"processor", "cores", "threads", "packages", "commit"} <= machine.keys()
    assert "torch" in machine["packages"]
    import platform

    assert platform.node() not in json.dumps(machine)
