"""Calls that are not JSON: in Python's syntax, `[add(a=1, b=2)]`, read without running anything, and objects as Gemma writes
them."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Mapping
from typing import Any

from midthought.tools.call_formats.json_object import malformed
from midthought.types import ParsedAction

_REMEDY = "write [NAME(ARGUMENT=VALUE)]"
_STRING = re.compile(r"'(?:\\.|[^'\\])*+'|\"(?:\\.|[^\"\\])*+\"", re.DOTALL)
_KEY_OF_GEMMA = re.compile(r"([{,])\s*([^\s:{}\[\],](?:[^:{}\[\],]*[^\s:{}\[\],])?)\s*:")
"""Keys are bare; texts stand between quotes that are tokens of their own and are not escaped."""
_JSON_WORDS = {"true": True, "false": False, "null": None}


def read_python_calls(text: str, raw_text: str) -> list[ParsedAction]:
    """Returns the calls of a list, a single call, or calls on lines of their own (Olmo 3). Values are literals; `true`,
    `false` and `null` are accepted, too, and line ends in strings.

    Text that is no such list is one malformed call.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # invalid escapes
            nodes = _expressions(text.strip())
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return [malformed(f"not a Python call ({type(error).__name__}); {_REMEDY}", raw_text)]
    return [_read(each, raw_text) for each in nodes] or [malformed(f"no call in it; {_REMEDY}", raw_text)]


def _expressions(text: str) -> list[ast.AST]:
    """Returns the expressions of a text, those in a list one by one. Raises SyntaxError."""
    try:
        lines = ast.parse(text).body
    except SyntaxError:
        lines = ast.parse(_STRING.sub(lambda string: string[0].replace("\n", "\\n"), text)).body
    if not lines:
        raise SyntaxError
    values: list[ast.AST] = [line.value if isinstance(line, ast.Expr) else line for line in lines]
    return [each for value in values for each in (value.elts if isinstance(value, ast.List | ast.Tuple) else [value])]


def _read(node: ast.AST, raw_text: str) -> ParsedAction:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name | ast.Attribute):
        return malformed(f"not a Python call; {_REMEDY}", raw_text)
    name = ast.unparse(node.func)
    if node.args or any(keyword.arg is None for keyword in node.keywords):
        return malformed(f"every argument needs its name; {_REMEDY}", raw_text, name)
    try:
        arguments = {str(keyword.arg): _value(keyword.value) for keyword in node.keywords}
        json.dumps(arguments, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, TypeError, RecursionError):
        return malformed(f"an argument is not a value that JSON has; {_REMEDY}", raw_text, name)
    return ParsedAction(tool_name=name, parameters=arguments, raw_text=raw_text, success=True)


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Name) and node.id in _JSON_WORDS:
        return _JSON_WORDS[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(element) for element in node.elts]
    if isinstance(node, ast.Dict) and None not in node.keys:
        return {ast.literal_eval(key): _value(value) for key, value in zip(node.keys, node.values, strict=True) if key}
    return ast.literal_eval(node)


# -- objects as Gemma writes them: `{key:<|"|>text<|"|>,size:3,words:[<|"|>a<|"|>]}` ------------------------------------


def write_loose(value: Any, quote: str) -> str:
    """Returns a JSON value in this form; keys are sorted, as the templates sort them."""
    if isinstance(value, str):
        return f"{quote}{value}{quote}"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{write_loose(value[key], quote)}" for key in sorted(value, key=str.lower)) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(write_loose(each, quote) for each in value) + "]"
    return json.dumps(value)


def read_loose(text: str, quote: str) -> dict[str, Any]:
    """Returns the object at the start of the text, which is turned into JSON. Raises ValueError if there is none."""
    parts = text.split(quote)
    parts[1::2] = map(json.dumps, parts[1::2])
    parts[::2] = (_KEY_OF_GEMMA.sub(lambda found: f"{found[1]}{json.dumps(found[2])}:", part) for part in parts[::2])
    try:
        value, _ = json.JSONDecoder().raw_decode("".join(parts).lstrip())
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("they are no object")
    return value
