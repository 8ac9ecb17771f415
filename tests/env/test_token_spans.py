"""Characters of the policy's text become positions of the tokens that wrote them."""

import pytest

from midthought.env.reasoning import own_text
from midthought.env.token_spans import token_span
from midthought.errors import RecordError
from midthought.types import Task, ToolCall, ToolEvent, ToolOutcome, Trajectory

PIECES = ["?", "I ", "think", " so", ". ", "42", "Done", ".", "", "tool"]
"""Token n writes PIECES[n]."""


def decode(token_ids) -> str:
    return "".join(PIECES[token_id] for token_id in token_ids)


@pytest.fixture
def trajectory() -> Trajectory:
    """Text: `I think so. ` and `42` after a result, then `Done.` in a second segment, joined by newlines."""
    trajectory = Trajectory(Task(task_id="t", prompt="?", answer="42"), [0, 0])
    trajectory.add_demonstrated([1, 2, 3])
    trajectory.add_demonstrated([4])
    trajectory.add_results([ToolEvent(call=ToolCall(tool_name="look"), outcome=ToolOutcome.OK)], [9])
    trajectory.add_demonstrated([5])
    trajectory.begin_segment([0])
    trajectory.add_demonstrated([8, 6, 7])
    return trajectory


@pytest.mark.parametrize(
    ("text", "span", "written"),
    [
        ("think", (3, 4), [2]),
        ("hink s", (3, 5), [2, 3]),
        ("I think so. ", (2, 6), [1, 2, 3, 4]),
        ("so. \n42", (4, 8), [3, 4, 9, 5]),
        ("42", (7, 8), [5]),
        ("Done.", (10, 12), [6, 7]),
        ("2\nDo", (7, 11), [5, 0, 8, 6]),
    ],
)
def test_characters_become_the_tokens_that_wrote_them(trajectory, text, span, written):
    start = own_text(trajectory, decode).index(text)
    found = token_span(trajectory, start, start + len(text), decode)
    record = [token_id for segment in trajectory.segments for token_id in segment.token_ids]
    assert found == span and record[slice(*found)] == written
    trajectory.span_end(*found)


@pytest.mark.parametrize(("start", "end"), [(0, 22), (-1, 3), (4, 4), (12, 13), (30, 31)])
def test_characters_that_the_policy_did_not_write_are_an_error(trajectory, start, end):
    assert own_text(trajectory, decode)[12:13] == "\n"
    with pytest.raises(RecordError, match=f"the characters {start}:{end} are not in the policy's text, which has 21;"):
        token_span(trajectory, start, end, decode)
