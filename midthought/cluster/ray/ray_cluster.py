"""The connection to a Ray cluster: one that runs already, or one that is started here; and room in it for its processes.

Knows settings and resources; nothing of models, episodes or weights.
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
from midthought.errors import MissingExtraError, SettingsError

_log = logging.getLogger(__name__)
_lock = threading.Lock()
_num_open = 0
"""Open sessions of the connection that was made here; the last one to close ends it."""

Role = Literal["actor", "learner", "critic"]
"""What the room is for: workers that roll out, ranks that learn, or ranks that learn a critic alone."""
_shared_groups: dict[tuple[int, int], list[Any]] = {}
"""[placement group, sessions that use it] by actors and learners, for those that share places (`ray.colocate`)."""
_CONNECT_TIMEOUT_SECONDS = 10.0
_LOCAL_RESERVE_SECONDS = 10.0
"""A cluster that was started here does not grow: room that is not free by then will not be."""


def require_ray() -> Any:
    """The package. Raises MissingExtraError where it is not installed."""
    try:
        import ray
    except ImportError:
        raise MissingExtraError("ray", "ray") from None
    return ray


def check_ray(settings: RayConfig, inference: InferenceConfig) -> None:
    """Raise SettingsError where rollouts on Ray cannot be what the settings ask for, MissingExtraError without Ray."""
    if settings.use_ray or settings.num_learners > 1 or settings.num_critics:
        require_ray()
    if settings.colocate and not (settings.use_ray and settings.num_learners > 1):
        raise SettingsError(
            "ray.colocate puts an actor and a learner rank on one place, and needs both: set ray.use_ray to true and "
            "ray.num_learners to 2 or more, or ray.colocate to false"
        )
    if not settings.use_ray:
        return
    if inference.backend != "local":
        raise SettingsError(
            f"ray.use_ray with inference.backend={inference.backend!r}: Ray's workers have engines of their own, and servers "
            "are reached from here as they are; set ray.use_ray to false (several servers: inference.base_url), or "
            "inference.backend to 'local'"
        )
    if inference.partial_rollouts:
        raise SettingsError(
            "ray.use_ray with inference.partial_rollouts: Ray's workers end every iteration with its last episode; set one "
            "of the two to false"
        )


class RayCluster:
    """A connection to a cluster, with room in it for all processes of a role. Close it after use.

    A cluster that this process is connected to already is used and left as it is. Otherwise the one at
    `settings.address` is joined, and left at the end; without an address one is started here, on the loopback interface
    and without dashboard, and ended with the last session that uses it.

    Raises SettingsError where no cluster answers at the address, or it has no room for all of them within
    `settings.start_timeout_seconds`; MissingExtraError without Ray.
    """

    def __init__(self, settings: RayConfig, role: Role = "actor") -> None:
        global _num_open
        with _lock:
            self._is_ours = bool(_num_open) or _connect(settings)
            _num_open += self._is_ours
        self._role: Role = role
        self._is_colocated = settings.colocate and role != "critic"
        self._group: Any = None
        self._is_local = self._is_ours and not settings.address
        try:
            self._group = self._reserve(settings)
        except BaseException:
            self.close()
            raise

    def options(self, settings: RayConfig, number: int) -> dict[str, Any]:
        """What Ray is to be told of process `number`: its resources, and where it stands in the reserved room."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        return {
            "num_cpus": resources_of(settings, self._role).get("CPU", 0),
            "num_gpus": resources_of(settings, self._role).get("GPU", 0),
            "scheduling_strategy": PlacementGroupSchedulingStrategy(self._group, number if self._is_colocated else -1),
        }

    def close(self) -> None:
        """Give the room back, and leave or end the cluster where it was joined or started here. Doing so twice is fine."""
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
        """A placement group with one bundle for every process, or for an actor and a learner."""
        from ray.util import placement_group, remove_placement_group

        role, number, bundle = self._role, num_processes(settings, self._role), resources_of(settings, self._role)
        if self._is_colocated:
            places = _shared_groups.get((settings.num_actors, settings.num_learners))
            if places is not None:
                places[1] += 1
                return places[0]
            number = max(settings.num_actors, settings.num_learners)
            bundle = dict(Counter(resources_of(settings, "actor")) + Counter(resources_of(settings, "learner")))
        group = placement_group([bundle] * number, strategy=settings.placement.upper())
        seconds = min(settings.start_timeout_seconds, _LOCAL_RESERVE_SECONDS if self._is_local else math.inf)
        if group.wait(timeout_seconds=seconds):
            if self._is_colocated:
                _shared_groups[settings.num_actors, settings.num_learners] = [group, 1]
            return group
        remove_placement_group(group)
        size = "learner" if role == "critic" else role
        raise SettingsError(
            f"ray.num_{role}s={number} with {_describe(bundle)} each: the cluster had no room for them within "
            f"{seconds:g} seconds. {describe_resources()}; ask for fewer or smaller {role}s (ray.num_{role}s, "
            f"ray.cpus_per_{size}, ray.gpus_per_{size}), or add nodes"
        )


def _release_shared(group: Any) -> bool:
    """Whether nobody is left on these places."""
    for key, places in list(_shared_groups.items()):
        if places[0] is group:
            places[1] -= 1
            if places[1]:
                return False
            del _shared_groups[key]
    return True


def num_processes(settings: RayConfig, role: Role) -> int:
    """Processes that the settings ask for."""
    return int(getattr(settings, f"num_{role}s"))


def resources_of(settings: RayConfig, role: Role = "actor") -> dict[str, float]:
    """The resources of one process, by Ray's names."""
    if role != "actor":
        wanted = {"CPU": settings.cpus_per_learner, "GPU": settings.gpus_per_learner}
    else:
        wanted = {"CPU": settings.cpus_per_actor, "GPU": settings.gpus_per_actor}
    return {name: number for name, number in wanted.items() if number}


def describe_resources() -> str:
    """What the cluster has and what is free of it, in words."""
    import ray

    alive = [node for node in ray.nodes() if node["Alive"]]
    has, free = ray.cluster_resources(), ray.available_resources()
    return f"It has {_describe(has)} on {len(alive)} node(s), of which {_describe(free)} are free"


def _describe(resources: Mapping[str, float]) -> str:
    return " and ".join(f"{resources.get(name, 0):g} {name}s" for name in ("CPU", "GPU"))


def _connect(settings: RayConfig) -> bool:
    """See that this process is connected; False where it was before."""
    is_first = "ray" not in sys.modules
    if is_first and not settings.address:
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # Ray reads it when imported: bind to loopback
    ray = require_ray()
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
            f"ray.address={address!r}: Ray's client cannot take trajectories as they come; start the run on a node of the "
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
    """Raise OSError where nothing listens at HOST:PORT: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_TIMEOUT_SECONDS).close()


def _start(settings: RayConfig) -> None:
    import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    num_cores = os.cpu_count() or 1
    num_actors = settings.num_actors if settings.use_ray else 0
    num_learners = settings.num_learners if settings.num_learners > 1 else 0
    num_learners += settings.num_critics
    num_wanted = math.ceil(num_actors * settings.cpus_per_actor) + math.ceil(num_learners * settings.cpus_per_learner)
    if num_wanted > num_cores:
        _log.warning(
            "%d actors with %g CPUs each and %d learner ranks with %g share %d cores: fewer may be as fast",
            num_actors, settings.cpus_per_actor, num_learners, settings.cpus_per_learner, num_cores,
        )  # fmt: skip
    ray.init(
        address="local",
        num_cpus=max(num_cores, num_wanted),
        include_dashboard=False,
        logging_level=logging.WARNING,
    )
