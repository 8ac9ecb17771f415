"""`midthought init`: writes a small project that trains at once: a tool, an environment, a reward, settings and tests."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from midthought.cli.output import tell
from midthought.errors import OutputPathError

_SUFFIX = ".txt"
"""Suffix of the templates in `new_project/`, which are no modules of this package."""


def init(
    path: Annotated[Path, typer.Argument(metavar="[NAME]", help="Folder to write.")] = Path("my-training"),
) -> None:
    """Write a project with an own tool, environment and reward, which trains on a CPU at once. Overwrites nothing."""
    texts = {
        template.name.removesuffix(_SUFFIX): template.read_text(encoding="utf-8")
        for template in sorted(files("midthought.cli").joinpath("new_project").iterdir(), key=lambda each: each.name)
        if template.name.endswith(_SUFFIX)
    }
    if path.exists() and not path.is_dir():
        raise OutputPathError(f"{path} is a file; give the name of a new folder")
    if existing := [name for name in texts if (path / name).exists() or (path / name).is_symlink()]:
        raise OutputPathError(
            f"{path} already has {', '.join(existing)}; nothing was written. Give the name of a new folder"
        )
    path.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        with (path / name).open("x", encoding="utf-8") as file:
            file.write(text.replace("# NAME\n", f"# {path.resolve().name}\n"))
    tell(f"{path}: {', '.join(texts)}\nTrain with: cd {path} && python train.py")
