"""Every `midthought …` line of the documentation names a command, options and settings that exist."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from midthought.cli import app
from midthought.cluster.verl.settings import VerlConfig
from midthought.recipes import find_recipe, recipe_names

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMANDS: Any = typer.main.get_command(app)


def lines(page: Path) -> Iterator[str]:
    """The lines of code blocks that run the command, and commands in backticks, without comments and what follows `&&` or `|`."""
    text = page.read_text("utf-8")
    blocks = re.findall(r"^ {4,}.*$|^```(?:bash|sh)?\n.*?^```", text, flags=re.MULTILINE | re.DOTALL)
    written = [line for block in blocks for line in block.splitlines()] + re.findall(r"`([^`\n]*)`", text)
    for line in written:
        found = re.match(r"\s*(?:\.venv/bin/)?midthought ([a-z].*)", line)
        if found:
            yield re.split(r"\s#|\s&&|\s\|\s|\s\\$", found[1])[0]


def mistakes(line: str) -> list[str]:
    """What the line names that there is not."""
    words = shlex.split(re.sub(r"[\[\]…]", " ", line) if "--" in line else line)
    command, path = COMMANDS, []
    while words and hasattr(command, "commands"):
        path.append(words.pop(0))
        for name in path[-1].split("|"):  # chunk|embed
            if name not in command.commands:
                return [" ".join(path)]
        command = command.commands[path[-1].split("|")[0]]
    options = {option for parameter in command.params for option in parameter.opts} | {"-h", "--help"}
    if "--" in words:  # the rest is for a script
        words = words[: words.index("--")]
    unknown = [word for word in words if word.startswith("-") and word.partition("=")[0] not in options]
    keys = [word.partition("=")[0] for word in words if re.match(r"[a-z_]+\.[a-z_.]+=", word)]
    return unknown + [key for key in keys if key not in settings()]


def settings() -> set[str]:
    stores = [find_recipe(name).config_class().model_fields for name in recipe_names()]
    sections = {(name, field.annotation) for fields in stores for name, field in fields.items()}
    return {
        f"{name}.{key}"
        for name, section in (*sections, ("verl", VerlConfig))
        for key in getattr(section, "model_fields", {})
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_commands_of_a_page_exist(page):
    assert {line: found for line in lines(page) if (found := mistakes(line))} == {}


def test_commands_are_found_and_mistakes_in_them_too():
    assert sum(1 for page in PAGES for _ in lines(page)) > 40
    assert mistakes("train podcast --resum training.seed=1") == ["--resum"]
    assert mistakes("train podcast training.sed=1") == ["training.sed"]
    assert mistakes("memory bild DIR") == ["memory bild"]
