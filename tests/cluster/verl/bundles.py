"""Bundles of both recipes over small data, written by the command line, and what they hold."""

import shlex
from pathlib import Path
from typing import Any

import pyarrow.parquet
import yaml
from small_runs import small_embedding_model, write_short_transcripts
from typer.testing import CliRunner

from midthought.cli import app

SMALL = ("memory.chunk_words=18", "questions.num_train=300", "memory.search=full_text")
MADE = (
    "problems.dataset=arithmetic",
    "problems.split=null",
    "problems.test_dataset=null",
    "problems.test_split=null",
    "problems.num_train=64",
    "training.num_validation_questions=6",
    "problems.num_test=1",
    "feedback.critic=hints",
)
"""Problems that are made and judged without a server."""


def write_bundle(recipe: str, bundle: Path, profile: str, *words: str) -> Path:
    options = ("--engine", "verl", "--dry-run", "--run", str(bundle), "--config", profile)
    result = CliRunner().invoke(app, ["train", recipe, *options, *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return bundle


def write_podcast(folder: Path, profile: str, *words: str) -> Path:
    transcripts = f"memory.transcripts={write_short_transcripts(folder / 'episodes')}"
    return write_bundle("podcast", folder / "bundle", profile, transcripts, small_embedding_model(), *SMALL, *words)


def write_feedback(folder: Path, profile: str, *words: str) -> Path:
    """For RL over made problems."""
    return write_bundle("feedback", folder / "bundle", profile, *MADE, *words)


def words_of(bundle: Path) -> list[str]:
    """The overrides in the bundle's script, as its shell would hand them on."""
    lines = (bundle / "train.sh").read_text().partition("-m verl.trainer.main_ppo \\\n")[2]
    return shlex.split(lines.replace("\\\n", " ").replace('"$@"', "").replace("$MIDTHOUGHT_BUNDLE", str(bundle)))


def rows_of_bundle(bundle: Path, split: str = "train") -> list[dict[str, Any]]:
    return pyarrow.parquet.read_table(bundle / "data" / f"{split}.parquet").to_pylist()


def tool_of_bundle(bundle: Path) -> dict[str, Any]:
    """Its one entry in `tools.yaml`."""
    [tool] = yaml.safe_load((bundle / "tools.yaml").read_text())["tools"]
    return tool
