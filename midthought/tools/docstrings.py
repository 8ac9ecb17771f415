"""What a docstring says to the model: the purpose, and the parameters, in the styles of Google, NumPy, reST and Epytext."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence

_HEADER = re.compile(r"(?:Args|Arguments|Parameters|Params|Keyword Args|Keyword Arguments):\s*")
_ENTRY = re.compile(r"(?:[-*+] )?[`*]*(\w+)[`*]*\s*(?:\(.*?\))?:(?:\s+(.*))?")
_UNDERLINE = re.compile(r"-{3,}\s*")
_NUMPY_ENTRY = re.compile(r"([\w*]+(?:\s*,\s*[\w*]+)*)\s*(?::.*)?")
_FIELD = re.compile(r"[:@](?:param|parameter|arg|argument|key|keyword)\s+(?:[^:]*\s)?(\w+)\s*:\s*(.*)")
_OTHER_FIELD = re.compile(r"[:@]\w+(?:\s[^:]*)?:.*")


def purpose(docstring: str) -> str:
    """Returns the first paragraph, on one line; empty if the docstring starts with its parameters."""
    lines = docstring.splitlines()
    return " ".join(itertools.takewhile(lambda line: line.strip() and not _starts_section(line), lines))


def parameters(docstring: str) -> dict[str, str]:
    """Returns the description of every parameter that the docstring has one of."""
    lines = docstring.splitlines()
    return {**_google(lines), **_numpy(lines), **_fields(lines)}


def _starts_section(line: str) -> bool:
    return _HEADER.fullmatch(line) is not None or _OTHER_FIELD.fullmatch(line) is not None


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def _google(lines: Sequence[str]) -> Mapping[str, str]:
    """`Args:` and indented entries `name (type): text`, each with its continuation lines."""
    found: dict[str, str] = {}
    indent: int | None = None
    name, in_section = "", False
    for line in lines:
        if not _depth(line) and line.strip():
            in_section, indent, name = _HEADER.fullmatch(line) is not None, None, ""
        elif in_section and line.strip():
            indent = _depth(line) if indent is None else indent
            entry = _ENTRY.fullmatch(line.strip()) if _depth(line) == indent else None
            if entry:
                name, found[entry[1]] = entry[1], entry[2] or ""
            elif name:
                found[name] = f"{found[name]} {line.strip()}".strip()
    return found


def _numpy(lines: Sequence[str]) -> Mapping[str, str]:
    """`Parameters` underlined with hyphens, entries `name : type`, and indented texts."""
    found: dict[str, str] = {}
    names: list[str] = []
    in_section = False
    for line, following in itertools.zip_longest(lines, lines[1:], fillvalue=""):
        if _UNDERLINE.fullmatch(following) and not _depth(line):
            in_section, names = line.strip() in ("Parameters", "Other Parameters"), []
        elif in_section and _depth(line):
            found |= {name: f"{found[name]} {line.strip()}".strip() for name in names}
        elif in_section and line.strip() and not _UNDERLINE.fullmatch(line):
            entry = _NUMPY_ENTRY.fullmatch(line.strip())
            names = [name.strip(" *") for name in entry[1].split(",")] if entry else []
            found |= dict.fromkeys(names, "")
    return found


def _fields(lines: Sequence[str]) -> Mapping[str, str]:
    """`:param name: text`, `:param type name: text` or `@param name: text`, each with its continuation lines."""
    found: dict[str, str] = {}
    name = ""
    for line in lines:
        entry = _FIELD.fullmatch(line.strip())
        if entry:
            name, found[entry[1]] = entry[1], entry[2]
        elif not line.strip() or _OTHER_FIELD.fullmatch(line.strip()):
            name = ""
        elif name:
            found[name] = f"{found[name]} {line.strip()}".strip()
    return found
