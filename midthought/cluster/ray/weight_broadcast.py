"""Broadcasts new weights from this process (rank 0) to rollout actors that have GPUs of their own, without main memory.

`actor_pool` uses Ray's object store if no broadcast is possible, or one fails.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import ray
import torch
from ray.exceptions import RayTaskError
from torch import Tensor, distributed

from midthought.cluster.ray.weight_route import WeightRoute, choose_weight_route
from midthought.config import RayConfig
from midthought.engines.weight_sync.broadcast_groups import join_torch_group, open_store

_log = logging.getLogger(__name__)
_MAX_IN_FLIGHT = 8
"""Number of tensors that are broadcast at a time. The timeout of each starts when it is queued."""
_POLL_SECONDS = 0.1
_GIVEN_UP = "given up"
"""Key that rank 0 sets in the store if a broadcast failed, so that the other ranks do not wait for their timeout."""
_MAX_FAILURES = 3
"""After this many failed broadcasts in a row the object store is used until the end of the run."""


def gpu_id(device: str) -> str:
    """Returns an identifier of this GPU that is unique over all machines."""
    return str(torch.cuda.get_device_properties(device).uuid)


class BroadcastError(Exception):
    """Not all actors received the weights."""


class WeightBroadcast:
    """Sends weights by broadcast if that is possible. `close` it after use; it can be used again afterwards.

    Args:
        policy_device: device of the policy in this process.
        backend: backend of the process group in place of NCCL, for any devices. None: `choose_weight_route` decides.

    Raises `SettingsError` if `ray.weight_transport` names an impossible route.
    """

    def __init__(self, settings: RayConfig, policy_device: torch.device, *, backend: str | None = None) -> None:
        self._settings = settings
        self._device = policy_device
        self._backend = backend
        self._route: WeightRoute | None = None
        self._group: _SendingGroup | None = None
        self._num_failures = 0
        self._choose()

    def send(self, actors: Sequence[Any], names: Sequence[str], tensors: Iterable[Tensor]) -> bool:
        """Sends these tensors of the policy to all of these actors, and returns True if all of them received them.

        False: use the object store. A warning says why, if a broadcast was tried. It fails if an actor dies, or takes no part
        for half of `ray.silence_timeout_seconds`. The next call forms a new group of the actors that it gets.

        Raises `SettingsError` if `ray.weight_transport` is `nccl` and actors share GPUs.
        """
        if self._num_failures >= _MAX_FAILURES or not self._is_possible(actors):
            return False
        try:
            if self._group is None or self._group.actors != list(actors):
                self.close()
                seconds = self._settings.silence_timeout_seconds / 2
                self._group = _SendingGroup(actors, self._device, self._backend or "nccl", seconds)
            self._group.send(names, tensors)
        except (BroadcastError, OSError, RuntimeError) as error:  # the last two: no rendezvous on this node
            self.close()
            self._num_failures += 1
            until = "for the rest of the run" if self._num_failures >= _MAX_FAILURES else "this time"
            cause = error if isinstance(error, BroadcastError) else _first_line(error)
            _log.warning("the weights go through Ray's object store %s: %s", until, cause)
            return False
        except BaseException:
            self.close()
            raise
        self._num_failures = 0
        return True

    def close(self) -> None:
        """Leaves the group. May be called twice."""
        if self._group is not None:
            self._group.close()
        self._group = None

    def _is_possible(self, actors: Sequence[Any]) -> bool:
        if self._backend is not None:
            return True
        if self._group is not None and self._group.actors == list(actors):
            return True
        if self._choose().name != "nccl":
            return False
        try:
            ids = ray.get(
                [actor.gpu_id.remote() for actor in actors], timeout=self._settings.silence_timeout_seconds / 2
            )
        except Exception as error:
            _log.warning("the weights go through Ray's object store this time: %s", _first_line(error))
            return False
        return self._choose([gpu_id(str(self._device)), *ids]).name == "nccl"

    def _choose(self, gpu_ids: Sequence[str] | None = None) -> WeightRoute:
        """Logs the route when all that it depends on is known, and when it changes."""
        has_nccl = distributed.is_available() and distributed.is_nccl_available()
        route = choose_weight_route(self._settings, str(self._device), gpu_ids, has_nccl=has_nccl)
        is_final = gpu_ids is not None or route.name != "nccl"
        if self._backend is None and is_final and route != self._route:
            self._route = route
            way = "NCCL" if route.name == "nccl" else "Ray's object store"
            _log.info("new weights go to the Ray workers through %s: %s", way, route.reason)
        return route


@dataclass(frozen=True, kw_only=True, slots=True)
class Membership:
    """What an actor needs to join a group."""

    group_name: str
    host: str
    port: int
    rank: int
    num_ranks: int
    backend: str
    timeout_seconds: float


class _SendingGroup:
    """Rank 0 of a group with these actors. Calls that wait for other ranks run in a thread, because one of them may be dead."""

    def __init__(self, actors: Sequence[Any], device: torch.device, backend: str, timeout_seconds: float) -> None:
        host = ray.util.get_node_ip_address()
        _use_loopback(host)
        self.actors = list(actors)
        self._device = device
        self._store = open_store(host)
        group_name = f"midthought-{secrets.token_hex(4)}"
        self._memberships = [
            Membership(
                group_name=group_name,
                host=host,
                port=self._store.port,
                rank=rank,
                num_ranks=1 + len(actors),
                backend=backend,
                timeout_seconds=timeout_seconds,
            )
            for rank in range(1 + len(actors))
        ]
        self._process_group: Any = None
        self._is_closed = threading.Event()
        self._progress_at = 0.0
        self._error: Exception | None = None

    def send(self, names: Sequence[str], tensors: Iterable[Tensor]) -> None:
        """Returns when all actors have received the tensors. Raises `BroadcastError` if one did not."""
        names = list(names)
        answers = [
            actor.receive.remote(membership, names)
            for actor, membership in zip(self.actors, self._memberships[1:], strict=True)
        ]
        limit = self._memberships[0].timeout_seconds
        self._note_progress()
        sending = threading.Thread(target=self._send, args=(list(tensors),), name="midthought-broadcast", daemon=True)
        sending.start()
        while sending.is_alive():
            sending.join(_POLL_SECONDS)
            ready, _ = ray.wait(answers, num_returns=len(answers), timeout=0)
            _check_answers(ready, limit)
            if time.monotonic() - self._progress_at > limit:
                raise BroadcastError(f"a worker took no part within {limit:g} seconds")
        if self._error is not None:
            raise BroadcastError(_first_line(self._error)) from self._error
        _check_answers(answers, limit)

    def close(self) -> None:
        """Leaves the group without waiting for its end, and makes the other ranks stop waiting."""
        self._is_closed.set()
        process_group, self._process_group = self._process_group, None
        store = self._store
        _discard(process_group, lambda: store.set(_GIVEN_UP, "1"))

    def _send(self, tensors: Iterable[Tensor]) -> None:
        try:
            if self._process_group is None:
                self._process_group = _join(self._store, self._memberships[0], self._device)
                self._note_progress()
            is_closed = self._is_closed.is_set
            _broadcast(self._process_group, tensors, self._device, self._memberships[0], is_closed, self._note_progress)
        except Exception as error:
            self._error = error.with_traceback(None)

    def _note_progress(self) -> None:
        self._progress_at = time.monotonic()


class ReceivingGroup:
    """Another rank of the group, in an actor."""

    def __init__(self, membership: Membership, device: torch.device) -> None:
        self.membership = membership
        self._device = device
        _use_loopback(membership.host)
        timeout = timedelta(seconds=membership.timeout_seconds)
        self._store = distributed.TCPStore(membership.host, membership.port, is_master=False, timeout=timeout)
        self._process_group = _join(self._store, membership, device)

    def receive(self, tensors: Iterable[Tensor]) -> None:
        """Overwrites these contiguous tensors in place. Raises `RuntimeError` if rank 0 gives up or sends nothing in time."""
        _broadcast(self._process_group, tensors, self._device, self.membership, lambda: self._store.check([_GIVEN_UP]))

    def close(self) -> None:
        _discard(self._process_group)


def _join(store: Any, membership: Membership, device: torch.device) -> Any:
    timeout = timedelta(seconds=membership.timeout_seconds)
    return join_torch_group(
        store,
        membership.rank,
        membership.num_ranks,
        device,
        name=membership.group_name,
        backend=membership.backend,
        timeout=timeout,
    )


@torch.no_grad()
def _broadcast(
    process_group: Any,
    tensors: Iterable[Tensor],
    device: torch.device,
    membership: Membership,
    is_given_up: Callable[[], bool],
    on_progress: Callable[[], None] = lambda: None,
) -> None:
    """Sends (rank 0) or receives the tensors as bytes, in this order, and waits for the end of each with the timeout."""

    def wait(work: Any) -> None:
        _wait(work, membership.timeout_seconds, is_given_up)
        on_progress()

    works: deque[Any] = deque()
    on_device = torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
    with on_device:
        for tensor in tensors:
            if not tensor.numel():
                continue
            tensor = tensor.detach()
            if membership.rank == 0:
                tensor = tensor.to(device).contiguous()
            works.append(process_group.broadcast(tensor.view(-1).view(torch.uint8), 0))
            if len(works) >= _MAX_IN_FLIGHT:
                wait(works.popleft())
        for work in works:
            wait(work)


def _wait(work: Any, timeout_seconds: float, is_given_up: Callable[[], bool]) -> None:
    """Polls, because waiting for NCCL has no timeout that is the same in all versions of PyTorch."""
    started = asked = time.monotonic()
    while not work.is_completed():
        now = time.monotonic()
        if now - asked > _POLL_SECONDS:
            asked = now
            if is_given_up():
                raise RuntimeError("another rank failed")
        if now - started > timeout_seconds:
            raise RuntimeError(f"no broadcast within {timeout_seconds:g} seconds")
        time.sleep(0.0005)
    work.wait()


def _check_answers(answers: Sequence[Any], timeout_seconds: float) -> None:
    """Raises `BroadcastError` if an actor failed, died, or does not answer."""
    try:
        ray.get(list(answers), timeout=timeout_seconds)
    except Exception as error:
        raise BroadcastError(_first_line(error)) from error


def _first_line(error: Exception) -> str:
    if isinstance(error, RayTaskError):
        error = error.cause
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _discard(process_group: Any, first: Callable[[], Any] = lambda: None) -> None:
    """Ends the group in a thread, because that may wait for broadcasts that still run."""

    def end(process_group: Any) -> None:
        with contextlib.suppress(RuntimeError):
            first()
        with contextlib.suppress(RuntimeError):
            if process_group is not None:
                process_group.abort()

    threading.Thread(target=end, args=(process_group,), daemon=True).start()


def _use_loopback(host: str) -> None:
    """Makes gloo and NCCL connect on the loopback interface if the cluster does."""
    if host.startswith("127.") and sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
