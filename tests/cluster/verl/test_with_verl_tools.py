"""A really installed verl takes our tools."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verl", reason="verl is not installed here; see MIDTHOUGHT_VERL_PYTHON in test_real_verl.py")

import pyarrow.parquet
import yaml
from verl.tools.base_tool import BaseTool
from verl.tools.function_tool import FunctionTool
from verl.tools.schemas import ToolResponse
from verl.tools.tool_registry import initialize_tools_from_config

from midthought.cluster.verl.agent_loop import VerlTool, make_tool, tool_of
from midthought.errors import SettingsError
from midthought.feedback.commands import write_verl_rows
from midthought.feedback.settings import RIGHT_ANSWER, SOLVE_AGAIN
from midthought.tools.definition import Tool, ToolDefinition, ToolEpisode, ToolParameter
from midthought.tools.function_tool import tool
from midthought.types import Task, ToolOutcome

CONFIG = {"type": "native", "tool": "worlds:Look"}


@tool
def shout(text: str) -> str:
    """Says it louder."""
    return text.upper()


def made(config: dict[str, Any], folder: Path, schema: dict[str, Any] | None = None) -> VerlTool:
    """As verl makes it from a tool configuration."""
    entry = {"class_name": "midthought.cluster.verl.agent_loop.VerlTool", "config": config}
    entry |= {"tool_schema": schema} if schema else {}
    (folder / "tools.yaml").write_text(yaml.safe_dump({"tools": [entry]}))
    [found] = initialize_tools_from_config(str(folder / "tools.yaml"))
    return found


async def episode(verl_tool: BaseTool, *calls: Any, **create: Any) -> tuple[ToolResponse, float, dict[str, Any]]:
    """What an instance answers to the last of these calls."""
    instance_id, _ = await verl_tool.create(**create)
    try:
        return [await verl_tool.execute(instance_id, parameters) for parameters in calls][-1]
    finally:
        await verl_tool.release(instance_id)


def run(verl_tool: BaseTool, *calls: Any, **create: Any) -> tuple[ToolResponse, float, dict[str, Any]]:
    return asyncio.run(episode(verl_tool, *calls, **create))


def test_verl_makes_it_from_its_configuration_and_is_told_the_tools_own_schema(tmp_path: Path) -> None:
    found = made(CONFIG, tmp_path)
    assert isinstance(found, BaseTool) and found.name == "look"
    said = found.tool_schema.model_dump(exclude_none=True)["function"]
    assert said["description"] == "Look a word up." and set(said["parameters"]["properties"]) == {"word"}


def test_a_call_gives_our_result_and_what_is_wrong_is_words_for_the_model(tmp_path: Path) -> None:
    found = made(CONFIG, tmp_path)
    response, reward, metrics = run(found, {"word": "tide"})
    assert (response.text, reward, metrics["outcome"]) == ("tide is found.</think>", 0.0, "ok")
    response, _, metrics = run(found, {"wort": "tide"})
    assert "wort" in response.text and metrics["outcome"] == ToolOutcome.BAD_ARGUMENTS
    response, _, metrics = run(found, {"word": 3})
    assert metrics["outcome"] == ToolOutcome.BAD_ARGUMENTS


def test_the_row_says_whose_call_it_is_to_a_tool_that_must_know(tmp_path: Path) -> None:
    """As verl's own agent loop makes an instance from the rows of `midthought feedback problems OUT.parquet`."""
    task = Task(task_id="p", prompt="What is 12 * 3?", answer="36", labels={"dataset": "multiplication"})
    write_verl_rows([task], tmp_path / "rows.parquet")
    [row] = pyarrow.parquet.read_table(tmp_path / "rows.parquet").to_pylist()
    tool = "midthought.recipes.feedback.verl:feedback_tool"
    found = made(CONFIG | {"tool": tool, "options": {"critic": "hints"}}, tmp_path)
    asked = row["extra_info"]["tools_kwargs"][found.name]["create_kwargs"]
    right, wrong = (run(found, {"current_answer": each}, create_kwargs=asked)[0].text for each in ("36", "37"))
    assert right == RIGHT_ANSWER and wrong.endswith(SOLVE_AGAIN)


def test_a_tool_may_be_named_as_itself_as_its_class_or_as_what_makes_it() -> None:
    assert make_tool(f"{__name__}:shout", {}) is shout
    assert make_tool("midthought.tools.builtin.calculate:CalculateTool", {}).definition.name == "calculate"
    with pytest.raises(SettingsError, match="creates a dict, not a midthought tool"):
        make_tool("builtins:dict", {})
    for wrong in ("", "worlds", ":Look", "worlds:"):
        with pytest.raises(SettingsError, match="write module:name"):
            make_tool(wrong, {})
    with pytest.raises(SettingsError, match="there is no module 'no_such_place'"):
        make_tool("no_such_place.inner:Look", {})


def test_a_schema_of_another_name_is_refused(tmp_path: Path) -> None:
    function = {"name": "peek", "description": "", "parameters": {"type": "object", "properties": {}}}
    with pytest.raises(SettingsError, match=r"names 'peek', config\.tool creates 'look'"):
        made(CONFIG, tmp_path, {"type": "function", "function": function})


def test_our_loop_takes_our_tool_as_it_is_and_refuses_one_that_was_written_for_verl(tmp_path: Path) -> None:
    found = made(CONFIG, tmp_path)
    assert tool_of(found) is found.tool
    theirs = FunctionTool(name="double", fn=lambda n: 2 * n, tool_schema=found.tool_schema, is_async=False)
    with pytest.raises(SettingsError, match=r"holds the tool 'double' of verl.*write it with @tool"):
        tool_of(theirs)


class Diary(Tool):
    """Keeps the words of one instance."""

    definition = ToolDefinition("diary", "Keeps a diary.", [ToolParameter("word", "string", "What to add.")])

    def __init__(self) -> None:
        self.words: list[str] = []

    def open(self, episode: ToolEpisode) -> Diary:
        return Diary()

    def execute(self, word: str) -> str:
        self.words.append(word)
        return " ".join(self.words)


def test_our_stateful_tool_has_a_state_of_its_own_in_every_instance_of_verls(tmp_path: Path) -> None:
    found = made(CONFIG | {"tool": f"{__name__}:Diary"}, tmp_path)

    async def episodes() -> Any:
        return await asyncio.gather(*(episode(found, {"word": word}, {"word": word}) for word in "ab"))

    assert [response.text for response, _, _ in asyncio.run(episodes())] == ["a a", "b b"]
