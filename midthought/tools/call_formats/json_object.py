"""JSON objects: finds the end of one in a stream of characters, reads and writes it; calls as objects with the tool's name and
arguments.

Does not depend on the text around the object (call formats) or on which tools exist.
"""

from __future__ import annotations

import json
import math
import re
import string
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

from midthought.types import ParsedAction

_BETWEEN_VALUES = " \t\r\n,"
_IN_OBJECT, _IN_STRING = re.compile(r'["{}]'), re.compile(r'["\\]')
_FENCE = "```"
_KINDS = {bool: "true or false", int: "a number", float: "a number", str: "text", list: "a list", dict: "an object"}


class BadObjectError(ValueError):
    """Text in balanced braces that is not a JSON object; the message is written for the model."""


class ObjectScanner:
    """Finds the closing brace of an object. Braces in strings do not count; brackets are checked by the JSON reader.

    >>> scanner = ObjectScanner()
    >>> [scanner.feed(text) for text in ('{"a', '}": ', '1} and so on')]
    [0, 0, 2]
    """

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._is_escaped = False

    def feed(self, text: str) -> int:
        """Reads the next text; the first text starts with the opening brace. Returns the number of characters up to and
        including the closing brace, or 0 if the object does not end here. The rest is not read."""
        place = 0
        if self._is_escaped and text:
            place, self._is_escaped = 1, False
        while found := (_IN_STRING if self._in_string else _IN_OBJECT).search(text, place):
            place = found.end()
            if found[0] == "\\":
                self._is_escaped = place == len(text)
                place += 1
            elif found[0] == '"':
                self._in_string = not self._in_string
            else:
                self._depth += 1 if found[0] == "{" else -1
                if not self._depth:
                    return place
        return 0


def load_object(text: str) -> dict[str, Any]:
    """Reads a JSON object. Raises `BadObjectError` for anything else, and for values that UTF-8 files or other JSON readers
    cannot represent: NaN, infinities, lone surrogates."""
    with _explained():
        value = _DECODER.decode(text)
        _require_encodable(value, text)
    if not isinstance(value, dict):
        raise BadObjectError(f"bad JSON: should be an object in braces, got {type(value).__name__}")
    return value


def load_values(text: str) -> list[Any]:
    """Reads several JSON values, separated by spaces, line ends or commas, as strictly as `load_object`."""
    values, position = [], 0
    with _explained():
        while position < len(text):
            value, position = _DECODER.raw_decode(text, position)
            values.append(value)
            while position < len(text) and text[position] in _BETWEEN_VALUES:
                position += 1
        _require_encodable(values, text)
    return values


def write_json(value: Any, tags: Sequence[str] = ()) -> str:
    """Returns JSON on one line, with Unicode unescaped. `tags` do not occur in it: their first character is escaped."""
    written = json.dumps(value, ensure_ascii=False)
    for tag in tags:
        written = written.replace(tag, f"\\u{ord(tag[0]):04x}{tag[1:]}")
    return written


@contextmanager
def _explained() -> Iterator[None]:
    """Turns every reading error into a `BadObjectError` with a message for the model."""
    try:
        yield
    except json.JSONDecodeError as error:
        raise BadObjectError(f"bad JSON: {error.msg.removesuffix(' at')} at character {error.pos + 1}") from None
    except RecursionError:
        raise BadObjectError("bad JSON: nested too deeply") from None
    except UnicodeEncodeError:
        raise BadObjectError("bad JSON: half of a surrogate pair") from None
    except ValueError as error:
        raise BadObjectError(f"bad JSON: {str(error)[:100]}") from None


def _require_encodable(value: Any, text: str) -> None:
    if "\\u" in text:
        json.dumps(value, ensure_ascii=False).encode()


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON value")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:20]} is too large")
    return value


_DECODER = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite)


# -- calls as objects ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CallObject:
    """The keys of the tool's name and of its arguments.

    Strict unless the meaning is certain: the arguments may be missing if the name is the only key, may be null (none), or a
    string with the object's JSON, as in OpenAI's API. Other keys are ignored.
    """

    name_key: str
    parameters_key: str
    id_key: str | None = None
    """Key of the call's id, which may be missing."""

    def read(self, value: Any, raw_text: str) -> ParsedAction:
        """Returns the call in a JSON value; `success` False, with an error for the model, if there is none."""
        name = None
        try:
            name = self._name(value)
            parameters = self._parameters(value)
        except BadObjectError as bad:
            return malformed(str(bad), raw_text, name)
        given = value.get(self.id_key) if self.id_key else None
        call_id = given if isinstance(given, str) else None
        return ParsedAction(tool_name=name, parameters=parameters, raw_text=raw_text, success=True, call_id=call_id)

    def read_block(self, text: str, raw_text: str) -> list[ParsedAction]:
        """Returns the calls of a block: one object, several, or a list of them, optionally in a code fence.

        Text that is not JSON throughout is one malformed call.
        """
        try:
            values = load_values(_without_fence(text.strip()))
        except BadObjectError as bad:
            return [malformed(str(bad), raw_text)]
        calls = [call for value in values for call in (value if isinstance(value, list) else [value])]
        if not calls:
            return [malformed(f"no call in it; {self._remedy()}", raw_text)]
        return [self.read(call, raw_text) for call in calls]

    def write(self, tool_name: str, parameters: Mapping[str, Any], tags: Sequence[str]) -> str:
        """Returns a call on one line. The `tags` cannot occur in it: their first character is escaped."""
        return write_json({self.name_key: tool_name, self.parameters_key: dict(parameters)}, tags)

    def _name(self, call: Any) -> str:
        if not isinstance(call, dict):
            raise BadObjectError(f"a call should be an object, got {_kind(call)}; {self._remedy()}")
        if self.name_key not in call:
            raise BadObjectError(f'missing "{self.name_key}"; {self._remedy()}')
        name = call[self.name_key]
        if not isinstance(name, str) or not name.strip():
            got = "nothing" if isinstance(name, str) else _kind(name)
            raise BadObjectError(f'"{self.name_key}" should be the name of a tool, got {got}; {self._remedy()}')
        return name.strip()

    def _parameters(self, call: Mapping[str, Any]) -> dict[str, Any]:
        if self.parameters_key not in call and len(call) > 1:
            raise BadObjectError(f'missing "{self.parameters_key}"; {self._remedy()}')
        parameters = call.get(self.parameters_key)
        if parameters is None:
            return {}
        if isinstance(parameters, str):
            try:
                return load_object(parameters)
            except BadObjectError as bad:
                raise BadObjectError(f'"{self.parameters_key}" should be an object, got text ({bad})') from None
        if not isinstance(parameters, dict):
            raise BadObjectError(f'"{self.parameters_key}" should be an object, got {_kind(parameters)}')
        return parameters

    def _remedy(self) -> str:
        return f'write {{"{self.name_key}": "NAME", "{self.parameters_key}": {{...}}}}'


def malformed(error: str, raw_text: str, tool_name: str | None = None) -> ParsedAction:
    """Returns a call that cannot be run, with an error for the model."""
    return ParsedAction(tool_name=tool_name, parameters={}, raw_text=raw_text, success=False, error=error)


def _without_fence(text: str) -> str:
    if len(text) < 2 * len(_FENCE) or not (text.startswith(_FENCE) and text.endswith(_FENCE)):
        return text
    return text[len(_FENCE) : -len(_FENCE)].lstrip(string.ascii_letters).strip()


def _kind(value: Any) -> str:
    return "null" if value is None else _KINDS[type(value)]
