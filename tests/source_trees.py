"""Syntax trees of Python files. Each file is parsed once: parsing the whole package takes 3 s."""

import ast
import functools
from pathlib import Path


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))
