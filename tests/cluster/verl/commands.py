"""`midthought train RECIPE …` as its entry point runs it, and the command line in a bundle's script."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from midthought.cli import main


def train(monkeypatch: pytest.MonkeyPatch, recipe: str, *words: str) -> int:
    """The exit code."""
    monkeypatch.setattr(sys, "argv", ["midthought", "train", recipe, *words])
    with pytest.raises(SystemExit) as stop:
        main()
    return int(stop.value.code or 0)


def write_bundle(monkeypatch: pytest.MonkeyPatch, recipe: str, bundle: Path, *words: str) -> Path:
    """The recipe's bundle, written by the command line."""
    assert train(monkeypatch, recipe, "--engine", "verl", "--dry-run", "--run", str(bundle), *words) == 0
    return bundle


def words_of(bundle: Path, module: str = "verl.trainer.main_ppo") -> list[str]:
    """The overrides in the bundle's script, as its shell would hand them on."""
    lines = (bundle / "train.sh").read_text().partition(f"-m {module} \\\n")[2]
    return shlex.split(lines.replace("\\\n", " ").replace('"$@"', "").replace("$MIDTHOUGHT_BUNDLE", str(bundle)))
