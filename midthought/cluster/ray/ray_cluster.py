"""Connects to a running Ray cluster or starts one, and reserves resources in it.

Does not depend on models, episodes or weights.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import sys
import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal

from midthought.config import InferenceConfig, RayConfig
from midthought.config.references import optional
from midthought.errors import SettingsError

_log = logging.getLogger(__name__)
_lock = threading.Lock()
_num_open = 0
"""Open `RayCluster` objects on the connection that was made here; closing the last one ends it."""

Role = Literal["actor", "learner"]
"""Which processes the resources are for: rollout workers, or learner ranks."""
_shared_groups: dict[tuple[int, int], list[Any]] = {}
"""(number of actors, number of learners) to [placement group, number of users], for pairs that share a GPU (`are_colocated`)."""
_CONNECT_TIMEOUT_SECONDS = 10.0
_LOCAL_RESERVE_SECONDS = 10.0
"""A cluster that was started here does not grow, so waiting longer for free resources is useless."""


def check_ray(settings: RayConfig, inference: InferenceConfig) -> None:
    """Raises `SettingsError` if Ray does not support these settings, `MissingExtraError` if Ray is not installed."""
    optional("ray", "ray")
    if not settings.use_ray:
        return
    if inference.engine != "local" and not inference.in_process:
        raise SettingsError(
            f"ray.use_ray with inference.backend={inference.engine!r}: each Ray worker has its own engine, and servers are "
            "used directly; set ray.use_ray to false (several servers: inference.base_url), "
            "inference.backend to 'local', or inference.in_process to true"
        )


class RayCluster:
    """A connection to a cluster with resources reserved for all processes of a role. Close it after use.

    An existing connection of this process is used and left open. Otherwise the cluster at `settings.address` is joined, and
    left at the end. Without an address a cluster is started here, on the loopback interface and without dashboard; it
    ends when the last `RayCluster` is closed.

    Raises `SettingsError` if no cluster answers at the address or its resources are not free within
    `settings.start_timeout_seconds`, `MissingExtraError` if Ray is not installed.
    """

    def __init__(self, settings: RayConfig, role: Role = "actor") -> None:
        global _num_open
        with _lock:
            self._is_ours = bool(_num_open) or _connect(settings)
            _num_open += self._is_ours
        self._role: Role = role
        self._is_colocated = are_colocated(settings)
        self._group: Any = None
        self._is_local = self._is_ours and not settings.address
        try:
            self._group = self._reserve(settings)
        except BaseException:
            self.close()
            raise

    def options(self, settings: RayConfig, number: int) -> dict[str, Any]:
        """Returns Ray's options for process `number`: its resources and its bundle in the placement group."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        return {
            "num_cpus": resources_of(settings, self._role).get("CPU", 0),
            "num_gpus": resources_of(settings, self._role).get("GPU", 0),
            "scheduling_strategy": PlacementGroupSchedulingStrategy(self._group, number if self._is_colocated else -1),
        }

    def close(self) -> None:
        """Releases the resources, and leaves or stops the cluster if it was joined or started here. May be called twice."""
        global _num_open
        import ray

        is_last = not self._is_colocated or _release_shared(self._group)
        if self._group is not None and is_last and ray.is_initialized():
            ray.util.remove_placement_group(self._group)
        self._group = None
        with _lock:
            if self._is_ours:
                self._is_ours = False
                _num_open -= 1
                if not _num_open:
                    ray.shutdown()

    def _reserve(self, settings: RayConfig) -> Any:
        """Returns a placement group with one bundle per process, or per pair of actor and learner (`are_colocated`)."""
        from ray.util import placement_group, remove_placement_group

        role, bundle = self._role, resources_of(settings, self._role)
        number = int(getattr(settings, f"num_{role}s"))
        if self._is_colocated:
            shared = _shared_groups.get((settings.num_actors, settings.num_learners))
            if shared is not None:
                shared[1] += 1
                return shared[0]
            bundle = dict(Counter(resources_of(settings, "actor")) + Counter(resources_of(settings, "learner")))
        group = placement_group([bundle] * number, strategy="SPREAD")
        seconds = min(settings.start_timeout_seconds, _LOCAL_RESERVE_SECONDS if self._is_local else math.inf)
        if group.wait(timeout_seconds=seconds):
            if self._is_colocated:
                _shared_groups[settings.num_actors, settings.num_learners] = [group, 1]
            return group
        remove_placement_group(group)
        raise SettingsError(
            f"ray.num_{role}s={number} with {_describe(bundle)} each: the cluster could not reserve them within "
            f"{seconds:g} seconds. {describe_resources()}; ask for fewer or smaller {role}s (ray.num_{role}s, "
            f"ray.cpus_per_{role}, ray.gpus_per_{role}), or add nodes"
        )


def are_colocated(settings: RayConfig) -> bool:
    """Returns whether actor i and learner i share a GPU: there are as many of both, and each requests a fraction of one."""
    shares = settings.gpus_per_actor, settings.gpus_per_learner
    num_pairs = settings.num_learners if settings.use_ray and settings.num_learners == settings.num_actors else 0
    return num_pairs > 1 and min(shares) > 0 and sum(shares) <= 1


def _release_shared(group: Any) -> bool:
    """Removes one user of the placement group. Returns whether no user is left."""
    for key, shared in list(_shared_groups.items()):
        if shared[0] is group:
            shared[1] -= 1
            if shared[1]:
                return False
            del _shared_groups[key]
    return True


def resources_of(settings: RayConfig, role: Role = "actor") -> dict[str, float]:
    """Resources of one process, by Ray's names."""
    wanted = {"CPU": getattr(settings, f"cpus_per_{role}"), "GPU": getattr(settings, f"gpus_per_{role}")}
    return {name: number for name, number in wanted.items() if number}


def describe_resources() -> str:
    """Describes the cluster's resources, total and free, for error messages."""
    import ray

    alive = [node for node in ray.nodes() if node["Alive"]]
    has, free = ray.cluster_resources(), ray.available_resources()
    return f"It has {_describe(has)} on {len(alive)} node(s), of which {_describe(free)} are free"


def _describe(resources: Mapping[str, float]) -> str:
    return " and ".join(f"{resources.get(name, 0):g} {name}s" for name in ("CPU", "GPU"))


def _connect(settings: RayConfig) -> bool:
    """Connects this process. Returns False if it was connected already."""
    is_first = "ray" not in sys.modules
    if is_first and not settings.address:
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # Ray reads it when imported: bind to loopback
    ray = optional("ray", "ray")
    if ray.is_initialized():
        return False
    if settings.address:
        _join(settings.address)
    else:
        _start(settings)
    return True


def _join(address: str) -> None:
    import ray

    if address.startswith("ray://"):
        raise SettingsError(
            f"ray.address={address!r}: Ray's client cannot stream trajectories; start the run on a node of the "
            "cluster, with ray.address=auto or HOST:PORT"
        )
    try:
        _check_reachable(address)
        ray.init(address=address, logging_level=logging.WARNING)
    except Exception as error:  # Ray raises ConnectionError, RuntimeError, ValueError and errors of its own
        reason = str(error).strip().partition("\n")[0]
        raise SettingsError(
            f"ray.address={address!r}: no Ray cluster could be joined there ({type(error).__name__}: {reason}); start one "
            "with `ray start --head`, give its address as HOST:PORT or 'auto', or leave ray.address empty"
        ) from error


def _check_reachable(address: str) -> None:
    """Raises `OSError` if nothing listens at HOST:PORT; Ray itself would retry for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_TIMEOUT_SECONDS).close()


def _start(settings: RayConfig) -> None:
    import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    num_cores = os.cpu_count() or 1
    num_actors = settings.num_actors if settings.use_ray else 0
    num_learners = settings.num_learners if settings.num_learners > 1 else 0
    num_wanted = math.ceil(num_actors * settings.cpus_per_actor) + math.ceil(num_learners * settings.cpus_per_learner)
    if num_wanted > num_cores:
        _log.warning(
            "%d actors with %g CPUs each and %d learner ranks with %g share %d cores: fewer may be as fast",
            num_actors, settings.cpus_per_actor, num_learners, settings.cpus_per_learner, num_cores,
        )  # fmt: skip
    ray.init(
        address="local", num_cpus=max(num_cores, num_wanted), include_dashboard=False, logging_level=logging.WARNING
    )
