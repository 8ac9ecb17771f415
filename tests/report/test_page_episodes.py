"""Which episodes the page has, and that they survive packing."""

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from midthought.report import html
from midthought.report.html import write_report
from midthought.report.page_episodes import (
    PackedEpisodes,
    column_layout,
    in_order_of_choice,
    pack_episodes,
    read_page_episodes,
    with_counterparts,
)
from midthought.report.recorded_episodes import Episode, packed, read_recording
from midthought.report.run_folder import RunFolder

ALL = {"max_episodes": 5_000, "max_bytes": 2**24}


def an_entry(arm: str, step: int = 0, task_id: str = "a", question: str = "?") -> Episode:
    facts = {"arm": arm, "step": step, "task_id": task_id, "question": question}
    return Episode(facts=facts, spans=[("policy", "x" * 100, 100)])


def test_the_training_iterations_that_are_read_are_spread_over_the_run(recorded_run: Path) -> None:
    found = read_page_episodes(recorded_run, **ALL)
    assert sum(each.segments is not None for each in found) == 36 + 12 and len(found) == 48 + 36
    few = read_page_episodes(recorded_run, max_episodes=1, max_bytes=2**24)
    assert {each.step for each in few if each.arm == "train"} == {3} and len(few) == len(found) - 24
    assert {each.arm for each in read_page_episodes(recorded_run, max_episodes=0, max_bytes=0)} >= {"before", "after"}


def test_episodes_that_are_not_read_count_as_the_runs(recorded_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ">84 episodes. " in write_report(recorded_run).read_text("utf-8")
    monkeypatch.setattr(html, "MAX_TRAJECTORIES", 12)
    assert ">12 of 84 episodes. " in write_report(recorded_run).read_text("utf-8")


def test_answers_are_compared_like_for_like() -> None:
    arms = ["before", "before.sampled", "before.oracle", "after", "after.sampled", "after.tool_off"]
    episodes = [an_entry(arm) for arm in arms]
    episodes += [an_entry("after.sampled"), an_entry("after", question="another"), an_entry("validation", 10)]
    episodes += [an_entry("validation", 20), an_entry("train", 1), an_entry("train", 2)]
    compared = [
        None if each.before is None else (episodes[each.before].arm, episodes[each.before].step)
        for each in with_counterparts(episodes)
    ]
    greedy, sampled = ("before", 0), ("before.sampled", 0)
    assert compared == [None] * 3 + [greedy, sampled, None, None, None, None, ("validation", 10), None, None]


def test_held_out_questions_and_training_groups_are_chosen_in_turn_and_evenly_spread() -> None:
    keys = [("q1", False)] * 2 + [("q2", False)] * 2 + [(step, True) for step in range(1, 9)]
    order = in_order_of_choice(keys)
    assert order[:5] == [[2, 3], [11], [0, 1], [7], [9]]  # q2; iteration 8; q1; iterations 4 and 6
    assert sorted(place for unit in order for place in unit) == list(range(12))
    assert in_order_of_choice([]) == []


def test_a_page_has_as_many_episodes_as_its_limits_allow() -> None:
    noise = np.random.default_rng(0)
    episodes = [
        Episode(
            facts={"arm": "train", "step": step, "task_id": str(step)},
            spans=[("policy", noise.bytes(6_000).hex(), 15_000)],
        )
        for step in range(1, 9)
    ]
    few = pack_episodes(episodes, max_episodes=3, max_bytes=2**20)
    assert (few.num_episodes, len(few.blocks)) == (3, 3)
    small = pack_episodes(episodes, max_episodes=5_000, max_bytes=20_000)
    assert small.num_episodes == 2 and sum(len(text) for block in small.blocks for text in block) <= 20_000
    index = json.loads(gzip.decompress(base64.b64decode(small.index)))
    assert index["columns"]["step"] == [4, 8] and index["columns"]["block"] == [1, 0]
    assert pack_episodes(episodes, max_episodes=5_000, max_bytes=10).num_episodes == 0


def columns_of(page: PackedEpisodes) -> dict[str, Any]:
    """The columns of the only block, as the page's script decodes them."""
    ((texts, numbers),) = [[gzip.decompress(base64.b64decode(text)) for text in block] for block in page.blocks]
    counts = {"token": 0, "policy": 0}
    for author, _, length in (span for row in json.loads(texts) for span in row["spans"]):
        counts["token"] += length
        counts["policy"] += length if author == "policy" else 0
    columns, start = {}, 0
    for name, kind, is_float in column_layout():
        length = counts[kind]
        planes = np.frombuffer(numbers[start : start + 4 * length], dtype=np.uint8).reshape(4, length)
        columns[name] = np.ascontiguousarray(planes.T).view("<f4" if is_float else "<i4").ravel()
        start += 4 * length
    assert start == len(numbers)
    return columns


def test_packed_columns_have_the_bits_that_were_recorded(recorded_run: Path) -> None:
    page = pack_episodes([each for each in read_page_episodes(recorded_run, **ALL) if each.arm == "train"], **ALL)
    columns, rows = columns_of(page), json.loads(gzip.decompress(base64.b64decode(page.blocks[0][0])))
    row, length = rows[0], sum(span[2] for span in rows[0]["spans"])
    recorded = read_recording(recorded_run, iterations=[row["step"]])
    group = [one.segments for one in recorded if one.facts["task_id"] == row["task_id"]]
    (first,) = group[0] or ()
    own = first.in_loss
    assert columns["token_ids"][:length].tolist() == first.token_ids.tolist()
    assert columns["in_loss"][: own.sum()].all()
    assert (columns["advantages"][: own.sum()] == first.columns["advantages"][own]).all()


@pytest.mark.parametrize("text", ["a\U0001f600b", "plain"])
def test_lengths_count_the_units_of_javascript_strings_and_values_that_are_missing_are_nan(
    tmp_path: Path, text: str
) -> None:
    columns = {"token_ids": packed(range(len(text)), "<i4"), "in_loss": packed([1], "u1")}
    spans = [["policy", 1], ["tool", len(text) - 1]]
    row = {
        **dict.fromkeys(("reward", "question"), None),
        "arm": "validation",
        "step": 1,
        "task_id": "a",
        "events": [],
        "segments": [{"spans": spans, "texts": list(text), "policy_versions": packed([7], "<i4"), **columns}],
    }
    with RunFolder(tmp_path / "run") as run:
        run.add_trajectories([row])
    found = columns_of(pack_episodes(read_page_episodes(tmp_path / "run", **ALL), **ALL))
    assert found["text_lengths"].tolist() == [len(letter.encode("utf-16-le")) // 2 for letter in text]
    assert found["policy_versions"].tolist() == [7] and np.isnan(found["advantages"]).tolist() == [True]
