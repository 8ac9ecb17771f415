"""Episodes with injected faults: `python -m benchmarks.faults --episodes 10000 --rate 0.1`.

A scripted engine writes three calls of a tool, a judge scores the answer, and a share of the calls of both gets a fault: error,
timeout, slow, garbled. With `--record FOLDER` the calls are recorded as well. Counts how every episode and every call ended, and
measures the resident memory after 1,000 episodes and at the end. Exits with 1 if an episode or call is not accounted for, or if
memory grew by more than 5 %.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from midthought.cassette.calls import recorded
from midthought.cassette.cassette import Cassette
from midthought.config import CassetteConfig, FaultRule, InferenceConfig
from midthought.engines.byte_tokenizer import byte_tokenizer
from midthought.engines.scripted import ScriptedEngine
from midthought.rollout.episode import EpisodeStart, RolloutParts, run_episodes
from midthought.tokenization import Renderer
from midthought.tools.call_formats.in_thought import InThoughtFormat
from midthought.tools.definition import Tool, ToolDefinition, ToolParameter
from midthought.tools.executor import ToolExecutor
from midthought.tools.registry import ToolRegistry
from midthought.types import Reward, StopReason, Task, Trajectory

NUM_CALLS = 3
BATCH = 500
MAX_GROWTH = 0.05


class Look(Tool):
    """Answers after a moment."""

    definition = ToolDefinition("look", "Looks.", [ToolParameter("query", "string", "For what.")])
    timeout_seconds = 2.0

    async def execute(self, query: str) -> str:
        """Returns the query."""
        await asyncio.sleep(0.001)
        return f"found {query}"


class Judged:
    """Scores an episode with a judge that may fail."""

    async def reply(self, trajectory: Trajectory) -> str | None:
        """Returns None."""
        return None

    async def score(self, trajectory: Trajectory) -> Reward:
        """Returns the judge's value, 0 without one."""

        async def judge() -> float:
            return 1.0

        try:
            return Reward(parts={"judge": await recorded("judge", "judge", {"calls": trajectory.num_calls}, judge)})
        except ConnectionError:
            return Reward(parts={"judge": 0.0})


def resident_mib() -> float:
    """Returns the resident memory of this process after a garbage collection, in MiB."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def play(parts: RolloutParts, cassette: Cassette | None, batch: int, size: int) -> tuple[Counter[str], Counter[str]]:
    """Runs one batch. Returns how its episodes and its calls ended."""
    tasks = [Task(task_id=f"t{batch}-{n}", prompt="Who?", answer="Ada") for n in range(size)]
    starts = [EpisodeStart(task=task, seed=batch * BATCH + n) for n, task in enumerate(tasks)]
    if cassette is None:
        done = asyncio.run(run_episodes(parts, starts))
    else:
        with cassette.part(f"train-{batch:06}") as part:
            bound = {name: getattr(parts, name) for name in parts.__slots__} | {"cassette_part": part}
            done = asyncio.run(run_episodes(RolloutParts(**bound), starts))
    ended = Counter(str(t.stop_reason) if t.reward or t.stop_reason is StopReason.FAILED else "lost" for t in done)
    return ended, Counter(str(event.outcome) for t in done for event in t.tool_events)


def main(words: Sequence[str] | None = None) -> int:
    """Runs the episodes, prints the counts. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--rate", type=float, default=0.1)
    parser.add_argument("--record", default="")
    chosen = parser.parse_args(words)

    rules = [FaultRule(kind=kind, rate=chosen.rate, seconds=0.05) for kind in ("tool", "judge", "completion")]
    cassette = Cassette.from_config(CassetteConfig(record=chosen.record, faults=rules if chosen.rate else []))
    renderer = Renderer(byte_tokenizer())
    calls = "".join(f'#call look {{"query": "{n}"}}' for n in range(NUM_CALLS))
    parts = RolloutParts(
        engine=ScriptedEngine([f"<think>{calls}So.</think>Ada"] * BATCH, renderer),
        renderer=renderer,
        call_format=InThoughtFormat(),
        executor=ToolExecutor(ToolRegistry([Look()]), max_failures=None),
        messages=lambda task: [{"role": "user", "content": task.prompt}],
        environment=lambda task: Judged(),
        inference=InferenceConfig(max_tokens=2000),
    )
    episodes: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    began, at_1000 = time.monotonic(), 0.0
    for batch, start in enumerate(range(0, chosen.episodes, BATCH)):
        ended, called = play(parts, cassette, batch, min(BATCH, chosen.episodes - start))
        episodes += ended
        outcomes += called
        if episodes.total() == 1000:
            at_1000 = resident_mib()
    at_end = resident_mib()
    growth = at_end / at_1000 - 1 if at_1000 else 0.0
    print(f"{episodes.total():,} episodes of {chosen.episodes:,} in {time.monotonic() - began:.0f} s: {dict(episodes)}")
    print(f"{outcomes.total():,} calls: {dict(outcomes)}")
    print(f"resident memory: {at_1000:.1f} MiB after 1,000 episodes, {at_end:.1f} MiB at the end ({growth:+.1%})")
    is_complete = episodes.total() == chosen.episodes and not episodes["lost"]
    return 0 if is_complete and growth <= MAX_GROWTH else 1


if __name__ == "__main__":
    sys.exit(main())
