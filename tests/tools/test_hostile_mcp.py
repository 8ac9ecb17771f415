"""MCP servers that send nonsense, too much or too long: one short sentence each, no traceback, and calls go on. No SDK in the
servers, which would not let them."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import pytest

from midthought.tools.executor import ToolExecutor
from midthought.tools.registry import ToolRegistry
from midthought.types import ParsedAction, Task, ToolEvent, ToolOutcome

pytest.importorskip("mcp")

from midthought.tools.mcp import McpTools, mcp_tools
from midthought.tools.mcp_connection import McpServerError

SERVER = r"""
import json, os, sys, threading
does = json.loads(os.environ["DOES"])

def send(text):
    sys.stdout.write(text + "\n")
    sys.stdout.flush()

def reply(number, **fields):
    send(json.dumps({"jsonrpc": "2.0", "id": number, **fields}))

for line in sys.stdin:
    asked = json.loads(line)
    number, method = asked.get("id"), asked.get("method")
    for text in does.get("before " + str(method), ()):
        send(text)
    if method in does:
        reply(number, **does[method])
    elif method == "initialize":
        info = {"name": "test", "version": "1"}
        version = asked["params"]["protocolVersion"]
        reply(number, result={"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info})
    elif method == "tools/list":
        tool = {"name": "look", "inputSchema": {"type": "object"}, **does.get("tool", {})}
        reply(number, result={"tools": [tool], **does.get("page", {})})
    elif method == "tools/call":
        send(does["raw"].replace("NUMBER", json.dumps(number))) if "raw" in does else reply(
            number, result={"content": [{"type": "text", "text": "fine"}]}
        )
    elif number is not None and method:
        reply(number, error={"code": -32601, "message": "Method not found"})
"""


def started(does: dict[str, Any], **options: Any) -> McpTools:
    given = {"start_seconds": 60.0, "timeout_seconds": 60.0, **options}
    return mcp_tools(command=[sys.executable, "-c", SERVER], environment={"DOES": json.dumps(does)}, **given)


def called(tools: McpTools) -> ToolEvent:
    call = ParsedAction(tool_name="look", parameters={}, raw_text="", success=True)
    task = Task(task_id="t", prompt="", answer="")
    return asyncio.run(ToolExecutor(ToolRegistry(tools)).run([call], task))[0]


@pytest.mark.parametrize(
    ("does", "reason"),
    [
        ({"initialize": {"error": {"code": -1, "message": "no\n" * 20_000}}}, "no no no"),
        ({"initialize": {"result": {"protocolVersion": 7, "capabilities": []}}}, "validation errors"),
        ({"tools/list": {"result": {"tools": "x"}}}, "valid list"),
        ({"page": {"nextCursor": "again"}}, "more than 100 pages"),
        ({"tool": {"description": "x " * 60_000}}, "its description has more than 100,000 characters"),
        ({"tool": {"name": "x" * 5000}}, "its name has more than 128 characters"),
        ({"tool": {"inputSchema": {"type": "object", "properties": {"q": {"$ref": "http://a/x"}}}}}, "cannot be resolved"),
    ],
    ids=["a long error", "an odd greeting", "no list", "pages without end", "a long text", "a long name", "a reference"],
)  # fmt: skip
def test_a_server_that_cannot_be_used_is_one_short_sentence(does, reason):
    with pytest.raises(McpServerError, match=reason) as error:
        started(does)
    assert "\n" not in str(error.value) and len(str(error.value)) < 1000


NONSENSE = [
    "hello",
    "{",
    "[]",
    "null",
    "[" * 5000,
    '{"jsonrpc": "2.0", "id": 99999, "result": {}}',
    '{"jsonrpc": "2.0", "method": "x"}',
]
ASKED = [
    json.dumps({"jsonrpc": "2.0", "id": f"s{number}", "method": method, "params": params})
    for number, (method, params) in enumerate(
        [("sampling/createMessage", {"messages": [], "maxTokens": 5}), ("roots/list", {}), ("no/such", {})]
    )
]  # fmt: skip


def test_nonsense_and_questions_of_a_server_do_not_stop_its_calls(caplog):
    does = {f"before {method}": [*NONSENSE, *ASKED] for method in ("initialize", "tools/list", "tools/call")}
    with started(does) as tools:
        assert [called(tools).outcome for _ in range(2)] == [ToolOutcome.OK, ToolOutcome.OK]
    assert caplog.records
    for record in caplog.records:
        assert record.exc_info is None and "\n" not in record.getMessage() and len(record.getMessage()) < 500


@pytest.mark.parametrize(
    ("raw", "outcome", "said"),
    [
        ('{"jsonrpc": "2.0", "id": NUMBER, "result": {"content": "x"}}', ToolOutcome.RAISED, "valid list"),
        ('{"jsonrpc": "2.0", "id": NUMBER, "result": {"content": [{"type": "video"}]}}', ToolOutcome.RAISED, ""),
        ('{"jsonrpc": "2.0", "id": NUMBER, "result": {"content": ["\\ud800"]}}', ToolOutcome.TIMED_OUT, ""),
        ('{"jsonrpc": "2.0", "id": NUMBER, "result": null}', ToolOutcome.TIMED_OUT, ""),
        ('{"jsonrpc": "2.0", "id": NUMBER, "result": {"content": [], "isError": true}}', ToolOutcome.RAISED, "did not say why"),
        ('{"jsonrpc": "2.0", "id": NUMBER, "error": {"code": 1, "message": "' + "x" * 50_000 + '"}}', ToolOutcome.RAISED, "xxx"),
    ],
    ids=["no list", "an unknown kind", "a lone surrogate", "null", "an error without words", "a long error"],
)  # fmt: skip
def test_a_result_that_makes_no_sense_is_an_error_that_the_model_reads(raw, outcome, said):
    with started({"raw": raw}, timeout_seconds=0.5) as tools:
        event = called(tools)
        assert event.outcome is outcome and said in str(event.call.result) and len(str(event.call.result)) < 500
