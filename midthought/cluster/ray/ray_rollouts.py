"""Runs the training loop's episodes on Ray workers: distributes them, receives trajectories, and reruns the episodes of dead
workers.

`actor_pool` starts the workers, `worker` runs the episodes.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray

from midthought.cluster.process import deserialize, serialize
from midthought.cluster.ray.actor_pool import ActorPool, ActorSlot, WorkerLostError, get_result
from midthought.cluster.ray.work_queue import EpisodeIndices, WorkQueue
from midthought.cluster.ray.worker import Job
from midthought.config import RayConfig
from midthought.engines.engine import TrainedEngine
from midthought.rollout.episode import EpisodeStart, RolloutParts
from midthought.rollout.episode_source import EpisodeSource, OnFinished
from midthought.types import StopReason, Trajectory

_log = logging.getLogger(__name__)
_POLL_SECONDS = 1.0


@dataclass(eq=False)
class _Assignment:
    """Episodes that a worker is running."""

    slot: ActorSlot
    part: EpisodeIndices
    last_message_at: float


class RolloutWorkerGroup:
    """Workers, each with a copy of the policy. The first rollout starts them. Close it after use; use it from one thread.

    Args:
        settings: number, resources and placement of the workers.
        policy: the causal LM that is trained in place; adapters in its layers are sent with it.
        make_engine: creates an engine for such a model; called in the worker.
        is_deterministic: workers compute with as many threads as this process.

    Raises `SettingsError` if the policy cannot be pickled.
    """

    def __init__(
        self,
        settings: RayConfig,
        policy: Any,
        make_engine: Callable[[Any], TrainedEngine],
        *,
        is_deterministic: bool = False,
    ) -> None:
        self._pool = ActorPool(settings, policy, make_engine, is_deterministic=is_deterministic)
        self._silence_seconds = settings.silence_timeout_seconds
        self._shared_objects: dict[str, tuple[object, bytes]] = {}
        self._references: dict[str, Any] = {}

    def share_object(self, thing: object, what: str) -> None:
        """Sends this object to each worker once; afterwards only its name is sent. Later changes to it are not sent.

        Raises `SettingsError` if it cannot be pickled.
        """
        if self._name_of(thing) is None:
            self._shared_objects[f"{what} {len(self._shared_objects)}"] = thing, self.serialize(thing, what)

    def serialize(self, thing: object, what: str) -> bytes:
        """Returns the object as bytes for the workers. Raises `SettingsError` if it cannot be pickled."""
        return serialize(thing, what, self._name_of)

    def weights_changed(self) -> None:
        """Marks the weights as changed: before the next episodes the workers receive the changed tensors."""
        self._pool.weights_changed()

    def close(self) -> None:
        """Stops the workers and leaves the cluster; a later rollout starts new ones. May be called twice."""
        self._references.clear()
        self._pool.close()

    def run(
        self,
        payload: bytes,
        starts: Sequence[EpisodeStart],
        *,
        policy_version: int,
        failed: Callable[[EpisodeStart, str], Trajectory],
        on_finished: Callable[[Trajectory], None] | None = None,
    ) -> list[Trajectory]:
        """Returns the trajectories in the order of `starts`; `on_finished` is called when a trajectory arrives.

        A worker that dies is replaced, and its unfinished episodes are run again. `failed` creates the record of an episode
        that killed each worker that ran it. Raises what a worker raises outside of episodes, like `run_episodes`;
        `SettingsError` and `EngineError` like `ActorPool.open`; `EngineError` if no worker is left or workers keep dying.
        """
        if not self._pool.is_open:
            self._pool.open()
        for slot in self._pool.slots:
            slot.start_failed = False
        queue = WorkQueue(starts, len(self._pool.slots))
        payload_ref = ray.put(payload)
        works: dict[Any, _Assignment] = {}

        def end(index: int, trajectory: Trajectory) -> None:
            trajectory.task = starts[index].task
            queue.end(index, trajectory)
            if on_finished is not None:
                on_finished(trajectory)

        def lose(work: _Assignment, cause: str) -> None:
            _log.warning("worker %s died, its unfinished episodes are run again: %s", work.slot.name, cause)
            self._pool.stop_actor(work.slot)
            for index in queue.lose(work.part, cause):
                end(index, failed(starts[index], f"each worker that ran this episode died: {cause}"))

        try:
            while not queue.is_complete:
                for slot in self._ready_slots(works, queue):
                    part = queue.take()
                    job = self._job(part, starts, policy_version)
                    stream = slot.actor.run.options(num_returns="streaming").remote(payload_ref, job)
                    works[stream] = _Assignment(slot, part, time.monotonic())
                for stream, work in self._poll(works):
                    try:
                        records = self._next_records(stream, work)
                    except StopIteration:
                        del works[stream]
                    except WorkerLostError as lost:
                        del works[stream]
                        lose(work, str(lost))
                    else:
                        for index, record in records:
                            end(index, deserialize(record, "a trajectory"))
        except BaseException:
            for work in works.values():
                self._pool.stop_actor(work.slot)
            raise
        return queue.trajectories()

    def _ready_slots(self, works: Mapping[Any, _Assignment], queue: WorkQueue) -> list[ActorSlot]:
        """Returns idle slots whose workers run and have the current weights, at most as many as there is waiting work."""
        if not queue.num_waiting:
            return []
        busy = {work.slot for work in works.values()}
        idle = [slot for slot in self._pool.slots if slot not in busy and not slot.start_failed]
        needed = idle[: queue.num_waiting]
        self._pool.start_actors([slot for slot in needed if slot.actor is None], others_running=bool(busy))
        for cause in self._pool.sync_weights([slot for slot in needed if slot.actor is not None]):
            queue.lose((), cause)
        return [slot for slot in needed if slot.actor is not None]

    def _job(self, part: EpisodeIndices, starts: Sequence[EpisodeStart], policy_version: int) -> Job:
        for name, (_, data) in self._shared_objects.items():
            if name not in self._references:
                self._references[name] = ray.put(data)
        return Job(
            indices=part,
            starts=tuple(starts[index] for index in part),
            policy_version=policy_version,
            shared_objects=dict(self._references),
        )

    def _poll(self, works: Mapping[Any, _Assignment]) -> list[tuple[Any, _Assignment]]:
        """Returns the streams that have a message, and those that have been silent for too long."""
        streams = list(works)
        if not streams:
            return []
        ready, _ = ray.wait(streams, num_returns=1, timeout=_POLL_SECONDS)
        if ready:
            ready, _ = ray.wait(streams, num_returns=len(streams), timeout=0)
        for stream in ready:
            works[stream].last_message_at = time.monotonic()
        return [(stream, work) for stream, work in works.items() if stream in ready or self._is_silent(work)]

    def _next_records(self, stream: Any, work: _Assignment) -> list[tuple[int, bytes]]:
        """Returns the next records. Raises `StopIteration` after the last one, `WorkerLostError` if the worker is lost."""
        if self._is_silent(work):
            raise WorkerLostError(f"no message for {self._silence_seconds:g} seconds")
        records: list[tuple[int, bytes]] = get_result(stream, timeout_seconds=self._silence_seconds)
        return records

    def _is_silent(self, work: _Assignment) -> bool:
        return time.monotonic() - work.last_message_at > self._silence_seconds

    def _name_of(self, thing: object) -> str | None:
        return next((name for name, (known, _) in self._shared_objects.items() if known is thing), None)


class RayEpisodeSource(EpisodeSource):
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
