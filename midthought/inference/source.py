"""Trajectories from this process: the local engine, driven by the rollout loop. A source for the training loop."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import time
from collections.abc import Callable, Sequence

from midthought.inference.local import LocalEngine
from midthought.inference.rollout import EpisodeStart, RolloutParts, run_episodes
from midthought.tools.schedule import Toolbox
from midthought.types import RolloutData, Task, Trajectory


class LocalSource:
    """Runs episodes with one engine. Every episode's seed follows from `seed`, the purpose and its place alone."""

    def __init__(self, parts: RolloutParts, engine: LocalEngine, *, seed: int) -> None:
        self.parts = parts
        self._engine = engine
        self._seed = seed

    def rollout(self, tasks: Sequence[Task], *, iteration: int, group_size: int = 1) -> RolloutData:
        """One training episode per task; every `group_size` in a row are one group."""
        return self._run(self.parts, tasks, f"train-{iteration}", group_size)

    def evaluate(
        self,
        tasks: Sequence[Task],
        *,
        toolbox: Toolbox | None = None,
        temperature: float = 0.0,
        on_finished: Callable[[Trajectory], None] | None = None,
    ) -> list[Trajectory]:
        """One episode per task with another toolbox or temperature; 0 is greedy."""
        settings = dataclasses.replace(self.parts.settings, temperature=temperature, top_p=1.0)
        parts = dataclasses.replace(self.parts, toolbox=toolbox or self.parts.toolbox, settings=settings)
        return self._run(parts, tasks, "evaluation", 1, on_finished).trajectories

    def update_weights(self) -> None:
        """The policy was changed in place."""
        self._engine.update_weights()

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
            EpisodeStart(task=task, seed=_seed(self._seed, purpose, number), group=number // group_size)
            for number, task in enumerate(tasks)
        ]
        trajectories = asyncio.run(run_episodes(parts, starts, on_finished=on_finished))
        return RolloutData(trajectories=trajectories, seconds=time.perf_counter() - began, policy_version=version)


def _seed(*parts: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()) >> 1
