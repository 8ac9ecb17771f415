"""Calls in mid-thought: `#call NAME {json}` anywhere in running text, ended by the object's closing brace."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from midthought.errors import SettingsError, near_names
from midthought.tools.call_formats import THINK_CLOSE, THINK_OPEN, ToolCallFormat, describe_tools
from midthought.tools.call_formats.json_object import write_json
from midthought.tools.call_formats.streaming import StoppingScanner, as_one_result
from midthought.tools.definition import ToolDefinition
from midthought.types import ParsedAction, ToolEvent, ToolOutcome

_KEYWORD = "#call"
_HEAD = re.compile(r"#call[ \t\r\n]+(?P<name>[A-Za-z_][\w.-]*)[ \t\r\n]*\{")
_BEGINNING = re.compile(r"#(?:c|ca|cal|call|call[ \t\r\n]+|call[ \t\r\n]+[A-Za-z_][\w.-]*[ \t\r\n]*)?")
"""Text that may become the head of a call."""
_MAX_HEAD = 400
_SIGN = re.compile(r"[\n`#]")
_MARKER = re.compile(r"[\s>]*#(?:call\b|[\w.-]{1,200}_(?:result|error):)")
"""Start of a line that the policy could take for a call or for the result of another tool."""

_QUOTE = re.compile(r" {0,3}(?:```|#[A-Za-z_][\w.-]*_(?:result|error):)")
"""The beginning of a line that opens or closes a fence, or begins a result."""
_MAY_BEGIN = re.compile(r" {0,3}(?:`{0,2}|#[\w.-]*)")
"""The beginning of a line that may still become a fence or a result's head."""
_MAX_LINE = 256

Layout = Literal["inside", "between"]


class InThoughtFormat(ToolCallFormat):
    """`#call NAME {json}`, with the result written back into the same thought.

    - `#call` may occur anywhere except directly after a word character or another `#`. Spaces or line ends follow it.
      NAME is a letter or `_`, then letters, digits, `_`, `.` or `-`; spaces or line ends may follow. The next character
      is `{`, at most 400 characters after the `#`, or it is no call. The call ends with its closing brace, whether or not the
      JSON can be read.
    - Quoted text contains no call: code between lines that begin with ```, the rest of a line after an odd number of backticks,
      and a `#NAME_result:` or `#NAME_error:` that the policy wrote itself, up to a blank line.
    - Layout `inside`: only calls within `<think>…</think>` count. `between`: the thought is closed before a call and
      opened again after it, so calls count everywhere. A think tag counts everywhere; inside a call's braces it discards
      the call.
    """

    name = "in_thought"
    stops_at_call = True

    def __init__(self, layout: Layout = "inside", think_open: str = THINK_OPEN, think_close: str = THINK_CLOSE) -> None:
        super().__init__(think_open, think_close)
        if layout not in get_args(Layout):
            raise SettingsError(f"unknown layout {layout!r}. {near_names(layout, get_args(Layout))}")
        self.layout = layout

    def scanner(self, *, in_thought: bool) -> InThoughtScanner:
        """Returns a new scanner; `in_thought` if the prompt already opened the thought."""
        return InThoughtScanner(self.think_tags, calls_everywhere=self.layout == "between", in_thought=in_thought)

    def parse_all(self, text: str, *, in_thought: bool | None = True) -> list[ParsedAction]:
        """Returns every finished call of a text, malformed ones included. Usually the prompt opened the thought."""
        return super().parse_all(text, in_thought=bool(in_thought))

    def render_call(self, tool_name: str, parameters: Mapping[str, Any]) -> str:
        """Returns a call as the policy should write it. A think tag inside an argument is escaped."""
        return f"{_KEYWORD} {tool_name} {write_json(dict(parameters), self.think_tags)}"

    def render_results(self, events: Sequence[ToolEvent]) -> str:
        r"""Returns the text after the closing brace: `"\n#NAME_result:\n<text>\n\n"`, or `"\n#NAME_error: <text>\n\n"`
        on one line (`#call_error:` if the call had no name). Several results follow each other without another line.

        Empty lines of a result are removed, so the first empty line marks its end. A line that looks like a call or
        another result begins with `> `.
        """
        return "".join(["\n", *(_render(event) for event in events)])

    def explain(self, example: str, definitions: Sequence[ToolDefinition]) -> str:
        where = f"Between {' and '.join(self.think_tags)}" if self.layout == "inside" else "Between two thoughts"
        return (
            f"You can call tools while you think. {where}, write {_KEYWORD}, the tool's name and its arguments as a JSON "
            f"object, like this:\n{example}\n"
            f"Stop there: the result follows after `#{definitions[0].name}_result:`. Then think on.\n\n"
            f"{describe_tools(definitions)}"
        )


def _render(event: ToolEvent) -> str:
    name, text = event.call.tool_name or "call", event.call.result or ""
    if event.outcome is ToolOutcome.OK:
        text = as_one_result(text, _MARKER)
        return f"#{name}_result:\n{text}\n\n" if text else f"#{name}_result:\n\n"
    return f"#{name}_error: {' '.join(text.split())}\n\n"


class InThoughtScanner(StoppingScanner):
    """Finds `#call`s that are not in fenced code, a code span or a copied result.

    A line that begins with ``` opens or closes a fence. A code span ends at the end of its line: a scanner that stops at calls
    cannot look ahead.
    """

    def __init__(self, think_tags: tuple[str, str], *, calls_everywhere: bool, in_thought: bool) -> None:
        self._calls_everywhere = calls_everywhere
        super().__init__(think_tags, in_thought=in_thought)

    def resume(self) -> None:
        """Discards an unfinished call, and what was quoted."""
        super().resume()
        self._before = ""
        """The last character that was read."""
        self._in_fence = self._in_result = False
        self._begin_line()

    def _begin_line(self) -> None:
        self._begins_line = self._is_blank = True
        self._in_span = False

    def _read(self, text: str) -> str:
        while text and (self._in_thought or self._calls_everywhere):
            if self._object:
                text = self._in_object(text)
            elif not self._begins_line:
                sign = _SIGN.search(text)
                prose = text[: sign.start()] if sign else text
                self._before = prose[-1:] or self._before
                self._is_blank = self._is_blank and not prose.strip()
                if not sign:
                    return ""
                call = text[sign.start() :]
                if sign[0] == "#" and self._may_begin():
                    head = _HEAD.match(call)
                    if head and head.end() <= _MAX_HEAD + 1:
                        self._name, self._raw, self._before = head["name"], [head[0][:-1]], "}"
                        text = self._in_object(call[head.end() - 1 :])
                        continue
                    if len(call) <= _MAX_HEAD and _BEGINNING.fullmatch(call):
                        return call
                self._read_sign(sign[0])
                text = call[1:]
            elif len(text) <= _MAX_LINE and _MAY_BEGIN.fullmatch(text):
                return text
            else:
                text = self._read_line_start(text)
        return ""

    def _may_begin(self) -> bool:
        is_quoted = self._in_fence or self._in_result or self._in_span
        return not (is_quoted or self._before.isalnum() or self._before in ("_", "#"))

    def _read_sign(self, character: str) -> None:
        self._before = character
        if character == "\n":
            self._in_result = self._in_result and not self._is_blank
            self._begin_line()
        else:
            self._in_span ^= character == "`"
            self._is_blank = False

    def _read_line_start(self, text: str) -> str:
        """Reads what opens or closes a fence or begins a result; returns the rest."""
        self._begins_line = False
        quote = _QUOTE.match(text)
        if quote is None or quote.end() > _MAX_LINE + 1:
            return text
        if quote[0][-1] == "`":
            self._in_fence ^= not self._in_result
            self._in_span = True  # three backticks
        else:
            self._in_result = self._in_result or not self._in_fence
        self._is_blank, self._before = False, quote[0][-1]
        return text[quote.end() :]
