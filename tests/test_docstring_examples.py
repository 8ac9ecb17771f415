"""The examples in docstrings (`>>>`) give what they show."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import midthought

ROOT = Path(midthought.__file__).parent
MODULES = [
    ".".join(("midthought", *path.relative_to(ROOT).with_suffix("").parts))
    for path in sorted(ROOT.rglob("*.py"))
    if ">>> " in path.read_text("utf-8")
]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert result.failed == 0


def test_there_are_examples():
    assert {"midthought.tools.function_tool", "midthought.trainer.trainer"} <= set(MODULES)
