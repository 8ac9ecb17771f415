"""The slots of a worker group and who sits in them: actors are hired, given the policy's weights, replaced where they died.

Knows models, actors and the room in the cluster; nothing of episodes.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from midthought.cluster.ray.ray_cluster import RayCluster, describe_resources
from midthought.cluster.ray.serialization import serialize
from midthought.cluster.ray.weights import BUCKET_BYTES, buckets, digest_of, named_tensors, placeholder_of
from midthought.cluster.ray.worker import Numerics, RolloutWorker
from midthought.config import RayConfig
from midthought.engines.engine import TrainedEngine
from midthought.errors import EngineError

_log = logging.getLogger(__name__)


class WorkerLostError(Exception):
    """The actor has died, or does not answer."""


@dataclass(eq=False)
class ActorSlot:
    """One place in the worker group, and the actor that sits in it."""

    number: int
    num_actors: int = 0
    """So many have sat in it."""
    actor: Any = None
    digests: Mapping[str, str] = field(default_factory=dict)
    """Of the weights that the actor holds."""
    start_failed: bool = False
    """No actor could be started; the next rollout tries again."""

    @property
    def name(self) -> str:
        again = f".{self.num_actors}" if self.num_actors > 1 else ""
        return f"rollout-{self.number}{again}"


class ActorPool:
    """Actors in a Ray cluster, each with a copy of the policy. `open` them, `close` them after use; that may be repeated.

    Raises SettingsError where the policy cannot be sent.
    """

    def __init__(
        self,
        settings: RayConfig,
        policy: Any,
        make_engine: Callable[[Any], TrainedEngine],
        *,
        is_deterministic: bool,
    ) -> None:
        self.settings = settings
        self.slots = [ActorSlot(number) for number in range(settings.num_actors)]
        self._policy = policy
        self._make_engine = make_engine
        self._num_threads = None if is_deterministic else max(1, int(settings.cpus_per_actor))
        self._model = serialize(policy, "the policy", placeholder_of(named_tensors(policy)))
        self._model_ref: Any = None
        self._digests: dict[str, str] | None = None
        """Of the policy's present weights; None where it has changed."""
        self._cluster: RayCluster | None = None

    @property
    def is_open(self) -> bool:
        return self._cluster is not None

    def open(self) -> None:
        """Find room in the cluster and fill the slots.

        SettingsError where there is no cluster or no room in it, EngineError where no actor starts.
        """
        self._cluster = RayCluster(self.settings)
        try:
            self._model_ref = ray.put(self._model)
            self.start_actors(self.slots)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the actors and leave the cluster. Doing so twice is fine."""
        for slot in self.slots:
            self.stop_actor(slot)
        if self._cluster is not None:
            self._cluster.close()
        self._cluster = self._model_ref = None

    def start_actors(self, slots: Sequence[ActorSlot], *, others_running: bool = False) -> None:
        """Put a new actor into each of these slots. Where none starts in time the slot stays empty.

        EngineError where all slots would be empty then, unless there are others at work.
        """
        if not slots:
            return
        assert self._cluster is not None
        worker = ray.remote(RolloutWorker)
        numerics = Numerics.of_this_process(self._num_threads)
        search_path = [os.path.abspath(folder) for folder in sys.path]
        building = {}
        for slot in slots:
            slot.num_actors += 1
            slot.digests = {}
            options = self._cluster.options(self.settings, slot.number)
            slot.actor = worker.options(**options, max_restarts=0).remote(slot.name, numerics, search_path)
            building[slot.actor.build.remote(self._model_ref, self._make_engine)] = slot
        seconds = self.settings.start_timeout_seconds
        ready, late = ray.wait(list(building), num_returns=len(building), timeout=seconds)
        cause = f"none started within {seconds:g} seconds. {describe_resources()}" if late else ""
        for reference in late:
            self.stop_actor(building[reference])
        for reference in ready:
            try:
                get_result(reference)
            except WorkerLostError as lost:
                cause = str(lost)
                self.stop_actor(building[reference])
        for slot in slots:
            slot.start_failed = slot.actor is None
        num_missing = sum(slot.actor is None for slot in self.slots)
        if num_missing == len(self.slots) and not others_running:
            raise EngineError(f"no Ray worker is left, and no new one could be started: {cause}")
        if cause:
            _log.warning("%d of %d Ray workers are missing: %s", num_missing, len(self.slots), cause)

    def stop_actor(self, slot: ActorSlot) -> None:
        """End the actor; the slot is empty then."""
        if slot.actor is not None and ray.is_initialized():
            ray.kill(slot.actor)
        slot.actor = None

    # -- weights -----------------------------------------------------------------------------------------------

    def weights_changed(self) -> None:
        """The policy was changed in place."""
        self._digests = None

    def sync_weights(self, slots: Sequence[ActorSlot]) -> list[str]:
        """See that the actors of these slots hold the policy's present weights: what is new to them is sent, and every one
        says the digests of all that it holds then. Gives what those died of that died of it, whose slots are empty.

        EngineError where one holds other weights.
        """
        tensors = named_tensors(self._policy)
        if self._digests is None:
            self._digests = {name: digest_of(tensor) for name, tensor in tensors.items()}
        stale = [slot for slot in slots if slot.digests != self._digests]
        if not stale:
            return []
        names = [name for name, digest in self._digests.items() if any(s.digests.get(name) != digest for s in stale)]
        deaths: list[str] = []
        before: list[tuple[ActorSlot, Any]] = []
        for bucket in buckets(tensors, names, BUCKET_BYTES):
            reference = ray.put(bucket)
            loading = [(slot, slot.actor.load.remote(reference)) for slot in stale if slot.actor is not None]
            self._gather(before, deaths)
            before = loading
        self._gather(before, deaths)
        asked = [(slot, slot.actor.activate_weights.remote()) for slot in stale if slot.actor is not None]
        for slot, digests in self._gather(asked, deaths):
            wrong = [name for name in {**digests, **self._digests} if digests.get(name) != self._digests.get(name)]
            if wrong:
                raise EngineError(
                    f"worker {slot.name} holds other weights than the policy had when it was last updated "
                    f"({wrong[0]!r} and {len(wrong) - 1} more tensors); call update_weights after every change of the policy"
                )
            slot.digests = digests
        return deaths

    def _gather(self, asked: Sequence[tuple[ActorSlot, Any]], deaths: list[str]) -> list[tuple[ActorSlot, Any]]:
        """The answers of those that live."""
        answers = []
        for slot, reference in asked:
            try:
                answers.append((slot, get_result(reference, timeout_seconds=self.settings.silence_timeout_seconds)))
            except WorkerLostError as lost:
                _log.warning("worker %s has died while it was given weights: %s", slot.name, lost)
                deaths.append(str(lost))
                self.stop_actor(slot)
        return answers


def get_result(reference: Any, *, timeout_seconds: float | None = None) -> Any:
    """What an actor gave; of a stream, the next thing that it gave (StopIteration at its end).

    What the actor raised is raised here, WorkerLostError where there is no actor any more or it takes too long.
    """
    try:
        if isinstance(reference, ray.ObjectRefGenerator):
            reference = next(reference)
        return ray.get(reference, timeout=timeout_seconds)
    except RayTaskError as error:
        raise error.cause from error
    except GetTimeoutError:
        raise WorkerLostError(f"it gave no answer within {timeout_seconds:g} seconds") from None
    except RayError as error:
        raise WorkerLostError(f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}") from error
