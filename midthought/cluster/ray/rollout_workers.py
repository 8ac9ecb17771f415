"""A rollout on Ray's workers: episodes are shared out, trajectories taken as they come, and what a dead worker left run again.

Knows streams of messages and who is late; what a worker does is its own business, who is hired that of the actor pool.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray

from midthought.cluster.ray.actor_pool import ActorPool, ActorSlot, WorkerLostError, get_result
from midthought.cluster.ray.serialization import deserialize, serialize
from midthought.cluster.ray.work_queue import EpisodeIndices, WorkQueue
from midthought.cluster.ray.worker import Job
from midthought.config import RayConfig
from midthought.engines.engine import TrainedEngine
from midthought.rollout.episode import EpisodeStart
from midthought.types import Trajectory

_log = logging.getLogger(__name__)
_POLL_SECONDS = 1.0


@dataclass(eq=False)
class _Assignment:
    """A share on its way."""

    slot: ActorSlot
    share: EpisodeIndices
    last_message_at: float


class RolloutWorkerGroup:
    """Workers with a copy of the policy each, started by the first rollout. Close it after use; use it from one thread.

    Args:
        settings: how many, how large, where.
        policy: the causal LM that is trained in place; adapters that stand in its layers travel with it.
        make_engine: an engine over such a model, made in the worker.
        is_deterministic: workers compute with as many threads as this process.

    Raises SettingsError where the policy cannot be sent.
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
        """Send this object to every worker once, and only its name from then on; later changes of it stay here.

        SettingsError where it cannot be sent.
        """
        if self._name_of(thing) is None:
            self._shared_objects[f"{what} {len(self._shared_objects)}"] = thing, self.serialize(thing, what)

    def serialize(self, thing: object, what: str) -> bytes:
        """As bytes for the workers. SettingsError where it cannot be sent."""
        return serialize(thing, what, self._name_of)

    def weights_changed(self) -> None:
        """The policy was changed in place: the workers get what is new of it before they run anything."""
        self._pool.weights_changed()

    def close(self) -> None:
        """End the workers and leave the cluster; a later rollout would begin with others. Doing so twice is fine."""
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
        """The episodes' trajectories, in the order of `starts`; `on_finished` is called as each arrives.

        A worker that dies is replaced, and its unfinished episodes are run again. `failed` makes the record of one that
        killed every worker that ran it. Raises what a worker raises outside of episodes, as `run_episodes` does;
        SettingsError and EngineError as `ActorPool.open`; EngineError where no worker is left, or they die without end.
        """
        if not self._pool.is_open:
            self._pool.open()
        for slot in self._pool.slots:
            slot.start_failed = False
        shares = WorkQueue(starts, len(self._pool.slots))
        payload_ref = ray.put(payload)
        works: dict[Any, _Assignment] = {}

        def end(place: int, trajectory: Trajectory) -> None:
            trajectory.task = starts[place].task
            shares.end(place, trajectory)
            if on_finished is not None:
                on_finished(trajectory)

        def lose(work: _Assignment, cause: str) -> None:
            _log.warning("worker %s has died, its unfinished episodes are run again: %s", work.slot.name, cause)
            self._pool.stop_actor(work.slot)
            for place in shares.lose(work.share, cause):
                end(place, failed(starts[place], f"the worker died every time that it ran this episode: {cause}"))

        try:
            while not shares.is_complete:
                for slot in self._ready_slots(works, shares):
                    share = shares.take()
                    job = self._job(share, starts, policy_version)
                    stream = slot.actor.run.options(num_returns="streaming").remote(payload_ref, job)
                    works[stream] = _Assignment(slot, share, time.monotonic())
                for stream, work in self._poll(works):
                    try:
                        records = self._next_records(stream, work)
                    except StopIteration:
                        del works[stream]
                    except WorkerLostError as lost:
                        del works[stream]
                        lose(work, str(lost))
                    else:
                        for place, record in records:
                            end(place, deserialize(record, "a trajectory"))
        except BaseException:
            for work in works.values():
                self._pool.stop_actor(work.slot)
            raise
        return shares.trajectories()

    def _ready_slots(self, works: Mapping[Any, _Assignment], shares: WorkQueue) -> list[ActorSlot]:
        """At most so many slots as shares wait, whose workers can begin at once, weights and all."""
        if not shares.num_waiting:
            return []
        busy = {work.slot for work in works.values()}
        idle = [slot for slot in self._pool.slots if slot not in busy and not slot.start_failed][: shares.num_waiting]
        self._pool.start_actors([slot for slot in idle if slot.actor is None], others_running=bool(busy))
        for cause in self._pool.sync_weights([slot for slot in idle if slot.actor is not None]):
            shares.lose((), cause)
        return [slot for slot in idle if slot.actor is not None]

    def _job(self, share: EpisodeIndices, starts: Sequence[EpisodeStart], policy_version: int) -> Job:
        for name, (_, data) in self._shared_objects.items():
            if name not in self._references:
                self._references[name] = ray.put(data)
        return Job(
            places=share,
            starts=tuple(starts[place] for place in share),
            policy_version=policy_version,
            shared_objects=dict(self._references),
        )

    def _poll(self, works: Mapping[Any, _Assignment]) -> list[tuple[Any, _Assignment]]:
        """The streams that have something to give, and those that have been silent for too long."""
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
        """The next ones. StopIteration at the end of the share, WorkerLostError where the worker is."""
        if self._is_silent(work):
            raise WorkerLostError(f"no sign of life for {self._silence_seconds:g} seconds")
        records: list[tuple[int, bytes]] = get_result(stream, timeout_seconds=self._silence_seconds)
        return records

    def _is_silent(self, work: _Assignment) -> bool:
        return time.monotonic() - work.last_message_at > self._silence_seconds

    def _name_of(self, thing: object) -> str | None:
        return next((name for name, (known, _) in self._shared_objects.items() if known is thing), None)
