from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from midthought.errors import CheckpointError
from midthought.report.json_lines import JsonLines, json_value


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "deep" / "rows.jsonl")
    lines.append([{"a": 1}, {"text": "Ünïcode\nand a line feed"}])
    lines.append([{"a": 2}])
    assert list(lines.read()) == [{"a": 1}, {"text": "Ünïcode\nand a line feed"}, {"a": 2}]
    assert lines.num_lines == JsonLines(lines.path).num_lines == 3


def test_numbers_that_json_cannot_say_become_null() -> None:
    value = json_value(
        {"nan": math.nan, "inf": -math.inf, "np": np.float32(0.5), "int": np.int64(3), "yes": True, "t": (1,)}
    )
    assert value == {"nan": None, "inf": None, "np": 0.5, "int": 3, "yes": True, "t": [1]}
    assert value["yes"] is True


def test_what_has_no_place_in_json_is_refused() -> None:
    with pytest.raises(TypeError, match="object"):
        json_value({"x": object()})


def test_nothing_is_written_of_rows_of_which_one_is_refused(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "rows.jsonl")
    with pytest.raises(TypeError):
        lines.append([{"a": 1}, {"a": object()}])
    assert not lines.path.exists()


def test_a_lone_surrogate_does_not_stop_the_run(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "rows.jsonl")
    lines.append([{"query": json.loads('"\\ud83d"')}])
    assert list(lines.read()) == [{"query": "?"}]


def test_what_a_killed_process_left_of_a_line_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n{"a": 2')
    lines = JsonLines(path)
    assert list(lines.read()) == [{"a": 1}]
    lines.append([{"a": 3}])
    assert path.read_text() == '{"a": 1}\n{"a": 3}\n'


def test_keeping_the_first_lines_drops_the_others(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "rows.jsonl")
    lines.append({"a": number} for number in range(5))
    lines.keep(2)
    lines.append([{"a": "new"}])
    assert list(lines.read()) == [{"a": 0}, {"a": 1}, {"a": "new"}]


def test_lines_that_are_not_there_cannot_be_kept(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "rows.jsonl")
    lines.append([{"a": 1}])
    with pytest.raises(CheckpointError, match=r"rows\.jsonl has 1 lines.* 4"):
        lines.keep(4)


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\nnot json\n{"a": 2}\n')
    with pytest.raises(CheckpointError, match=r"rows\.jsonl, line 2"):
        list(JsonLines(path).read())
