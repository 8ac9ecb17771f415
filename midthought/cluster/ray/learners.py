"""Learner ranks as Ray actors: a worker group for `RemoteLearner`. Does not depend on a loss or on the training loop."""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import ray
import torch.distributed as dist

from midthought.cluster.process import ProcessSettings, pack_learner, unpack_learner
from midthought.cluster.ray.actor_pool import WorkerLostError, get_result
from midthought.cluster.ray.ray_cluster import RayCluster, describe_resources
from midthought.cluster.ray.worker import RayProcess
from midthought.config import RayConfig, TrainingConfig
from midthought.errors import EngineError
from midthought.learning.model import Models
from midthought.learning.optimizer import TrainingSchedule

_log = logging.getLogger(__name__)
_STORE_TIMEOUT = timedelta(seconds=300)
"""Time for a rank to find a key of the rendezvous store."""


class RayWorkerGroup:
    """The `settings.num_learners` ranks of a learner on a Ray cluster.

    Each rank holds a shard of the model, so if one is lost, all are stopped, and the run must resume from a checkpoint.
    With `is_deterministic` they compute with as many threads as this process.
    """

    can_start_again = False

    def __init__(self, settings: RayConfig, *, is_deterministic: bool = False) -> None:
        self._settings = settings
        self._num_threads = None if is_deterministic else max(1, int(settings.cpus_per_learner))
        self._cluster: RayCluster | None = None
        self._actors: list[Any] = []

    def start(self, models: Models, training: TrainingConfig, schedule: TrainingSchedule) -> None:
        """Starts the ranks.

        Raises `SettingsError` if resources are missing or the models cannot be pickled, `EngineError` if a rank does not start.
        """
        payload = pack_learner(models, training, schedule)
        self._cluster = RayCluster(self._settings, "learner")
        process = ProcessSettings.of_this_process(self._num_threads)
        number_of = range(self._settings.num_learners)
        actor = ray.remote(LearnerActor)
        self._actors = [
            actor.options(**self._cluster.options(self._settings, number), max_restarts=0).remote(
                f"learner-{number}", process
            )
            for number in number_of
        ]
        seconds = self._settings.start_timeout_seconds
        self._all("build", [(ray.put(payload),)] * len(self._actors), seconds, "start")
        [address] = self._all("open_store", [()], seconds, "start")
        joining = [(address, number, len(self._actors), self._settings.silence_timeout_seconds) for number in number_of]
        self._all("join", joining, seconds, "start")

    def call(self, method: str, *arguments: Any) -> Any:
        """Calls the method on all ranks and returns the result of the first.

        Raises what a rank raises, or `EngineError` if one dies; in both cases all ranks are stopped.
        """
        if not self._actors:
            raise EngineError(f"the learner's ranks have ended; {_REMEDY}")
        reference = ray.put(arguments)
        return self._all("call", [(method, reference)] * len(self._actors), None, f"{method!r}")[0]

    def close(self) -> None:
        """Stops the ranks and leaves the cluster. May be called twice."""
        for actor in self._actors if ray.is_initialized() else ():
            ray.kill(actor)
        self._actors = []
        if self._cluster is not None:
            self._cluster.close()
        self._cluster = None

    def _all(self, method: str, arguments: Sequence[tuple[Any, ...]], seconds: float | None, what: str) -> list[Any]:
        """Returns the results of the first ranks, one for each of `arguments`. The first failure stops all ranks, because the
        others would wait for the failed one."""
        asked = [getattr(actor, method).remote(*given) for actor, given in zip(self._actors, arguments, strict=False)]
        number = {reference: place for place, reference in enumerate(asked)}
        waiting = list(asked)
        try:
            while waiting:
                ready, waiting = ray.wait(waiting, num_returns=1, timeout=seconds)
                if not ready:
                    raise EngineError(
                        f"not all learner ranks started within {seconds:g} seconds. {describe_resources()}"
                    )
                try:
                    get_result(ready[0])
                except Exception as error:
                    for reference, lost in _losses(ready[0], error, waiting):
                        name = f"learner-{number[reference]} of {len(self._actors)} learner ranks"
                        raise EngineError(f"{name} was lost ({what}): {lost}; {_REMEDY}") from error
                    raise
            return [get_result(reference) for reference in asked]
        except BaseException:
            self.close()
            raise


def _losses(failed: Any, error: Exception, waiting: Sequence[Any]) -> Iterator[tuple[Any, WorkerLostError]]:
    """Yields lost ranks. If `failed` failed only because another rank was lost, yields that other rank."""
    if isinstance(error, WorkerLostError):
        yield failed, error
    elif waiting:
        ready, _ = ray.wait(list(waiting), num_returns=len(waiting), timeout=_GRACE_SECONDS)
        for reference in ready:
            try:
                get_result(reference)
            except WorkerLostError as lost:
                yield reference, lost
            except Exception as other:
                _log.debug("another rank failed as well: %s", other)


_GRACE_SECONDS = 5.0
_REMEDY = "continue from the last checkpoint (--resume, or RayPPOTrainer with resume=True)"


class LearnerActor(RayProcess):
    """Process of one rank."""

    def build(self, payload: bytes) -> None:
        """Creates the models with uninitialized tensors."""
        self._settings.apply_numerics()
        self._rank = unpack_learner(payload, "cuda" if ray.get_gpu_ids() else "cpu")

    def open_store(self) -> tuple[str, int]:
        """Opens the rendezvous store on this node's cluster address only. Returns host and port."""
        host = ray.util.get_node_ip_address()
        listener = socket.create_server((host, 0))
        self._store = dist.TCPStore(
            host,
            listener.getsockname()[1],
            is_master=True,
            wait_for_workers=False,
            timeout=_STORE_TIMEOUT,
            master_listen_fd=listener.detach(),
        )
        return host, self._store.port

    def join(self, address: tuple[str, int], number: int, num_ranks: int, timeout_seconds: float) -> None:
        if address[0].startswith("127.") and sys.platform == "linux":
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        seconds = timedelta(seconds=timeout_seconds)
        store = self._store if number == 0 else dist.TCPStore(*address, is_master=False, timeout=seconds)
        self._rank.join(store, number, num_ranks, timeout_seconds)
        self._is_first = number == 0

    def call(self, method: str, arguments: tuple[Any, ...]) -> Any:
        """Returns the first rank's result; the other ranks return None."""
        self._settings.apply_numerics()
        answer = getattr(self._rank, method)(*arguments)
        return answer if self._is_first else None
