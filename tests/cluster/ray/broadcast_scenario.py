"""Weights that are broadcast to two actors of which one dies: what arrives, by which way. With gloo, on any cluster."""

from __future__ import annotations

import functools
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from midthought.config import RayConfig


class Policy(nn.Module):
    """Tensors of several types, one of them tied, empty or of more than what is sent at once."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(300, 64, dtype=torch.bfloat16)
        self.head = nn.Linear(64, 300, bias=False, dtype=torch.bfloat16)
        self.head.weight = self.embedding.weight
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(12))
        self.register_buffer("counts", torch.arange(5))
        self.register_buffer("empty", torch.zeros(0, 4))
        self.scale = nn.Parameter(torch.tensor(2.5))


class Follower:
    """In the place of an engine: leaves the number of its process in a folder, and its node."""

    def __init__(self, model: Any, folder: Path) -> None:
        import ray

        (folder / str(os.getpid())).write_text(ray.get_runtime_context().get_node_id())

    def update_weights(self) -> None:
        """Nothing."""


class Broadcasts:
    """A pool of two actors, and a count of the updates that went through the object store."""

    def __init__(self, folder: Path, address: str, monkeypatch: Any, **ray: Any) -> None:
        from midthought.cluster.ray import actor_pool

        self.policy = Policy()
        self.num_object_store = 0
        self.folder = folder
        buckets = actor_pool.buckets

        def counted(*arguments: Any) -> Any:
            self.num_object_store += 1
            return buckets(*arguments)

        monkeypatch.setattr(actor_pool, "buckets", counted)
        settings = RayConfig(
            use_ray=True, num_actors=2, cpus_per_actor=1.0, address=address, start_timeout_seconds=600, **ray
        )
        engine = functools.partial(Follower, folder=folder)
        self.pool = actor_pool.ActorPool(settings, self.policy, engine, is_deterministic=True, broadcast_backend="gloo")

    def update(self) -> list[str]:
        """Changes every weight, sends them to all running actors, and compares what these hold, bit for bit."""
        from midthought.cluster.ray.weights import digest_of, named_tensors

        with torch.no_grad():
            for parameter in self.policy.parameters():
                parameter.add_(torch.randn_like(parameter))
        self.pool.weights_changed()
        deaths = self.pool.sync_weights(self.running())
        expected = {name: digest_of(tensor) for name, tensor in named_tensors(self.policy).items()}
        assert all(slot.digests == expected for slot in self.running())
        return deaths

    def running(self) -> list[Any]:
        return [slot for slot in self.pool.slots if slot.actor is not None]

    def replace(self) -> list[Any]:
        """Starts the actors that are missing, without weights."""
        missing = [slot for slot in self.pool.slots if slot.actor is None]
        self.pool.start_actors(missing)
        return missing

    def stop_one(self) -> int:
        """Stops an actor's process from running; it does not end."""
        process = max(int(path.name) for path in self.folder.iterdir())
        os.kill(process, signal.SIGSTOP)
        return process


@contextmanager
def killed_soon(process: int) -> Iterator[None]:
    """Kills the process after a second."""
    killing = threading.Timer(1.0, os.kill, (process, signal.SIGKILL))
    killing.start()
    yield
    killing.join()


def an_actor_dies_during_a_broadcast(broadcasts: Broadcasts, warnings: Any) -> None:
    """The update reaches the other actor in time, the next ones reach both again."""
    assert broadcasts.update() == [] and broadcasts.update() == []
    assert broadcasts.num_object_store == 0
    started = time.monotonic()
    with killed_soon(broadcasts.stop_one()):
        (death,) = broadcasts.update()
    assert time.monotonic() - started < 60
    assert "died" in death.lower(), death
    assert len(broadcasts.running()) == broadcasts.num_object_store == 1
    assert "the weights go through Ray's object store this time" in warnings.text
    (replaced,) = broadcasts.replace()
    assert broadcasts.pool.sync_weights([replaced]) == []
    assert broadcasts.num_object_store == 2, "the other actor is not asked to take part"
    assert broadcasts.update() == [] and broadcasts.update() == []
    assert len(broadcasts.running()) == broadcasts.num_object_store == 2
