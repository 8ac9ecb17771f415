"""Starts, replaces and stops the rollout actors, and sends them the policy's weights. Does not depend on episodes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from midthought.cluster.process import ProcessSettings, bytes_of, digest_of, named_tensors, placeholder_of, serialize
from midthought.cluster.ray.ray_cluster import RayCluster, describe_resources
from midthought.cluster.ray.worker import RolloutWorker
from midthought.config import RayConfig
from midthought.engines.engine import TrainedEngine
from midthought.errors import EngineError
from midthought.learning.remote_learner import buckets, sizes_of

_log = logging.getLogger(__name__)


class WorkerLostError(Exception):
    """The actor has died or does not answer."""


@dataclass(eq=False)
class ActorSlot:
    """A numbered position in the pool and its current actor."""

    number: int
    num_starts: int = 0
    """Number of actors started for this slot so far."""
    actor: Any = None
    digests: Mapping[str, str] = field(default_factory=dict)
    """Digest of each tensor that the actor holds."""
    start_failed: bool = False
    """No actor could be started. The next rollout tries again."""

    @property
    def name(self) -> str:
        suffix = f".{self.num_starts}" if self.num_starts > 1 else ""
        return f"rollout-{self.number}{suffix}"


class ActorPool:
    """Actors in a Ray cluster, each with a copy of the policy. `open` starts them, `close` stops them; both may be repeated.

    Raises `SettingsError` if the policy cannot be pickled.
    """

    def __init__(
        self, settings: RayConfig, policy: Any, make_engine: Callable[[Any], TrainedEngine], *, is_deterministic: bool
    ) -> None:
        self.settings = settings
        self.slots = [ActorSlot(number) for number in range(settings.num_actors)]
        self._policy = policy
        self._make_engine = make_engine
        self._num_threads = None if is_deterministic else max(1, int(settings.cpus_per_actor))
        self._model = serialize(policy, "the policy", placeholder_of(named_tensors(policy)))
        self._model_ref: Any = None
        self._digests: dict[str, str] | None = None
        """Digests of the policy's current weights. None: the policy has changed since they were computed."""
        self._cluster: RayCluster | None = None

    @property
    def is_open(self) -> bool:
        return self._cluster is not None

    def open(self) -> None:
        """Reserves resources and starts an actor for each slot.

        Raises `SettingsError` if there is no cluster or it has too few free resources, `EngineError` if no actor starts.
        """
        self._cluster = RayCluster(self.settings)
        try:
            self._model_ref = ray.put(self._model)
            self.start_actors(self.slots)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stops the actors and leaves the cluster. May be called twice."""
        for slot in self.slots:
            self.stop_actor(slot)
        if self._cluster is not None:
            self._cluster.close()
        self._cluster = self._model_ref = None

    def start_actors(self, slots: Sequence[ActorSlot], *, others_running: bool = False) -> None:
        """Starts a new actor for each of these slots. A slot stays empty if its actor does not start in time.

        Raises `EngineError` if all slots are empty afterwards, unless `others_running`.
        """
        if not slots:
            return
        assert self._cluster is not None
        worker = ray.remote(RolloutWorker)
        process = ProcessSettings.of_this_process(self._num_threads)
        building = {}
        for slot in slots:
            slot.num_starts += 1
            slot.digests = {}
            options = self._cluster.options(self.settings, slot.number)
            slot.actor = worker.options(**options, max_restarts=0).remote(slot.name, process)
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
        """Stops the actor and empties the slot."""
        if slot.actor is not None and ray.is_initialized():
            ray.kill(slot.actor)
        slot.actor = None

    # -- weights -----------------------------------------------------------------------------------------------

    def weights_changed(self) -> None:
        """Marks the weights as changed: the policy was updated in place."""
        self._digests = None

    def sync_weights(self, slots: Sequence[ActorSlot]) -> list[str]:
        """Sends these actors the tensors that differ from the policy's, then compares the digests of all their tensors.

        They go through Ray's object store, in buckets of which at most two are there at a time. Returns the causes of death of
        actors that died meanwhile; their slots are empty. Raises `EngineError` if an actor holds other weights than the policy.
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
        for bucket in buckets(sizes_of({name: tensors[name] for name in names})):
            reference = ray.put({name: bytes_of(tensors[name]) for name in bucket})
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
        """Returns the results of the actors that are still alive. Appends the causes of death of the others to `deaths`."""
        answers = []
        for slot, reference in asked:
            try:
                answers.append((slot, get_result(reference, timeout_seconds=self.settings.silence_timeout_seconds)))
            except WorkerLostError as lost:
                _log.warning("worker %s died while it received weights: %s", slot.name, lost)
                deaths.append(str(lost))
                self.stop_actor(slot)
        return answers


def get_result(reference: Any, *, timeout_seconds: float | None = None) -> Any:
    """Returns the result of a remote call, or the next item of a stream (`StopIteration` at its end).

    Raises what the actor raised, or `WorkerLostError` if the actor is dead or does not answer in time.
    """
    try:
        if isinstance(reference, ray.ObjectRefGenerator):
            reference = next(reference)
        return ray.get(reference, timeout=timeout_seconds)
    except RayTaskError as error:
        raise error.cause from error
    except GetTimeoutError:
        raise WorkerLostError(f"no answer within {timeout_seconds:g} seconds") from None
    except RayError as error:
        raise WorkerLostError(f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}") from error
