"""Trajectories from an engine, driven by the rollout loop in this process. A source for the training loop."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from midthought.inference.engine import TrainedEngine
from midthought.inference.private_loop import PrivateLoop
from midthought.inference.rollout import EpisodeStart, RolloutParts, run_episodes
from midthought.inference.stream import EpisodeStream, seed_of
from midthought.tools.schedule import Toolbox
from midthought.types import RolloutData, Task, Trajectory


class LocalSource:
    """Runs episodes with one engine. Every episode's seed follows from `seed`, the purpose and its place alone.

    `stream`: episodes that may outlive an iteration (partial rollouts). They stay on `loop`, and whatever else is sampled
    goes there, too: sources that share an engine must share the loop. None: every rollout has a loop of its own.
    """

    def __init__(
        self,
        parts: RolloutParts,
        engine: TrainedEngine,
        *,
        seed: int,
        stream: EpisodeStream | None = None,
        loop: PrivateLoop | None = None,
    ) -> None:
        self.parts = parts
        self.stream = stream
        self._engine = engine
        self._seed = seed
        self._loop = loop

    @property
    def policy_version(self) -> int:
        """The version that samples now."""
        return self._engine.policy_version

    def rollout(
        self,
        tasks: Sequence[Task],
        *,
        iteration: int,
        group_size: int = 1,
        attempt: int = 0,
        greedy: bool = False,
    ) -> RolloutData:
        """One training episode per task; every `group_size` in a row are one group.

        `attempt` counts the batches of one iteration, each with seeds of its own; `greedy` samples at temperature 0.
        """
        purpose = f"train-{iteration}" + (f"-{attempt}" if attempt else "")
        return self._run(self._at(0.0) if greedy else self.parts, tasks, purpose, group_size)

    def evaluate(
        self,
        tasks: Sequence[Task],
        *,
        toolbox: Toolbox | None = None,
        temperature: float = 0.0,
        on_finished: Callable[[Trajectory], None] | None = None,
    ) -> list[Trajectory]:
        """One episode per task with another toolbox or temperature; 0 is greedy."""
        parts = dataclasses.replace(self._at(temperature), toolbox=toolbox or self.parts.toolbox)
        return self._run(parts, tasks, "evaluation", 1, on_finished).trajectories

    def update_weights(self) -> None:
        """The policy was changed in place."""
        self._engine.update_weights()

    def close(self) -> None:
        """Drop what the stream holds, end its loop, and shut the engine down, for all sources that share it."""
        if self.stream is not None:
            self.stream.drop()
        if self._loop is not None:
            self._loop.close()
        self._engine.shutdown()

    def _at(self, temperature: float) -> RolloutParts:
        settings = dataclasses.replace(self.parts.settings, temperature=temperature, top_p=1.0)
        return dataclasses.replace(self.parts, settings=settings)

    def _run(
        self,
        parts: RolloutParts,
        tasks: Sequence[Task],
        purpose: str,
        group_size: int,
        on_finished: Callable[[Trajectory], None] | None = None,
    ) -> RolloutData:
        began = time.perf_counter()
        version = self._engine.policy_version
        starts = [
            EpisodeStart(task=task, seed=seed_of(self._seed, purpose, number), group=number // group_size)
            for number, task in enumerate(tasks)
        ]
        episodes = run_episodes(parts, starts, on_finished=on_finished)
        trajectories = _wait_for(episodes) if self._loop is None else self._loop.run(episodes)
        return RolloutData(trajectories=trajectories, seconds=time.perf_counter() - began, policy_version=version)


def _wait_for(episodes: Coroutine[Any, Any, list[Trajectory]]) -> list[Trajectory]:
    """Run them in this thread, or in one of their own where a loop runs here already (notebooks)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(episodes)
    loop = PrivateLoop("midthought-rollout")
    try:
        return loop.run(episodes)
    finally:
        loop.close()
