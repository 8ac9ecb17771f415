"""MCP servers that send nonsense, too much or too long: one short sentence each, no traceback, and calls go on. No SDK in the
servers, which would not let them."""

from __future__ import annotations

import json
import re
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest
from calling import call, run
from command_process import is_running

from midthought.errors import SettingsError
from midthought.tools.executor import ToolExecutor
from midthought.tools.function_tool import tool
from midthought.tools.registry import ToolRegistry
from midthought.types import ToolEvent, ToolOutcome

pytest.importorskip("mcp")

from midthought.tools.mcp import McpTools, mcp_tools
from midthought.tools.mcp_connection import McpServerError

KEY = "sk-0123456789-opened"
SERVER = r"""
import json, os, sys, threading
does = json.loads(os.environ["DOES"])

def send(text):
    sys.stdout.write(text + "\n")
    sys.stdout.flush()

def reply(number, **fields):
    send(json.dumps({"jsonrpc": "2.0", "id": number, **fields}))

if "log" in does:
    sys.stderr.write(os.environ[does["log"]])
    sys.exit(1)
if "hangs" in does and os.path.exists(does["hangs"]):
    import time
    os.remove(does["hangs"])
    time.sleep(600)
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
    elif method == "tools/call" and "ends" in does and not os.path.exists(does["ends"]):
        open(does.get("ended", os.devnull), "w").close()
        os._exit(1)
    elif method == "tools/call":
        sys.stdout.reconfigure(errors="surrogateescape")
        send(does["raw"].replace("NUMBER", json.dumps(number))) if "raw" in does else reply(
            number, result={"content": [{"type": "text", "text": "fine"}]}
        )
    elif number is not None and method:
        reply(number, error={"code": -32601, "message": "Method not found"})
"""


def started(does: dict[str, Any], **options: Any) -> McpTools:
    given: dict[str, Any] = {"start_seconds": 60.0, "timeout_seconds": 60.0, **options}
    environment = {"DOES": json.dumps(does), **given.pop("environment", {})}
    command = [sys.executable, "-c", SERVER, given.pop("marker", "")]
    return mcp_tools(command=command, environment=environment, **given)


def called(tools: McpTools) -> ToolEvent:
    return run(ToolExecutor(ToolRegistry(tools)), call("look"))[0]


@pytest.mark.parametrize(
    ("does", "reason"),
    [
        ({"initialize": {"error": {"code": -1, "message": "no\n" * 20_000}}}, "no no no"),
        ({"initialize": {"result": {"protocolVersion": 7, "capabilities": []}}}, "validation errors"),
        ({"tools/list": {"result": {"tools": "x"}}}, "valid list"),
        (
            {"tool": {"inputSchema": {"type": "object", "properties": {"q": {"$ref": "http://a/x"}}}}},
            "cannot be resolved",
        ),
    ],
    ids=["a long error", "an odd greeting", "no list", "a reference"],
)
def test_a_server_that_cannot_be_used_is_one_short_sentence(does, reason):
    marker = str(uuid.uuid4())
    with pytest.raises(McpServerError, match=reason) as error:
        started(does, marker=marker)
    assert not is_running(marker)
    assert "\n" not in str(error.value) and len(str(error.value)) < 1000


def test_tools_of_one_name_and_unusable_tools_have_a_remedy_that_works(caplog):
    """The remedy of each error, followed word for word."""

    @tool
    def look() -> str:
        """Looks."""
        return "mine"

    named = [{"name": name, "inputSchema": {"type": "object"}} for name in ("look", "look", "a/b", "a_b", "3d")]
    several = {"page": {"tools": named}}
    with pytest.raises(SettingsError, match=r"no tool 'a-b' of allowed_tools. .*'a_b'"):
        started(several, allowed_tools=["a-b"])
    with pytest.raises(SettingsError, match=r"allowed_tools must be a list like \['look'\]"):
        started(several, allowed_tools="look")
    with started(several, allowed_tools=["look", "a/b", "a_b"]) as tools, started({}, prefix="second_") as others:
        assert [each.definition.name for each in tools] == ["look", "a_b", "a_b"]
        for same in ([*tools], [*tools[:2], look], [*others, *others]):
            with pytest.raises(SettingsError, match=r"already registered.*@tool\(name=.*prefix=.*allowed_tools="):
                ToolRegistry(same)
        with pytest.raises(SettingsError, match=r"write \[\*these, \*those\]"):
            ToolRegistry([tools, others])
        registry = ToolRegistry([*tools[:2], *others])
        assert [(name, registry.execute_tool(name)[1]) for name in registry] == [
            ("look", "fine"), ("a_b", "fine"), ("second_look", "fine")
        ]  # fmt: skip
    with started(several, allowed_tools=["3d"]) as tools, pytest.raises(SettingsError, match="prefix="):
        ToolRegistry(tools)


NONSENSE = ["hello", "{", "[]", "null", "[" * 5000]
SENT = [
    {"id": 99999, "result": {}},
    {"method": "x"},
    {"id": "s0", "method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 5}},
    {"id": "s1", "method": "roots/list", "params": {}},
    {"id": "s2", "method": "no/such", "params": {}},
]


def test_nonsense_and_questions_of_a_server_do_not_stop_its_calls():
    lines = [*NONSENSE, *(json.dumps({"jsonrpc": "2.0", **each}) for each in SENT)]
    does = {f"before {method}": lines for method in ("initialize", "tools/list", "tools/call")}
    with started(does) as tools:
        assert [called(tools).outcome for _ in range(2)] == [ToolOutcome.OK, ToolOutcome.OK]


def raw(reply: str) -> dict[str, str]:
    return {"raw": f'{{"jsonrpc": "2.0", "id": NUMBER, {reply}}}'}


@pytest.mark.parametrize(
    ("does", "outcome", "said"),
    [
        (raw('"result": {"content": "x"}'), ToolOutcome.RAISED, ".*valid list.*"),
        (raw('"result": {"content": [{"type": "video"}]}'), ToolOutcome.RAISED, ".*TextContent.*"),
        (raw('"result": {"content": ["\\ud800"]}'), ToolOutcome.TIMED_OUT, "no answer within .*"),
        (raw('"result": null'), ToolOutcome.TIMED_OUT, "no answer within .*"),
        (raw('"result": {"content": [], "isError": true}'), ToolOutcome.RAISED, "the tool failed and did not say why"),
        ({"raw": "\udcff\n" + raw('"result": {"content": []}')["raw"]}, ToolOutcome.OK, ""),
        (raw(f'"error": {{"code": 1, "message": "{"x" * 50_000}"}}'), ToolOutcome.RAISED, "x{100}"),
        (raw(f'"error": {{"code": 1, "message": "no such key: {KEY}"}}'), ToolOutcome.RAISED, "no such key: …"),
    ],
)
def test_a_result_that_makes_no_sense_is_an_error_that_the_model_reads_without_our_key(does, outcome, said):
    with started(does, timeout_seconds=0.5, environment={"OUR_KEY": KEY}) as tools:
        event = called(tools)
        words = str(event.call.result)
        assert event.outcome is outcome and re.fullmatch(said, words) and len(words) < 500 and KEY not in words


def test_a_server_that_ends_is_started_again(caplog, tmp_path):
    with started({"ends": str(tmp_path / "ended"), "ended": str(tmp_path / "ended")}) as tools:
        events = [called(tools) for _ in range(3)]
    assert [event.outcome for event in events] == [ToolOutcome.RAISED, ToolOutcome.OK, ToolOutcome.OK]
    assert events[0].call.result == "the MCP server has ended: Connection closed"
    (told,) = [record.getMessage() for record in caplog.records]
    assert "has ended; it is started again" in told


NULLS = {"type": "object", "required": None, "properties": {"q": {"type": "string", "enum": None, "default": None}}}
UNUSABLE = [
    {"type": "object", "minProperties": "q"},
    {"type": "object", "properties": {"q": {"type": "text"}}},
    {"type": "object", "properties": {"q": {"type": "object", "properties": [1]}}},
    {"type": "object", "properties": {"q": {"$ref": "#/$defs/none"}}},
    {"type": "object", "properties": {"q": {"pattern": 3}}},
]


def test_a_tool_that_cannot_be_used_is_left_out_with_its_reason_and_null_is_no_keyword(caplog):
    listed = [{"name": f"bad{number}", "inputSchema": unusable} for number, unusable in enumerate(UNUSABLE)]
    with started({"page": {"tools": [*listed, {"name": "look", "inputSchema": NULLS}]}}) as tools:
        registry = ToolRegistry(tools)
        assert registry.names() == ["look"]
        assert [registry.execute_tool("look"), registry.execute_tool("look", q="a")] == [(True, "fine")] * 2
        assert registry.execute_tool("look", q=1)[1] == "argument 'q' should be a string, got 1"
    told = [each for each in caplog.messages if "left out" in each]
    assert len(told) == len(UNUSABLE)
    for number, each in enumerate(told):
        assert f"MCP tool 'bad{number}': " in each and "JSON Schema" in each


@pytest.mark.parametrize(
    ("command", "seconds", "words"),
    [
        (["/no/such/server"], 60.0, r"MCP server '/no/such/server .*' cannot be used: .*No such file"),
        ([sys.executable, "-c", "import sys; sys.stdin.read()"], 0.5, "no answer within 0.5 seconds"),
    ],
)
def test_a_server_that_does_not_start_is_named_with_the_reason_and_ended(command, seconds, words):
    marker = str(uuid.uuid4())
    with pytest.raises(McpServerError, match=words):
        mcp_tools(command=[*command, marker], start_seconds=seconds)
    assert not is_running(marker)


def test_closing_ends_calls_that_wait_for_a_server_and_a_server_that_hangs(tmp_path):
    ended, marker = tmp_path / "ended", str(uuid.uuid4())
    tools = started({"ends": "/nowhere", "ended": str(ended), "hangs": str(ended)}, start_seconds=600.0, marker=marker)

    called(tools)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(called, tools)
        while ended.exists():  # the server removes it before it hangs
            time.sleep(0.02)
        tools.close()
        event = waiting.result()
    assert event.outcome is ToolOutcome.RAISED and "the MCP server is closed" in str(event.call.result)
    assert not is_running(marker)


def test_a_key_that_a_server_prints_and_escapes_are_not_in_the_error():
    with pytest.raises(McpServerError, match=r"its last output: …$") as error:
        started({"log": "OUR_KEY"}, environment={"OUR_KEY": KEY})
    assert KEY not in str(error.value)
    with pytest.raises(McpServerError, match=r"its last output: \[2J x$") as error:
        started({"log": "TEXT"}, environment={"TEXT": "\x1b[2J\u202ex"})
    assert str(error.value).isprintable()


class Web(BaseHTTPRequestHandler):
    """A server at a URL. A method in `closes` closes the connection, once."""

    protocol_version = "HTTP/1.1"
    closes: ClassVar[set[str]] = set()

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        method = asked["method"]
        if method in self.closes:
            self.closes.remove(method)
            self.close_connection = True
            return
        info = {"protocolVersion": asked.get("params", {}).get("protocolVersion"), "capabilities": {"tools": {}}}
        found = {
            "initialize": {**info, "serverInfo": {"name": "web", "version": "1"}},
            "tools/list": {"tools": [{"name": "look", "inputSchema": {"type": "object"}}]},
            "tools/call": {"content": [{"type": "text", "text": "fine"}]},
        }
        reply = {"result": found[method]} if method in found else {"error": {"code": -32601, "message": "none"}}
        body = json.dumps({"jsonrpc": "2.0", "id": asked["id"], **reply}).encode() if "id" in asked else b""
        self.send_response(200 if body else 202)
        for name, value in (("Content-Type", "application/json"), ("Content-Length", str(len(body)))):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def test_a_key_in_a_url_is_not_in_the_error():
    with pytest.raises(McpServerError) as error:
        mcp_tools(url=f"http://me:{KEY}@127.0.0.1:1/mcp?api_key={KEY}")
    assert KEY not in str(error.value) and "http://127.0.0.1:1/mcp cannot be used" in str(error.value)


def test_a_server_at_a_url_that_closes_a_connection_is_connected_again(monkeypatch, caplog):
    monkeypatch.setattr(Web, "closes", {"tools/call"})
    with ThreadingHTTPServer(("127.0.0.1", 0), Web) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with mcp_tools(url=f"http://127.0.0.1:{server.server_address[1]}/mcp") as tools:
            assert [called(tools).outcome for _ in range(3)] == [ToolOutcome.RAISED, ToolOutcome.OK, ToolOutcome.OK]
        server.shutdown()
    assert "; it is connected again with the next call" in caplog.text
