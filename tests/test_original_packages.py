"""The tables of the original packages in docs/coming_from.md are true: every name and command of the right column exists."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import midthought
from midthought.cli import app
from midthought.config import ConfigStore

PAGE = Path(__file__).parent.parent / "docs" / "coming_from.md"
ROWS = [
    tuple(cell.strip() for cell in line.strip("|").split(" | "))
    for line in PAGE.read_text("utf-8").partition("## The original packages")[2].splitlines()
    if line.startswith("| ") and not line.startswith("| ---")
]
HERE = sorted({name for _, right in ROWS for name in re.findall(r"`([^`]+)`", right)})


def resolve(dotted: str) -> object:
    """A module, or a member of one."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            found = getattr(found, part)
        return found
    raise AssertionError(f"{dotted} is nowhere")


def test_every_name_of_the_page_is_there():
    for name in HERE:
        if re.fullmatch(r"[A-Z]\w*", name):
            assert name in midthought.__all__
        elif re.fullmatch(r"midthought(\.\w+)+", name):
            assert resolve(name) is not None
        elif re.fullmatch(r"[A-Z]\w+(\.\w+)+", name):
            owner, _, attribute = name.partition(".")
            assert hasattr(getattr(midthought, owner), attribute)
        elif re.fullmatch(r"(inference|training|model|ray)\.\w+", name):
            section, _, key = name.partition(".")
            assert key in type(getattr(ConfigStore(), section)).model_fields


@pytest.mark.parametrize("command", [name for name in HERE if name.startswith("midthought ")])
def test_a_command_is_there(command):
    result = CliRunner().invoke(app, [*command.split()[1:2], *command.split()[2:3][: "memory" in command], "--help"])
    assert result.exit_code == 0, result.output
