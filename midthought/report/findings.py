"""Findings of the checks: how the report lists them. Does not depend on the checks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def shown_findings(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns title, `when`, observation, action and `start_step` of the findings of `findings.jsonl` in their order, each once:
    a resumed run may report one again."""
    found: dict[Any, dict[str, Any]] = {}
    for row in rows:
        start, step = (int(row.get(key) or 0) for key in ("start_step", "step"))
        since = f"since iteration {start:,}, reported after iteration {step:,}, policy {row.get('policy')}"
        title = f"{row.get('check')}" + (f": {row['subject']}" if row.get("subject") else "")
        found[title, start] = {
            "title": title,
            "when": since if step else "before training",
            "observation": str(row.get("observation") or ""),
            "action": str(row.get("action") or ""),
            "start_step": start,
        }
    return list(found.values())
