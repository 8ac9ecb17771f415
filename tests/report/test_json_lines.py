import json
import math
from pathlib import Path

import numpy as np
import pytest

from midthought.errors import CheckpointError
from midthought.report.json_lines import JsonLines, json_value


def test_rows_come_back_as_they_were_written_and_later_ones_can_be_dropped(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "deep" / "rows.jsonl")
    with pytest.raises(TypeError, match="object"):
        lines.append([{"a": 1}, {"a": object()}])
    assert not lines.path.exists()
    lines.append([{"a": 1}, {"text": "Ünïcode\nand a line feed"}])
    lines.append([{"query": json.loads('"\\ud83d"')}])  # a lone surrogate
    assert list(lines.read()) == [{"a": 1}, {"text": "Ünïcode\nand a line feed"}, {"query": "?"}]
    assert lines.num_lines == JsonLines(lines.path).num_lines == 3
    with pytest.raises(CheckpointError, match=r"rows\.jsonl has 3 lines.* 4"):
        lines.keep(4)
    lines.keep(1)
    lines.append([{"a": "new"}])
    assert list(lines.read()) == [{"a": 1}, {"a": "new"}]


def test_numbers_that_json_cannot_say_become_null() -> None:
    value = json_value(
        {"nan": math.nan, "inf": -math.inf, "np": np.float32(0.5), "int": np.int64(3), "yes": True, "t": (1,)}
    )
    assert value == {"nan": None, "inf": None, "np": 0.5, "int": 3, "yes": True, "t": [1]}
    assert value["yes"] is True


def test_what_a_killed_process_left_of_a_line_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n{"a": 2')
    lines = JsonLines(path)
    assert list(lines.read()) == [{"a": 1}]
    lines.append([{"a": 3}])
    assert path.read_text() == '{"a": 1}\n{"a": 3}\n'


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\nnot json\n{"a": 2}\n')
    with pytest.raises(CheckpointError, match=r"rows\.jsonl, line 2"):
        list(JsonLines(path).read())
