"""Bundles of both recipes over small data, written by the command line, and what they hold."""

import json
import shlex
from pathlib import Path
from typing import Any

import pyarrow.parquet
import yaml
from small_runs import small_embedding_model, write_short_transcripts
from typer.testing import CliRunner

from midthought.cli import app
from midthought.feedback.convert import convert

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
SFT_MODULE = "verl.trainer.sft_trainer"


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


def write_feedback_sft(folder: Path, profile: str, *words: str) -> Path:
    """For the warm-up."""
    source = f"sft.source={write_conversations(folder)}"
    return write_bundle("feedback", folder / "sft-bundle", profile, "--stage", "sft", source, *words)


def write_conversations(folder: Path, num_problems: int = 36) -> Path:
    """A third right at once, a third after one feedback, a third after two."""
    rows = [
        {
            "unique_id": str(problem),
            "original_question": f"What is {problem} + {problem}?",
            "iteration": iteration,
            "is_correct": iteration == problem % 3,
            "full_response": [f"It is \\boxed{{{iteration}}}."],
            "feedback": "" if iteration == problem % 3 else [f"Too small by {problem % 3 - iteration}.", None],
        }
        for problem in range(num_problems)
        for iteration in range(problem % 3 + 1)
    ]
    (folder / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    convert(folder / "log.jsonl", folder / "sft.parquet", strict=True)
    return folder / "sft.parquet"


def words_of(bundle: Path, module: str = "verl.trainer.main_ppo") -> list[str]:
    """The overrides in the bundle's script, as its shell would hand them on."""
    lines = (bundle / "train.sh").read_text().partition(f"-m {module} \\\n")[2]
    return shlex.split(lines.replace("\\\n", " ").replace('"$@"', "").replace("$MIDTHOUGHT_BUNDLE", str(bundle)))


def rows_of_bundle(bundle: Path, split: str = "train") -> list[dict[str, Any]]:
    return pyarrow.parquet.read_table(bundle / "data" / f"{split}.parquet").to_pylist()


def tool_of_bundle(bundle: Path) -> dict[str, Any]:
    """Its one entry in `tools.yaml`."""
    [tool] = yaml.safe_load((bundle / "tools.yaml").read_text())["tools"]
    return tool
