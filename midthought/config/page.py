"""Writes the settings as Markdown tables from the docstrings of the fields."""

from __future__ import annotations

import json
from collections.abc import Iterator

from midthought.config.section import HARMLESS, Section


def settings_page(store: type[Section], title: str, skipped: frozenset[str] = frozenset()) -> str:
    """Returns a table of keys, defaults and meanings for every section that is not in `skipped`."""
    lines = [f"## {title}", ""]
    for name, field in store.model_fields.items():
        kind = field.annotation
        if name not in skipped and isinstance(kind, type) and issubclass(kind, Section):
            lines += [
                f"### `{name}`",
                _one_line(kind.__doc__),
                "",
                "| key | default | |",
                "| --- | --- | --- |",
                *_rows(kind),
                "",
            ]
    return "\n".join(lines)


def _rows(section: type[Section]) -> Iterator[str]:
    for key, field in section.model_fields.items():
        default = json.dumps(field.get_default(call_default_factory=True), ensure_ascii=False)
        meaning = _one_line(field.description).replace("|", "\\|") + (" ↻" if HARMLESS in field.metadata else "")
        yield f"| `{key}` | `{default}` | {meaning} |"


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())
