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

from midthought.cluster.ray.actor_pool import ActorPool, ActorSlot, LostError, got
from midthought.cluster.ray.serialization import pack, unpack
from midthought.cluster.ray.work_queue import Share, WorkQueue
from midthought.cluster.ray.worker import Job
from midthought.config import RayConfig
from midthought.engines.engine import TrainedEngine
from midthought.rollout.episode import EpisodeStart
from midthought.types import Trajectory

_log = logging.getLogger(__name__)
_POLL_SECONDS = 1.0


@dataclass(eq=False)
class _Work:
    """A share on its way."""

    slot: ActorSlot
    share: Share
    heard_at: float


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
        self._standing: dict[str, tuple[object, bytes]] = {}
        self._references: dict[str, Any] = {}

    def keep(self, thing: object, what: str) -> None:
        """Send this object to every worker once, and only its name from then on; later changes of it stay here.

        SettingsError where it cannot be sent.
        """
        if self._name_of(thing) is None:
            self._standing[f"{what} {len(self._standing)}"] = thing, self.packed(thing, what)

    def packed(self, thing: object, what: str) -> bytes:
        """As bytes for the workers. SettingsError where it cannot be sent."""
        return pack(thing, what, self._name_of)

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
            slot.is_given_up = False
        shares = WorkQueue(starts, len(self._pool.slots))
        parcel_ref = ray.put(payload)
        works: dict[Any, _Work] = {}

        def end(place: int, trajectory: Trajectory) -> None:
            trajectory.task = starts[place].task
            shares.end(place, trajectory)
            if on_finished is not None:
                on_finished(trajectory)

        def lose(work: _Work, cause: str) -> None:
            _log.warning("worker %s has died, its unfinished episodes are run again: %s", work.slot.name, cause)
            self._pool.dismiss(work.slot)
            for place in shares.lose(work.share, cause):
                end(place, failed(starts[place], f"the worker died every time that it ran this episode: {cause}"))

        try:
            while not shares.is_complete:
                for slot in self._free(works, shares):
                    share = shares.take()
                    job = self._job(share, starts, policy_version)
                    stream = slot.actor.run.options(num_returns="streaming").remote(parcel_ref, job)
                    works[stream] = _Work(slot, share, time.monotonic())
                for stream, work in self._heard(works):
                    try:
                        records = self._records(stream, work)
                    except StopIteration:
                        del works[stream]
                    except LostError as lost:
                        del works[stream]
                        lose(work, str(lost))
                    else:
                        for place, record in records:
                            end(place, unpack(record, "a trajectory"))
        except BaseException:
            for work in works.values():
                self._pool.dismiss(work.slot)
            raise
        return shares.trajectories()

    def _free(self, works: Mapping[Any, _Work], shares: WorkQueue) -> list[ActorSlot]:
        """At most so many slots as shares wait, whose workers can begin at once, weights and all."""
        if not shares.num_waiting:
            return []
        busy = {work.slot for work in works.values()}
        idle = [slot for slot in self._pool.slots if slot not in busy and not slot.is_given_up][: shares.num_waiting]
        self._pool.hire([slot for slot in idle if slot.actor is None], are_others=bool(busy))
        for cause in self._pool.bring_weights([slot for slot in idle if slot.actor is not None]):
            shares.lose((), cause)
        return [slot for slot in idle if slot.actor is not None]

    def _job(self, share: Share, starts: Sequence[EpisodeStart], policy_version: int) -> Job:
        for name, (_, data) in self._standing.items():
            if name not in self._references:
                self._references[name] = ray.put(data)
        return Job(
            places=share,
            starts=tuple(starts[place] for place in share),
            policy_version=policy_version,
            standing=dict(self._references),
        )

    def _heard(self, works: Mapping[Any, _Work]) -> list[tuple[Any, _Work]]:
        """The streams that have something to give, and those that have been silent for too long."""
        streams = list(works)
        if not streams:
            return []
        ready, _ = ray.wait(streams, num_returns=1, timeout=_POLL_SECONDS)
        if ready:
            ready, _ = ray.wait(streams, num_returns=len(streams), timeout=0)
        for stream in ready:
            works[stream].heard_at = time.monotonic()
        return [(stream, work) for stream, work in works.items() if stream in ready or self._is_late(work)]

    def _records(self, stream: Any, work: _Work) -> list[tuple[int, bytes]]:
        """The next ones. StopIteration at the end of the share, LostError where the worker is."""
        if self._is_late(work):
            raise LostError(f"no sign of life for {self._silence_seconds:g} seconds")
        records: list[tuple[int, bytes]] = got(stream, timeout_seconds=self._silence_seconds)
        return records

    def _is_late(self, work: _Work) -> bool:
        return time.monotonic() - work.heard_at > self._silence_seconds

    def _name_of(self, thing: object) -> str | None:
        return next((name for name, (known, _) in self._standing.items() if known is thing), None)
