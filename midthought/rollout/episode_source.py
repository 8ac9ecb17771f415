"""Runs the training loop's episodes in this process, with one engine."""

from __future__ import annotations

import dataclasses
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext

from midthought.engines.engine import TrainedEngine
from midthought.rollout.episode import EpisodeStart, RolloutParts, run_episodes
from midthought.rollout.groups import seed_of
from midthought.rollout.in_flight import InFlightEpisodes, silent_engine
from midthought.tools.background_loop import BackgroundLoop, SilenceError, silence_check
from midthought.tools.executor import ToolExecutor
from midthought.types import RolloutData, Task, Trajectory

OnFinished = Callable[[Trajectory], None] | None
"""Called when an episode ends."""


class EpisodeSource(ABC):
    """Source of a training run's trajectories: this process or a cluster.

    An episode's seed depends only on `seed`, the purpose, and the episode's number.
    """

    stream: InFlightEpisodes | None = None
    """Episodes that may outlive an iteration."""

    def __init__(self, parts: RolloutParts, engine: TrainedEngine, *, seed: int) -> None:
        """`engine` counts the policy versions."""
        self.parts, self._engine, self._seed = parts, engine, seed

    @property
    def policy_version(self) -> int:
        """The version that samples now."""
        return self._engine.policy_version

    def rollout(self, tasks: Sequence[Task], *, iteration: int, group_size: int = 1, attempt: int = 0) -> RolloutData:
        """Runs one training episode per task; each run of `group_size` consecutive episodes is one group.

        `attempt` counts the batches of one iteration; each has its own seeds.
        """
        began = time.perf_counter()
        version = self.policy_version
        purpose = f"train-{iteration}" + (f"-{attempt}" if attempt else "")
        trajectories = self._run(self.parts, self._starts(purpose, tasks, group_size))
        return RolloutData(trajectories=trajectories, seconds=time.perf_counter() - began, policy_version=version)

    def evaluate(
        self,
        tasks: Sequence[Task],
        *,
        executor: ToolExecutor | None = None,
        temperature: float = 0.0,
        on_finished: OnFinished = None,
    ) -> list[Trajectory]:
        """Runs one episode per task, with another tool executor or temperature, without top-p truncation; temperature 0 is
        greedy."""
        inference = self.parts.inference.changed(temperature=temperature, top_p=1.0)
        parts = dataclasses.replace(self.parts, inference=inference, executor=executor or self.parts.executor)
        return self._run(parts, self._starts("evaluation", tasks, 1), on_finished)

    def sleep(self) -> None:
        """Releases the engine's memory for the learner; the next episode or update takes it again. An engine that goes on
        sampling meanwhile keeps it."""
        if self.stream is None or not self.stream.overlaps:
            self._engine.sleep()

    def update_weights(self, load: Callable[[], object] = lambda: None) -> None:
        """Uses the new weights from now on, after the policy was changed in place, or is changed by `load`."""
        with nullcontext() if self.stream is None else self.stream.between_tokens():
            load()
            self._engine.update_weights()

    @abstractmethod
    def close(self) -> None:
        """Releases the engines and workers, also for all other sources that share them."""

    @abstractmethod
    def _run(
        self, parts: RolloutParts, starts: Sequence[EpisodeStart], on_finished: OnFinished = None
    ) -> list[Trajectory]:
        """Returns the trajectories in the order of `starts`. `on_finished` is called when an episode ends."""

    def _starts(self, purpose: str, tasks: Sequence[Task], group_size: int) -> list[EpisodeStart]:
        return [
            EpisodeStart(task=task, seed=seed_of(self._seed, purpose, number), group=number // group_size)
            for number, task in enumerate(tasks)
        ]


class LocalEpisodeSource(EpisodeSource):
    """Runs episodes with one engine of this process.

    `loop`: the event loop on which the `stream` and everything else samples. Sources that share an engine must share the
    loop. None: an own one.
    `silence_seconds`: a rollout on this loop raises `EngineError` if the engine makes no progress for so long.
    """

    def __init__(
        self,
        parts: RolloutParts,
        engine: TrainedEngine,
        *,
        seed: int,
        stream: InFlightEpisodes | None = None,
        loop: BackgroundLoop | None = None,
        silence_seconds: float = math.inf,
    ) -> None:
        super().__init__(parts, engine, seed=seed)
        self.stream = stream
        self._loop = loop or BackgroundLoop("midthought-rollout")
        self._silence_seconds = silence_seconds

    def close(self) -> None:
        """Drops the stream's episodes, stops the loop, and shuts the engine down, for all sources that share it."""
        try:
            if self.stream is not None:
                self.stream.drop()  # raises if the engine is silent
        finally:
            self._loop.close()
            self._engine.shutdown()

    def _run(
        self, parts: RolloutParts, starts: Sequence[EpisodeStart], on_finished: OnFinished = None
    ) -> list[Trajectory]:
        episodes = run_episodes(parts, starts, on_finished=on_finished)
        check, seconds = None, self._silence_seconds
        if seconds < math.inf:
            check = silence_check(lambda: self._engine.progress, seconds)
        try:
            return self._loop.run(episodes, check)
        except SilenceError:
            raise silent_engine(seconds) from None
