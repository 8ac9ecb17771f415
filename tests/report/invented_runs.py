"""Invented run folders and episodes, as real runs write them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from midthought.report.recorded_episodes import COLUMNS, token_values, trajectory_row
from midthought.report.run_folder import RunFolder
from midthought.types import Completion, Finish, Reward, StopReason, Task, ToolCall, ToolEvent, ToolOutcome, Trajectory

SPEAKERS = ("Ada Quill", "Bram Oster", "Cleo Marsh", "Dov Lindqvist")
# fmt: off
SUMMARY = {
    "before.exact_match": 0.304, "before.sampled.exact_match": 0.262, "before.oracle.exact_match": 0.941,
    "before.call_rate_needed": 0.452, "before.call_rate_needless": 0.498, "after.exact_match": 0.861,
    "after.exact_match.low": 0.824, "after.exact_match.high": 0.893, "after.sampled.exact_match": 0.843,
    "after.sampled.exact_match.low": 0.803, "after.sampled.exact_match.high": 0.876,
    "after.tool_off.exact_match": 0.058, "after.shuffled.exact_match": 0.041, "after.oracle.exact_match": 0.968,
    "after.no_memory.exact_match": 0.957, "after.constant_guess": 0.055, "after.call_rate_needed": 0.985,
    "after.call_rate_needless": 0.062, "control.exact_match": None, "num_questions": 412, "seconds": 571.3,
    "peak_rss_mib": 2214.0, "seed": 1, "retrieval.recall@1": 0.87, "retrieval.recall@3": 0.93,
    "factors.exact_queries": 0.95,
}
# fmt: on
CONFIG = "memory:\n  transcripts: sample  # <script>alert(1)</script>\nppo:\n  learning_rate: 0.0003\n"


def decode(token_ids: list[int]) -> str:
    """One token is one character."""
    return "".join(map(chr, token_ids))


def encode(text: str) -> list[int]:
    return list(map(ord, text))


def sampled(text: str, finish: Finish) -> Completion:
    return Completion(token_ids=tuple(encode(text)), sampled_logprobs=(-0.1,) * len(text), finish=finish)


def an_episode(
    number: int,
    *,
    calls: bool,
    right: bool,
    outcome: ToolOutcome = ToolOutcome.OK,
    stop: StopReason = StopReason.ANSWERED,
) -> Trajectory:
    """One question about the podcast; the policy calls the memory or guesses."""
    speaker, guess = SPEAKERS[number % 4], SPEAKERS[(number + 1) % 4]
    task = Task(
        task_id=f"who-{number:03d}",
        prompt=f"Who said: “the tide clock runs {number} minutes slow”?",
        answer=speaker,
        labels={"kind": "who_said", "needs_memory": True},
    )
    trajectory = Trajectory(task, encode(f"<|im_start|>user\n{task.prompt}<|im_end|>\n<|im_start|>assistant\n"))
    found = speaker if right else guess
    if calls:
        query = f"the tide clock runs {number} minutes slow"
        trajectory.add_sampled(
            sampled(f'<think>\nI should look it up.\n#call memory {{"query": "{query}"}}', Finish.CALL)
        )
        result = f"[1] {found}, episode 4, 00:12:31: … the tide clock runs {number} minutes slow, and nobody minds."
        event = ToolEvent(
            call=ToolCall(
                tool_name="memory", parameters={"query": query}, success=outcome is ToolOutcome.OK, result=result
            ),
            outcome=outcome,
            seconds=0.0123,
            metadata={"chunk_ids": ["e4-17", "e4-18"]},
        )
        trajectory.add_results([event], encode(f"\n#memory_retrieval_result:\n{result}\n"))
    else:
        trajectory.add_sampled(sampled("<think>\nI think I know this one.", Finish.LENGTH))
    trajectory.add_sampled(sampled(f"\nSo it was {found}.\n</think>\n{found}", Finish.END))
    trajectory.stop_reason = stop
    trajectory.reward = Reward(parts={"correct": float(right), "format": 0.1, "call_cost": -0.05 * calls})
    return trajectory


def log_curves(run: RunFolder, source: random.Random, *, num_steps: int) -> None:
    for step in range(1, 4 * num_steps + 1):
        loss = 0.25 + 6.5 * math.exp(-step / num_steps * 2) * source.uniform(0.9, 1.1)
        run.log("sft", step, {"loss": loss, "learning_rate": 3e-4, "time/seconds": 0.21})
    for step in range(1, num_steps + 1):
        share = 1 / (1 + math.exp(-(step / num_steps - 0.35) * 9))
        run.log(
            "ppo",
            step,
            {
                "reward/mean": 0.3 + 0.55 * share + source.gauss(0, 0.04),
                "reward/correct": 0.28 + 0.57 * share + source.gauss(0, 0.04),
                "episode/calls": 0.5 + 0.45 * share + source.gauss(0, 0.05),
                "kl_reference": 0.001 + 0.03 * share + abs(source.gauss(0, 0.002)),
                "entropy": 0.9 - 0.6 * share + source.gauss(0, 0.02),
                "policy_loss": source.gauss(-0.01, 0.01),
                "value_loss": 0.12 * (1 - share) + 0.03 + abs(source.gauss(0, 0.01)),
                "grad_norm": math.nan if step == 3 else 1 + abs(source.gauss(0, 0.3)),
                "time/seconds": 1.52,
            },
        )
        if step % max(num_steps // 10, 1) == 0:
            rates = {"call_rate_needed": 0.45 + 0.53 * share, "call_rate_needless": 0.5 - 0.44 * share}
            run.log(
                "validation",
                step,
                {"exact_match": 0.3 + 0.55 * share, **rates},
            )


def fill_run(path: Path, *, num_steps: int = 40, num_tasks: int = 12) -> Path:
    source = random.Random(7)
    with RunFolder(path).create() as run:
        run.write_file("config.yaml", CONFIG)
        log_curves(run, source, num_steps=num_steps)
        for arm, share, step in (("before", 0.3, 0), ("after", 0.85, num_steps), ("after.tool_off", 0.06, num_steps)):
            rows = []
            for number in range(num_tasks):
                right = source.random() < share
                episode = an_episode(number, calls=arm == "after" or number % 2 == 0, right=right)
                rows.append(trajectory_row(episode, decode, step=step, arm=arm, exact_match=right))
            run.add_trajectories(rows)
        run.write_summary(SUMMARY)
    return path


class Letters:
    """Renderer of tokens that are characters."""

    def decode(self, token_ids: list[int]) -> str:
        return decode(token_ids)

    def decode_stream(self) -> Letters:
        return self

    def step(self, token_id: int) -> str:
        return chr(token_id)


def record(
    run: RunFolder,
    arm: str,
    step: int,
    episodes: list[Trajectory],
    rights: list[bool],
    numbers: Callable[[str, int, bool], Any],
) -> None:
    """Records episodes as a run does. `numbers(column, length, right)` are the values of a training episode's column."""
    rows = []
    for episode, right in zip(episodes, rights, strict=True):
        learned = []
        for segment in episode.segments if arm == "train" else ():
            own = np.array(segment.loss_mask)
            values = {
                name: np.where(own, numbers(name, len(own), right), np.nan).astype(np.float32) for name in COLUMNS
            }
            learned.append({**values, "in_loss": np.where(own, 1.0, np.nan)})
        row = trajectory_row(episode, decode, step=step, arm=arm, exact_match=right)
        rows.append(row | token_values(episode, Letters(), learned))  # type: ignore[arg-type]
    run.add_trajectories(rows)


def fill_recorded_run(path: Path) -> Path:
    """A run with a recording: 4 samples of each of 3 prompts in three iterations, a validation, and arms before and after.

    Training episodes have a random number in every column.
    """
    source = np.random.default_rng(3)

    def noise(column: str, length: int, right: bool) -> Any:
        return source.normal(size=length)

    with RunFolder(fill_run(path, num_steps=40)) as run:
        for step in (1, 2, 3):
            samples = [(number, sample % 2 == 0, sample < step) for number in range(3) for sample in range(4)]
            episodes = [an_episode(number, calls=calls, right=right) for number, calls, right in samples]
            record(run, "train", step, episodes, [right for _, _, right in samples], noise)
        for arm, step, num_right in (("before.sampled", 0, 1), ("after.sampled", 0, 3), ("validation", 2, 2)):
            episodes = [an_episode(number, calls=number < num_right, right=number < num_right) for number in range(4)]
            record(run, arm, step, episodes, [number < num_right for number in range(4)], noise)
    return path
