"""Whole runs of a recipe, small, in a process of their own, so that tests can kill them; and what they left behind."""

import functools
import json
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

from command_process import CommandProcess

from midthought.memory.minilm import packaged_path
from midthought.recipes.podcast.settings import sample_transcripts


def write_short_transcripts(folder: Path) -> Path:
    """Writes the first 24 lines of six sample episodes into the folder. The whole samples take 20 s to embed."""
    folder.mkdir(exist_ok=True)
    for path in sorted(Path(sample_transcripts()).glob("*.md"))[:6]:
        lines = path.read_text("utf-8").splitlines()[:24]
        (folder / path.name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


_folder = tempfile.TemporaryDirectory(prefix="midthought-small-")
SHORT_TRANSCRIPTS = f"memory.transcripts={write_short_transcripts(Path(_folder.name, 'transcripts'))}"
"""The podcast's setting of these transcripts."""


@functools.cache
def small_embedding_model() -> str:
    """The podcast's setting of an encoder with MiniLM's tokenizer and one layer of random weights. MiniLM takes 10 s of CPU time
    to embed the short transcripts."""
    import transformers

    folder = Path(_folder.name, "encoder")
    shutil.copytree(packaged_path(), folder, ignore=shutil.ignore_patterns("*.safetensors", "modules.json"))
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    transformers.BertModel(transformers.BertConfig(**sizes)).save_pretrained(folder)
    return f"memory.embedding_model={folder}"


_SMALL = ["training.num_validation_questions=4", "training.num_train_iters=4", "training.batch_size=8"]
_SMALL += ["training.mini_batch_size=4", "training.validate_every=2", "checkpoint.save_interval=1"]
_SMALL += ["model.hidden_size=64", "model.num_layers=2", "model.num_heads=2", "inference.deterministic=true"]
PODCAST = [*_SMALL, SHORT_TRANSCRIPTS, "inference.max_tokens=48", "model.vocab_size=600", "evaluation.sampled=false"]
PODCAST += ["questions.num_train=40", "questions.num_test=8", "questions.num_test_no_memory=4"]
PODCAST += ["warmup.num_steps=24", "warmup.batch_tokens=512"]
FEEDBACK = [*_SMALL, "inference.max_tokens=60", "problems.num_train=40", "problems.num_test=6", "training.group_size=2"]
FEEDBACK += ["sft.num_steps=24", "sft.batch_tokens=512"]
FEEDBACK += ["training.overlong_buffer_tokens=50"]  # so that rewards differ within groups, though all answers are wrong
SETTINGS = {"podcast": PODCAST, "feedback": FEEDBACK}


def start(recipe: str, run: Path, *words: str) -> CommandProcess:
    """`midthought train RECIPE --run RUN …` with one thread."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return CommandProcess("train", recipe, "--run", str(run), "--quiet", *words, environment=environment)


def finish(process: CommandProcess) -> None:
    """Waits for its end. Its exit code must be 0."""
    assert process.wait() == 0, process.errors


def whole(recipe: str, run: Path, *words: str) -> Path:
    """A run with the recipe's small settings, from its beginning to its end; its folder."""
    finish(start(recipe, run, *SETTINGS[recipe], *words))
    return run


def stop_at(
    process: CommandProcess, run: Path, num_lines: int, how: signal.Signals, *, file_name: str = "metrics.jsonl"
) -> int:
    """Sends the signal when the metrics, or another file of the run, have this many lines. Returns the exit code."""
    file, deadline = run / file_name, time.monotonic() + 400
    while not file.exists() or len(file.read_bytes().splitlines()) < num_lines:
        if process.returncode is not None or time.monotonic() > deadline:
            process.kill()
            raise AssertionError(f"no {num_lines} lines: {process.errors}")
        time.sleep(0.005)
    process.send_signal(how)
    return process.wait(300)


def metrics(run: Path, *stages: str) -> list[dict[str, Any]]:
    """Lines of the metrics, of these stages alone where any are named; times left out."""
    return [row for row in _rows(run / "metrics.jsonl") if not stages or row["stage"] in stages]


def trajectories(run: Path) -> list[dict[str, Any]]:
    """Episodes that are shown, times left out."""
    rows = _rows(run / "trajectories.jsonl")
    return [row | {"events": list(map(_without_times, row["events"]))} for row in rows]


def summary(run: Path) -> dict[str, Any]:
    return json.loads((run / "summary.json").read_text("utf-8"))


def weights(run: Path, name: str = "policy") -> dict[str, Any]:
    """The tensors of a policy that the run exported, by name."""
    from safetensors.torch import load_file

    return load_file(run / name / "model.safetensors")


def _rows(file: Path) -> list[dict[str, Any]]:
    return [_without_times(json.loads(line)) for line in file.read_text("utf-8").splitlines()]


def _without_times(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if not key.startswith("time/")}
