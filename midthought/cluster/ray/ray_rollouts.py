"""Runs the training loop's episodes on Ray workers. Same interface as `LocalRollouts`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from midthought.cluster.ray.rollout_workers import RolloutWorkerGroup
from midthought.engines.engine import TrainedEngine
from midthought.rollout.episode import EpisodeStart, RolloutParts
from midthought.rollout.local_rollouts import OnFinished, Rollouts
from midthought.types import StopReason, Trajectory


class RayRollouts(Rollouts):
    """Runs episodes on a group of Ray workers; one worker runs a whole group of episodes. Sources may share the workers.

    The renderer and the tool executor are sent to each worker once; environments, rewards and messages are sent with each
    rollout. Raises `SettingsError` if one of them cannot be pickled. No episode outlives its rollout.
    """

    def __init__(
        self, parts: RolloutParts, engine: TrainedEngine, worker_group: RolloutWorkerGroup, *, seed: int
    ) -> None:
        """`engine` only counts the policy versions: each worker samples with its own engine."""
        super().__init__(parts, engine, seed=seed)
        self._worker_group = worker_group
        worker_group.share_object(parts.renderer, "the renderer")
        worker_group.share_object(parts.executor.registry, "the tools")
        worker_group.share_object(parts.executor, "the tool executor")
        self._payload(parts)

    def update_weights(self, load: Callable[[], object] = lambda: None) -> None:
        """Sends the policy's new weights to the workers."""
        super().update_weights(load)
        self._worker_group.weights_changed()

    def close(self) -> None:
        """Stops the workers, for all sources that share them."""
        self._worker_group.close()

    def _run(
        self, parts: RolloutParts, starts: Sequence[EpisodeStart], on_finished: OnFinished = None
    ) -> list[Trajectory]:
        def failed(start: EpisodeStart, error: str) -> Trajectory:
            prompt_ids = parts.renderer.prompt(parts.messages(start.task))
            trajectory = Trajectory(start.task, prompt_ids, seed=start.seed, group=start.group)
            trajectory.stop_reason, trajectory.error = StopReason.FAILED, error
            return trajectory

        return self._worker_group.run(
            self._payload(parts), starts, policy_version=self.policy_version, failed=failed, on_finished=on_finished
        )

    def _payload(self, parts: RolloutParts) -> bytes:
        """Pickles the parts without the engine: each worker has its own."""
        fields = {each.name: getattr(parts, each.name) for each in dataclasses.fields(parts) if each.name != "engine"}
        return self._worker_group.serialize(fields, "what the episodes need")
