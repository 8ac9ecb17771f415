"""Tools of a real MCP server, written with the SDK: one started over stdio, one at a URL."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from calling import call, results, run
from served import served

from midthought.errors import MissingExtraError, SettingsError
from midthought.tools.executor import ToolExecutor
from midthought.tools.registry import ToolRegistry
from midthought.types import ToolOutcome

pytest.importorskip("mcp")

from midthought.tools.mcp import McpTool, McpTools, mcp_tools
from midthought.tools.mcp_connection import McpServerError

PATIENT = 300.0
"""Seconds that a server may take to start on a busy machine."""

SERVER = '''
import asyncio, os, sys
from typing import Annotated
from mcp.server.mcpserver import Image, MCPServer
from pydantic import BaseModel, Field

server = MCPServer("test")

class Place(BaseModel):
    city: str
    tags: list[str] = []

@server.tool()
def add(a: Annotated[int, Field(description="One number.", ge=0)], b: int = 1) -> int:
    """Adds two numbers."""
    return a + b

@server.tool(name="deep/visit")
def visit(place: Place, code: Annotated[str, Field(pattern="^[A-Z]+$")] = "A", extra: list = []) -> str:
    """Visits a place."""
    return f"{place.city} {code}"

@server.tool()
async def sleep(seconds: float) -> str:
    """Sleeps."""
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        open(os.environ["NOTES"], "a").write("cancelled")
        raise
    return "slept"

@server.tool()
def process() -> str:
    """Tells its process and the names of its environment variables."""
    return " ".join([str(os.getpid()), *os.environ])

@server.tool()
def picture() -> list:
    """Gives words and a picture."""
    return ["Look:", Image(data=b"abc", format="png")]
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mcp")
    (folder / "server.py").write_text(f"{SERVER}\nserver.run()\n")
    return folder


def started(folder: Path, **options: Any) -> McpTools:
    options |= {"environment": {"NOTES": str(folder / "notes")}, "start_seconds": PATIENT, "timeout_seconds": PATIENT}
    return mcp_tools(command=[sys.executable, "server.py"], folder=folder, **options)


@pytest.fixture(scope="module")
def tools(folder: Path) -> Iterator[McpTools]:
    with started(folder) as tools:
        yield tools


@pytest.fixture
def registry(tools: McpTools) -> ToolRegistry:
    return ToolRegistry(tools)


def test_definitions_carry_the_servers_schema(registry: ToolRegistry) -> None:
    assert registry.names() == ["add", "deep_visit", "sleep", "process", "picture"]
    add, visit = registry.definitions()[:2]
    assert add.description == "Adds two numbers."
    number = {"description": "One number.", "minimum": 0, "title": "A", "type": "integer"}
    assert add.parameters_schema()["properties"]["a"] == number
    assert [(part.name, part.type, part.description, part.required, part.default) for part in add.parameters] == [
        ("a", "integer", "One number.", True, None),
        ("b", "integer", "", False, 1),
    ]
    assert visit.parameters_schema()["$defs"]["Place"]["required"] == ["city"]
    assert [part.type for part in visit.parameters] == ["object", "string", "array"]


def test_a_call_gives_the_servers_words_and_structure(registry: ToolRegistry, tools: McpTools) -> None:
    assert registry.execute_tool("add", a=2, b=3.0) == (True, "5")
    assert registry.execute_tool("add", a=2) == (True, "3")
    assert registry.execute_tool("deep_visit", place={"city": "Rom"}) == (True, "Rom A")
    assert registry.execute_tool("picture") == (True, "Look:\n[image: image/png]")
    assert asyncio.run(tools[0].execute(a=1, b=1)).metadata == {"structured": {"result": 2}}


def test_arguments_that_would_break_the_connection_break_one_call_only(registry: ToolRegistry) -> None:
    nested: list[Any] = []
    for _ in range(100):
        nested = [nested]
    for place, extra in (({"city": "\ud800"}, []), ({"city": "a"}, [float("nan")])):
        success, words = registry.execute_tool("deep_visit", place=place, extra=extra)
        assert not success and words.startswith("Tool execution error: the arguments ")
    words = registry.execute_tool("deep_visit", place={"city": "a"}, extra=nested)[1]
    assert words == "the arguments are nested too deeply, at most 64 levels"
    assert registry.execute_tool("deep_visit", place={"city": "Köln \0 \u2028 😀"}) == (True, "Köln \0 \u2028 😀 A")


def test_the_server_sees_none_of_our_variables_but_those_it_was_given(registry: ToolRegistry) -> None:
    _, *seen = registry.execute_tool("process")[1].split()
    assert "NOTES" in seen and "PATH" in seen and not any(name.startswith(("PYTEST", "VIRTUAL")) for name in seen)


def test_calls_run_side_by_side_from_several_event_loops(registry: ToolRegistry) -> None:
    def episode(number: int) -> Any:
        return results(run(ToolExecutor(registry), call("sleep", seconds=0.2), call("add", a=number)))

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(episode, range(4))) == [["slept", str(number + 1)] for number in range(4)]


def test_a_late_call_is_cancelled_on_the_server_and_the_others_go_on(
    registry: ToolRegistry, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry.get("sleep"), "timeout_seconds", 0.2)
    (event,) = run(ToolExecutor(registry), call("sleep", seconds=3600))
    assert event.outcome is ToolOutcome.TIMED_OUT
    assert registry.execute_tool("add", a=1) == (True, "2")
    deadline = time.monotonic() + 60
    while not (folder / "notes").exists() or (folder / "notes").read_text() != "cancelled":
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_closing_ends_the_server_and_the_calls_that_run_and_later_ones_say_so(folder: Path) -> None:
    tools = started(folder, prefix="my_")
    registry = ToolRegistry(tools)
    server = int(registry.execute_tool("my_process")[1].split()[0])
    assert Path(f"/proc/{server}").exists() or sys.platform != "linux"

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run, ToolExecutor(registry), call("my_sleep", seconds=3600))
        time.sleep(0.2)
        tools.close()
        assert running.result()[0].outcome is ToolOutcome.RAISED
    tools.close()
    assert not Path(f"/proc/{server}").exists()
    assert registry.execute_tool("my_add", a=1) == (False, "Tool execution error: the MCP server is closed")
    assert len(tools) == 5 and isinstance(tools[0], McpTool)


def test_a_connection_that_makes_no_sense_is_refused() -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({}, "either command=.* or url="),
        ({"command": "python server.py"}, "command must be a list"),
        ({"command": ["a"], "environment": {"KEY": None}}, "'KEY' in environment must be a str, not NoneType"),
        ({"url": "http://x", "headers": {"Authorization": None}}, "'Authorization' in headers must be a str"),
    ]
    for options, words in refused:
        with pytest.raises(SettingsError, match=words):
            mcp_tools(**options)


def test_without_the_sdk_the_install_line_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(MissingExtraError, match=r"mcp is not installed.*midthought\[mcp\]"):
        mcp_tools(command=["a"])


def test_a_server_behind_a_url_is_reached_with_our_headers() -> None:
    names: dict[str, Any] = {}
    exec(SERVER, names)
    application = names["server"].streamable_http_app()
    seen: list[bytes | None] = []

    async def noting(scope: Any, receive: Any, send: Any) -> None:
        seen.append(dict(scope.get("headers", ())).get(b"authorization"))
        await application(scope, receive, send)

    with served(noting) as address:
        url = f"{address}/mcp"
        with mcp_tools(url=url, headers={"Authorization": "Bearer x"}, start_seconds=PATIENT) as tools:
            assert ToolRegistry(tools).execute_tool("add", a=1) == (True, "2")
    assert b"Bearer x" in seen and set(seen) <= {b"Bearer x", None}
    with pytest.raises(McpServerError, match="cannot be used"):
        mcp_tools(url=url, start_seconds=PATIENT)
