"""Short deterministic runs, as a program: `python jobs.py OUT [JOB …]`. It runs in two checkouts, so it uses public names only.

Each job leaves run folders in OUT.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import midthought
from midthought import Trainer, Trajectory, tool

MAX_WAIT_SECONDS = 300
TINY = [
    "inference.deterministic=true",
    "inference.temperature=0.7",
    "model.hidden_size=64",
    "model.num_layers=2",
    "model.num_heads=2",
    "training.num_train_iters=3",
    "training.batch_size=8",
    "training.mini_batch_size=4",
    "training.validate_every=2",
    "checkpoint.save_interval=1",
    "checkpoint.record_episodes=8",
    "evaluation.sampled=false",
]
PODCAST = [
    *TINY,
    "inference.max_tokens=48",
    "model.vocab_size=600",
    "questions.num_train=40",
    "questions.num_test=8",
    "questions.num_test_no_memory=4",
    "training.num_validation_questions=4",
    "training.overlong_buffer_tokens=40",  # so that rewards differ, though all answers are wrong
    "warmup.num_steps=20",
    "warmup.batch_tokens=512",
]
FEEDBACK = [
    *TINY,
    "inference.max_tokens=60",
    "model.lora_rank=4",
    "problems.num_train=40",
    "training.num_validation_questions=4",
    "problems.num_test=6",
    "training.group_size=2",
    "training.overlong_buffer_tokens=50",
    "sft.num_steps=20",
    "sft.batch_tokens=512",
]
LIBRARY = {
    "hidden_size": 64,
    "num_layers": 2,
    "num_heads": 2,
    "vocab_size": 400,
    "deterministic": True,
    "temperature": 0.7,
    "max_tokens": 48,
    "batch_size": 16,
    "mini_batch_size": 8,
    "num_train_iters": 3,
    "validate_every": 2,
    "save_interval": 1,
    "record_episodes": 32,
    "progress": False,
}
QUESTIONS = [{"question": f"What is {a} times {b}?", "answer": str(a * b)} for a in range(2, 8) for b in range(2, 8)]


@tool
def multiply(a: int, b: int) -> int:
    """Multiplies two whole numbers."""
    return a * b


def shown(task: Any) -> list[dict[str, Any]]:
    """A demonstration: a call and its result in the answer."""
    a, b = (int(word.strip("?")) for word in task.prompt.split() if word.strip("?").isdigit())
    call = {"function": {"name": "multiply", "arguments": {"a": a, "b": b}}}
    return [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": task.answer},
        {"role": "assistant", "content": f"It is {task.answer}."},
    ]


def paid_by_length(trajectory: Trajectory) -> float:
    """A reward that differs between the episodes of an untrained policy."""
    return len(trajectory.token_ids) % 7 / 7


class EndsItsWorker:
    """The reward. Kills the process that computes it at the first episode of iteration 2."""

    def __init__(self, mark: Path) -> None:
        self.mark, self.__name__ = mark, "paid_by_length"

    def __call__(self, trajectory: Trajectory) -> float:
        if max(trajectory.segments[0].policy_versions) > 0 and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return paid_by_length(trajectory)


def library(run: Path, reward: Callable[[Trajectory], float] = paid_by_length, **settings: Any) -> None:
    """`sft` and `fit` of the library."""
    given: dict[str, Any] = {
        "dataset": QUESTIONS[:-4],
        "validation": QUESTIONS[-4:],
        "tools": [multiply],
        "rewards": [reward],
    }
    with Trainer(run_path=run, **given, **LIBRARY, **settings) as trainer:
        trainer.sft(shown, num_steps=4)
        trainer.fit()


def command(recipe: str, run: Path, *words: str) -> subprocess.Popen[bytes]:
    """`midthought train RECIPE` in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "midthought", "train", recipe, "--run", str(run), "--quiet", *words],
        stdout=subprocess.DEVNULL,
    )


def whole(recipe: str, run: Path, *words: str) -> None:
    if (code := command(recipe, run, *words).wait()) != 0:
        raise SystemExit(f"midthought train {recipe} ended with exit code {code}")


def transcripts(out: Path) -> str:
    """The setting of the first lines of six sample episodes: the whole samples take long to embed."""
    folder = out / "transcripts"
    folder.mkdir(exist_ok=True)
    for path in sorted(Path(midthought.__file__).parent.rglob("sample/*.md"))[:6]:
        (folder / path.name).write_text("\n".join(path.read_text("utf-8").splitlines()[:24]) + "\n", encoding="utf-8")
    return f"memory.transcripts={folder}"


def killed(out: Path) -> None:
    """The podcast recipe, killed in its warm-up, in its second iteration, and in its last evaluation."""
    run = out / "killed"
    words = [*PODCAST, transcripts(out)]
    for marks in (['"stage": "sft"'] * 12, ['"stage": "ppo"'] * 2, ['"arm": "after']):
        process, deadline = command("podcast", run, *words), time.monotonic() + MAX_WAIT_SECONDS
        while not _has(run, marks):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the run ended before {marks[0]}")
            time.sleep(0.002)
        process.kill()
        process.wait()
        words = ["--resume"]
    whole("podcast", run, "--resume")


def _has(run: Path, marks: Sequence[str]) -> bool:
    name = "trajectories.jsonl" if "arm" in marks[0] else "metrics.jsonl"
    file = run / name
    return file.exists() and file.read_text("utf-8").count(marks[0]) >= len(marks)


GRPO = {"algorithm": "grpo", "group_size": 4}
ON_RAY = {**GRPO, "use_ray": True, "num_actors": 2}
JOBS: dict[str, Callable[[Path], None]] = {
    "grpo": lambda out: library(out / "grpo", **GRPO),
    "gae": lambda out: library(out / "gae", algorithm="ppo"),
    "partial": lambda out: library(out / "partial", max_staleness=2, in_flight=1.5, **GRPO),
    "ray": lambda out: library(out / "ray", **ON_RAY),
    "ray_dies": lambda out: library(out / "ray_dies", EndsItsWorker(out / "died"), **ON_RAY),
    "podcast": lambda out: whole("podcast", out / "podcast", *PODCAST, transcripts(out)),
    "feedback": lambda out: whole("feedback", out / "feedback", *FEEDBACK),
    "killed": killed,
}


def main(out: Path, names: Sequence[str]) -> None:
    for name in names or JOBS:
        shutil.rmtree(out / name, ignore_errors=True)
        started = time.monotonic()
        JOBS[name](out)
        print(f"{name}: {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
