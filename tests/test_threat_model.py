"""Every promise of docs/threat-model.md names tests that exist."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "threat-model.md").read_text("utf-8")
PROMISES = PAGE.partition("## Promises")[2].partition("## Not promised")[0]
ROWS = [row for row in PROMISES.splitlines() if row.startswith("| ") and not row.startswith(("| ---", "| promise"))]


def names_in(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_promise_names_a_test_and_every_named_test_exists() -> None:
    assert len(ROWS) >= 20
    for row in ROWS:
        named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", row.split("|")[2])
        assert named, f"no test for: {row}"
        missing = [f"{path}::{name}" for path, name in named if name not in names_in(path)]
        assert not missing
