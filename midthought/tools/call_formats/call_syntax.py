"""How a chat template writes calls: the text around them, and how name and arguments are written.

Writes and reads calls of one turn. Does not depend on a tokenizer: `detection.py` finds the syntax of a template.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from midthought.tools.call_formats.json_object import (
    BadObjectError,
    CallObject,
    ObjectScanner,
    load_object,
    malformed,
    write_json,
)
from midthought.tools.call_formats.not_json import read_loose, read_python_calls, write_loose
from midthought.tools.schemas import fits_type
from midthought.types import ParsedAction
from midthought.types.turn import THINK_TAGS

Call = tuple[str, Mapping[str, Any], str]
"""Name, arguments and id of a call."""
ParameterTypes = Callable[[str, str], tuple[str, ...]]
"""Returns the JSON Schema types of a tool's parameter; empty if they are unknown."""

_NAME = re.compile(r"\s*([\w.\-/]+)")
_LEADING_TAG = re.compile(r"^\s*<\|[^<>|]*\|>")
_LAST_TAG = re.compile(r"(<[^<>]*>|\[[A-Z_]+\])\s*$")
_LAST_WORD = re.compile(r"(\S+)\s*$")
_PYTHON_WORDS = {"True": True, "False": False, "None": None}


@dataclass(frozen=True, kw_only=True, slots=True)
class CallSyntax:
    r"""Literal texts of a chat template.

    `style` is how name and arguments are written:
    - `object`: one JSON object with both, `{"name": "add", "arguments": {"a": 1}}`;
    - `name_then_object`: the name, then the arguments as a JSON object;
    - `name_then_tags`: the name, then every argument between tags;
    - `keywords`: a Python call, `add(a=1)`, in a list;
    - `loose_object`: the name, then the arguments as Gemma writes objects (`loose_object.py`).
    """

    style: Literal["object", "name_then_object", "name_then_tags", "keywords", "loose_object"]
    think_tags: tuple[str, str] = THINK_TAGS
    """What opens and closes a thought."""
    around_answer: tuple[str, str] = ("", "")
    """Around an answer without calls, after its thought: `<|channel|>final<|message|>` in harmony."""
    after_content: str = ""
    """Between a text and the calls that follow it in one turn."""
    before_calls: str = ""
    before_call: str = ""
    after_call: str = ""
    between_calls: str = ""
    after_calls: str = ""
    keys: tuple[tuple[str, Any], ...] = ()
    """`object`: its keys in order, each with NAME, ARGUMENTS, ID, INDEX or a constant."""
    before_arguments: str = ""
    """Between name and arguments; `{id}` is the call's id."""
    before_key: str = ""
    after_key: str = ""
    after_key_of_others: str = ""
    """`name_then_tags`: after the key of a value that is no string, if the template distinguishes them (DeepSeek V3.2)."""
    after_value: str = ""
    without_arguments: str = ""
    """`name_then_tags`: the text after the name of a call without arguments, up to the end of the call."""
    has_python_words: bool = False
    """`name_then_tags`, `keywords`: whether true and null are written True and None."""
    has_cdata: bool = False
    """`name_then_tags`: whether a text with `<`, `&` or a line end is XML's character data, `<![CDATA[…]]>` (MiniCPM5)."""
    has_python_objects: bool = False
    """`name_then_tags`: whether lists and objects are written as Python's (Seed-OSS), not as JSON."""
    quote: str = ""
    """`keywords`, `loose_object`: the quotation mark around strings."""
    name_is_in_id: bool = False
    """Whether the id is written in place of the name (Kimi): `functions.NAME:INDEX`."""

    # -- writing -----------------------------------------------------------------------------------------------

    def make_id(self, name: str, index: int) -> str:
        """Returns the id of the conversation's call number `index`, from 0: nine characters, as Mistral's templates require."""
        return f"functions.{name}:{index}" if self.name_is_in_id else f"call{index:05d}"

    def write(self, calls: Sequence[Call], first_index: int = 0, escaped: Sequence[str] = ()) -> str:
        """Returns the calls of one turn as the template writes them. `first_index`: number of calls in earlier turns.

        Markers in the strings of JSON arguments are escaped, so that they cannot end the call; `escaped`: further such tags.
        """
        tags = [tag for tag in (self.opening, self.closing, *escaped) if tag]
        written = [self._write(call, first_index + number, tags) for number, call in enumerate(calls)]
        inner = self.between_calls.join(f"{self.before_call}{call}" for call in written)
        return f"{self.before_calls}{inner}{self.after_calls}"

    def _write(self, call: Call, index: int, tags: Sequence[str]) -> str:
        name, arguments, call_id = call
        if self.style == "object":
            kinds = {NAME: name, ARGUMENTS: dict(arguments), ID: call_id, INDEX: str(index)}
            return write_json({key: kinds.get(kind, kind) for key, kind in self.keys}, tags) + self.after_call
        if self.style == "keywords":
            pairs = (f"{key}={self._quoted(value)}" for key, value in arguments.items())
            return f"{name}({', '.join(pairs)}){self.after_call}"
        head = call_id if self.name_is_in_id else name
        if self.style == "loose_object":
            return f"{head}{self.before_arguments}{write_loose(arguments, self.quote)}{self.after_call}"
        if self.style == "name_then_object":
            before = self.before_arguments.replace("{id}", call_id)
            return f"{head}{before}{write_json(dict(arguments), tags)}{self.after_call}"
        if not arguments:
            return head + self.without_arguments
        written = head + self.before_arguments
        for key, value in arguments.items():
            after_key = self.after_key if isinstance(value, str) else self.after_key_of_others or self.after_key
            written += f"{self.before_key}{key}{after_key}{self._value(value)}{self.after_value}"
        return written + self.after_call

    def _quoted(self, value: Any) -> str:
        if not isinstance(value, str):
            return self._value(value)
        escaped = json.dumps(value, ensure_ascii=False)[1:-1].replace('\\"', '"')
        return f"{self.quote}{escaped.replace(self.quote, chr(92) + self.quote)}{self.quote}"

    def _value(self, value: Any) -> str:
        if isinstance(value, str):
            return f"<![CDATA[{value}]]>" if self.has_cdata and re.search(r"[<&\n]", value) else value
        if self.has_python_objects if isinstance(value, list | dict) else self.has_python_words:
            return str(value)
        return json.dumps(value, ensure_ascii=False)

    # -- reading -----------------------------------------------------------------------------------------------

    @property
    def opening(self) -> str:
        """The marker at which a call, or a list of calls, begins; empty if the whole turn is the call (Llama)."""
        return _marker(self.before_call) or _marker(self.before_calls)

    @property
    def closing(self) -> str:
        """The marker that ends what `opening` began; empty if there is none."""
        after = self.after_call if _marker(self.before_call) else self.after_call + self.after_calls
        return (after.strip().lstrip("]").split() or [""])[-1]

    @property
    def markers(self) -> list[str]:
        """The texts with which the calls of a turn may begin; empty if the whole turn is the call."""
        return [marker for marker in (_marker(self.before_calls), self.opening) if marker]

    def first_marker(self, text: str) -> int:
        """Returns the position at which the calls of a turn begin; the length of the text if there are none."""
        places = [place for marker in self.markers if (place := text.find(marker)) >= 0]
        is_call = not self.markers and self._begins_call(_LEADING_TAG.sub("", text))
        return min(places, default=0 if is_call else len(text))

    def answer(self, text: str) -> str | None:
        """Returns the answer in a turn's text; None if the template does not mark it."""
        before, after = self.around_answer
        if before not in text or not before:
            return None
        answer = text.rpartition(before)[2]
        return (answer.partition(after)[0] if after else answer).strip()

    def read(self, text: str, types: ParameterTypes) -> list[ParsedAction]:
        """Returns the calls of a turn's text without thoughts, in order, malformed ones included."""
        if not self.opening:
            block = _LEADING_TAG.sub("", text)
            return self._read_block(block, text, types) if self._begins_call(block) else []
        return [call for raw, block in self._blocks(text) for call in self._read_block(block, raw, types)]

    @property
    def _object(self) -> CallObject:
        key_of = {kind: key for key, kind in self.keys}
        return CallObject(key_of[NAME], key_of[ARGUMENTS], key_of.get(ID))

    def _begins_call(self, text: str) -> bool:
        """Whether a turn without markers is a call."""
        if self.style == "keywords":
            return re.match(r"\s*\[\s*[\w.]+\(", text) is not None
        is_object = self.style == "object" and text.lstrip().startswith(("{", "[{"))
        return is_object and f'"{self._object.name_key}"' in text

    def _blocks(self, text: str) -> Iterator[tuple[str, str]]:
        """Yields (text with markers, text between markers) of every block, up to its closing marker or the next opening one."""
        places = [*re.finditer(r"\s*".join(map(re.escape, self.opening.split())), text)]
        for number, place in enumerate(places, 1):
            piece = text[place.end() : places[number].start() if number < len(places) else len(text)]
            inner, closing, _ = piece.partition(self.closing) if self.closing else (piece, "", "")
            yield f"{place[0]}{inner}{closing}", inner

    def _read_block(self, block: str, raw: str, types: ParameterTypes) -> list[ParsedAction]:
        if self.style == "object":
            return self._object.read_block(block, raw)
        if self.style == "keywords":
            return read_python_calls(block, raw)
        if self.style == "name_then_object":
            return self._read_named_object(block, raw)
        if self.style == "loose_object":
            return [self._read_loose_object(block, raw)]
        return [self._read_tags(block, raw, types)]

    def _read_named_object(self, block: str, raw: str) -> list[ParsedAction]:
        last = _LAST_TAG.search(self.before_arguments) or _LAST_WORD.search(self.before_arguments)
        head, found, rest = block.partition(last[1] if last else "{")
        rest = rest if last else found + rest
        if not found:
            # Without a tag the marker may be prose.
            return [malformed(self._remedy(), raw)] if self.opening[0] in "<[" else []
        name, call_id = self._head(head)
        if name is None:
            return [malformed(f"no tool is named; {self._remedy()}", raw)]
        start = rest.find("{")
        length = ObjectScanner().feed(rest[start:]) if start >= 0 and not rest[:start].strip() else 0
        if not length:
            return [malformed(f"the arguments are not a JSON object; {self._remedy()}", raw, name)]
        try:
            arguments = load_object(rest[start : start + length])
        except BadObjectError as bad:
            return [malformed(str(bad), raw, name)]
        rest = rest[start + length :]
        separator = _flexible(self.after_call + self.between_calls)
        between = re.match(separator, rest) if self.between_calls.strip() else None
        more = self._read_named_object(rest[between.end() :], raw) if between and rest[between.end() :].strip() else []
        return [ParsedAction(tool_name=name, parameters=arguments, raw_text=raw, call_id=call_id), *more]

    def _read_loose_object(self, block: str, raw: str) -> ParsedAction:
        start = block.find("{")
        name, _ = self._head(block[:start])
        if start < 0 or name is None:
            return malformed(f"no tool is named; {self._remedy()}", raw)
        try:
            return ParsedAction(tool_name=name, parameters=read_loose(block[start:], self.quote), raw_text=raw)
        except ValueError as error:
            return malformed(f"the arguments cannot be read ({error}); {self._remedy()}", raw, name)

    def _head(self, head: str) -> tuple[str | None, str | None]:
        """Returns the name and the id in the text before the arguments."""
        found = _NAME.match(head)
        if found is None:
            return None, None
        if self.name_is_in_id:
            return found[1].removeprefix("functions."), head.strip()
        before, has_id, _ = self.before_arguments.partition("{id}")
        call_id = head[found.end() :].partition(before.strip())[2].strip() if has_id else ""
        return found[1], call_id or None

    def _read_tags(self, block: str, raw: str, types: ParameterTypes) -> ParsedAction:
        name, _ = self._head(block)
        if name is None:
            return malformed(f"no tool is named; {self._remedy()}", raw)
        others = f"|({_flexible(self.after_key_of_others)})" if self.after_key_of_others else "()"
        middle = f"(?:{_flexible(self.after_key)}{others})"
        inner = r"(<!\[CDATA\[.*?\]\]>|.*?)" if self.has_cdata else "(.*?)"
        pair = f"{_flexible(self.before_key)}(.*?){middle}{inner}{_flexible(self.after_value)}"
        arguments: dict[str, Any] = {}
        for key, is_other, value in re.findall(pair, block, flags=re.DOTALL):
            is_string = bool(self.after_key_of_others) and not is_other
            if self.has_cdata and value.startswith("<![CDATA["):
                is_string, value = True, value.removeprefix("<![CDATA[").removesuffix("]]>")
            arguments[key.strip()] = self._read_value(value, ("string",) if is_string else types(name, key.strip()))
        outside = re.sub(r"<!\[CDATA\[.*?\]\]>", "", block, flags=re.DOTALL) if self.has_cdata else block
        if len(arguments) != outside.count(self.before_key.strip()):
            return malformed(f"an argument is not closed or occurs twice; {self._remedy()}", raw, name)
        return ParsedAction(tool_name=name, parameters=arguments, raw_text=raw)

    def _read_value(self, text: str, kinds: tuple[str, ...]) -> Any:
        """Returns a string if the parameter is one, else the JSON value, else the text, which the tool's schema then refuses.
        If it may be a string or something else, it is a string unless the text is a value of the other types."""
        if kinds == ("string",):
            return text
        value = self._parsed(text, kinds)
        others = tuple(kind for kind in kinds if kind != "string")
        return value if len(others) == len(kinds) or fits_type(value, others) else text

    def _parsed(self, text: str, kinds: tuple[str, ...]) -> Any:
        """Returns the JSON value, or Python's; the text if it is none."""
        if self.has_python_words and text.strip() in _PYTHON_WORDS:
            return _PYTHON_WORDS[text.strip()]
        try:
            return load_object(f'{{"value": {text}}}')["value"]
        except BadObjectError:
            pass
        try:
            return ast.literal_eval(text.strip()) if {"array", "object"} & {*kinds} else text
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            return text

    def _remedy(self) -> str:
        arguments = {"ARGUMENT": "VALUE"}
        return f"write {self.write([('NAME', arguments, self.make_id('NAME', 0))])}"


NAME, ARGUMENTS, ID, INDEX = "\0name", "\0arguments", "\0id", "\0index"
"""What stands under a key of a call's object."""


def _marker(text: str) -> str:
    """Returns the text without blanks, line ends and the bracket of a JSON list around or after it."""
    return text.strip().rstrip("[ \n")


def _flexible(literal: str) -> str:
    """Returns a pattern for the literal in which line ends and blanks may be missing, or stand between two tags."""
    middle = r"\s*".join(map(re.escape, literal.replace("><", "> <").split()))
    return ("\n?" if literal[:1] == "\n" else "") + middle + ("\n?" if literal[-1:] == "\n" else "")
