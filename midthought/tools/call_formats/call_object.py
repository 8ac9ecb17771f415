"""A call as a JSON object with the tool's name and its arguments: reading, writing, and errors for the model.

Does not depend on the text around the object (call formats) or on which tools exist.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from midthought.tools.call_formats.json_object import BadObjectError, load_object, load_values, write_json
from midthought.types import ParsedAction

_FENCE = "```"
_KINDS = {bool: "true or false", int: "a number", float: "a number", str: "text", list: "a list", dict: "an object"}


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
