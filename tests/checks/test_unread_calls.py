"""Calls that a policy writes and that are not run are found, with the call format that reads them."""

from __future__ import annotations

import json

import pytest
from check_runs import Arguments, run, teach_calls

from midthought import Tool, Trainer, tool
from midthought.tokenization import Renderer
from midthought.tools.call_formats.unread import UnreadCallReader, UnreadCalls
from midthought.tools.parsers import find_call_format
from midthought.tools.registry import ToolRegistry
from midthought.types import Trajectory, Turn

ARGUMENTS = {"word": "box"}
IN_THOUGHT = find_call_format("in_thought").render_call("lookup", ARGUMENTS)
HERMES = find_call_format("hermes").render_call("lookup", ARGUMENTS)
REACT = find_call_format("react").render_call("lookup", ARGUMENTS)
OBJECT = json.dumps({"name": "lookup", "arguments": ARGUMENTS})
UNREAD = {
    "a Hermes call in a thought": ("hermes", f"<think>I ask.\n{HERMES}\n</think>red", "'in_thought'"),
    "a thought that the prompt opened": ("hermes", f"I ask.\n{HERMES}\n</think>red", "'in_thought'"),
    "a thought that is not closed": ("hermes", f"<think>I ask.\n{HERMES}", "'in_thought'"),
    "an object in a fence": ("hermes", f"I ask.\n```json\n{OBJECT}\n```\n", "'hermes' and show its tags <tool_call>"),
    "an object in a fence, other format": ("json", f"<think>Hm.</think>\n```json\n{OBJECT}\n```", "'hermes'"),
    "two objects in a fence": ("in_thought", f"```\n[{OBJECT}]\n```", "'hermes'"),
    "an object with other keys in a fence": (
        "hermes",
        '```json\n{"tool": "lookup", "parameters": {"word": "box"}}\n```',
        "'json', which reads this call",
    ),
    "#call in a thought": ("hermes", f"<think>I ask. {IN_THOUGHT} Then red.</think>red", "'in_thought', which reads"),
    "#call in a thought, the model's own format": (
        "json",
        f"I ask. {IN_THOUGHT}</think>red",
        "'in_thought', which reads",
    ),
    "#call after the thought": ("in_thought", f"Hm.</think>{IN_THOUGHT}", "InThoughtFormat('between')"),
    "ReAct": ("hermes", f"<think>Hm.</think>\n{REACT}\n", "'react', which reads this call"),
    "Hermes": ("in_thought", f"Hm.</think>{HERMES}", "'hermes', which reads this call"),
    "Hermes in a thought for #call": ("in_thought", f"Hm. {HERMES}</think>red", "'hermes' and show its calls after"),
}
"""By description: the call format that is used, a turn's text, a part of the remedy."""
SILENT = {
    "ordinary text": ("hermes", "<think>Boxes are red.</think>red"),
    "the tool's name in quotes": ("hermes", "<think>I could call `lookup` or 'lookup' with a word.</think>red"),
    "the tool's name as an action": ("hermes", "Action: I lookup nothing.\n\nThe lookup tool: {word}"),
    "the tool's schema": ("in_thought", 'It has {"name": "lookup", "parameters": {"word": "a text"}}.</think>red'),
    "a call that ran": ("hermes", f"<think>I ask.</think>\n{HERMES}"),
    "two calls that ran": ("hermes", f"{HERMES}\n{HERMES.replace('box', 'hat')}"),
    "a #call that ran": ("in_thought", f"I ask. {IN_THOUGHT} So red.</think>red"),
    "a ReAct call that ran": ("react", f"Thought: I ask.\n{REACT}\nThought: red"),
    "an object in the arguments of a call that ran": (
        "in_thought",
        'I ask. #call lookup {"word": "x", "tool": "lookup", "parameters": {}}</think>red',
    ),
    "a call that ran, in a thought as well": ("hermes", f"<think>{HERMES}</think>\n{HERMES}"),
    "a draft of a call that the turn then runs": (
        "hermes",
        f"<think>{IN_THOUGHT}</think>\n" + HERMES.replace("box", "hat"),
    ),
    "an unknown tool": ("hermes", "<think>" + IN_THOUGHT.replace("lookup", "search") + "</think>lookup"),
    "code in a fence": ("hermes", "```python\nlookup(word='box')\n```"),
    "a quoted #call": ("in_thought", f"One writes `{IN_THOUGHT}`.</think>red"),
}


@tool
def lookup(word: str) -> str:
    """Looks a word up."""
    return word


def found(taught: Arguments, name: str, *texts: str, tools: tuple[Tool, ...] = (lookup,)) -> UnreadCalls:
    """What is found in an episode for each text; a text that only closes a thought continues one."""
    call_format = find_call_format(name)
    reader = UnreadCallReader(Renderer(taught["tokenizer"]), call_format, ToolRegistry(tools))
    return reader.read([episode(text) for text in texts])


def episode(text: str) -> Trajectory:
    trajectory = Trajectory()
    is_inside = "</think>" in text and "<think>" not in text
    trajectory.turns = [Turn(model_output=text, begins_in_thought=is_inside)]
    return trajectory


def test_a_call_that_is_not_run_is_found_with_the_format_that_reads_it(taught):
    for description, (name, text, part) in UNREAD.items():
        calls = found(taught, name, text, "red", "blue", text)
        assert (calls.count, calls.num_episodes, calls.tool) == (2, 4, "lookup"), description
        assert f"set call_format={part}" in calls.remedy, description
        assert (
            str(calls).startswith("2 of 4 sampled episodes write a call of 'lookup' that is not run: ")
            and calls.is_frequent
        )


def test_text_without_such_a_call_gives_no_finding(taught):
    for description, (name, text) in SILENT.items():
        assert found(taught, name, text).count == 0, description


def test_rare_calls_are_no_finding_and_no_tool_is_no_call(taught):
    text = f"<think>{HERMES}</think>red"
    assert not found(taught, "hermes", text, *["red"] * 10).is_frequent
    assert found(taught, "hermes", text, *["red"] * 9).is_frequent
    assert found(taught, "hermes", text, tools=()).count == 0


@pytest.fixture(scope="module")
def undescribed(taught) -> Arguments:
    """A model that calls `lookup` in its thoughts with `#call`, although its prompts describe no tool."""
    return teach_calls(taught, describe_tools=False) | {"describe_tools": False, "max_tokens": 64, "temperature": 0.3}


@pytest.mark.parametrize("call_format", ["hermes", "json", "react"])
def test_sampled_calls_in_another_format_are_found_by_check(undescribed, call_format):
    with Trainer(**run(undescribed, call_format=call_format)) as trainer:
        report = trainer.check()
    (finding,) = [each for each in report.findings if each.check == "unread_calls"]
    assert "of 64 sampled episodes write a call of 'lookup' that is not run" in finding.observation
    assert "call_format='in_thought'" in finding.action


def test_a_run_reports_them_once(undescribed, tmp_path):
    settings = {"call_format": "hermes", "learning_rate": 1e-6, "num_train_iters": 4}
    arguments = run(undescribed, rewards=[], reward_fn=lambda t: t.num_sampled % 3, **settings)
    with Trainer(**arguments, run_path=tmp_path / "run") as trainer:
        trainer.fit()
    rows = [json.loads(line) for line in (tmp_path / "run/findings.jsonl").read_text().splitlines()]
    (row,) = [row for row in rows if row["check"] == "unread_calls"]
    assert (row["start_step"], row["step"], row["policy"]) == (1, 3, "warn") and "'in_thought'" in row["action"]
