"""Ray actor that runs episodes: a copy of the policy, its engine, and the rollout loop. Returns trajectories as a stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray

from midthought.cluster.process import (
    ProcessSettings,
    deserialize,
    digest_of,
    fill_placeholders,
    named_tensors,
    serialize,
    write_bytes,
)
from midthought.engines.engine import TrainedEngine
from midthought.errors import SettingsError
from midthought.rollout.episode import EpisodeStart, RolloutParts, run_episodes
from midthought.types import StopReason, Trajectory

_HEARTBEAT_SECONDS = 1.0
"""Interval between the messages that show that the worker's event loop runs."""


class RayProcess:
    """Base of the actors. Ray prefixes an actor's log lines with its name."""

    def __init__(self, name: str, settings: ProcessSettings) -> None:
        settings.begin()
        self._name = name
        self._settings = settings

    def __repr__(self) -> str:
        return self._name


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """Episodes for one worker."""

    indices: tuple[int, ...]
    starts: tuple[EpisodeStart, ...]
    """One per index. The seed identifies an episode."""
    policy_version: int
    shared_objects: Mapping[str, Any]
    """Name to Ray reference of the objects that each worker receives once."""


class RolloutWorker(RayProcess):
    """One process of the worker group."""

    def __init__(self, name: str, settings: ProcessSettings) -> None:
        super().__init__(name, settings)
        self._loop = asyncio.new_event_loop()
        self._shared_objects: dict[str, Any] = {}
        self._engine: TrainedEngine | None = None
        self._settings.apply_numerics()

    def build(self, model: bytes, make_engine: Callable[[Any], TrainedEngine]) -> None:
        """Creates the policy with uninitialized tensors. Its engine is created when it has weights."""
        device = "cuda" if ray.get_gpu_ids() else "cpu"
        self._model = deserialize(model, "the policy", fill_placeholders(device)).eval()
        self._tensors = named_tensors(self._model)
        self._make_engine = make_engine

    def load(self, data: Mapping[str, np.ndarray]) -> None:
        """Copies a bucket (`process.bytes_of` by name) into the policy in place."""
        write_bytes(self._tensors, data)

    def activate_weights(self) -> dict[str, str]:
        """Switches the engine to the loaded weights, or creates it. Returns the digest of each tensor of the policy."""
        if self._engine is None:
            self._engine = self._make_engine(self._model)
        else:
            self._engine.update_weights()
        return {name: digest_of(tensor) for name, tensor in self._tensors.items()}

    def run(self, payload: bytes, job: Job) -> Iterator[list[tuple[int, bytes]]]:
        """Runs the episodes. Yields lists of `(index, pickled Trajectory)`; empty lists are heartbeats.

        Everything runs in this thread: a second computing thread would have its own OpenMP threads, and more threads than
        cores slow down every forward pass.
        """
        assert self._engine is not None
        outbox: asyncio.Queue[tuple[int, bytes] | None] = asyncio.Queue()  # at most the episodes of one job
        parts = RolloutParts(engine=self._engine, **self._deserialize_parts(payload, job.shared_objects))
        self._engine.policy_version = job.policy_version
        self._settings.apply_numerics()
        episodes = self._loop.create_task(_episodes(parts, job, outbox.put_nowait))
        while not episodes.done():
            messages = [self._loop.run_until_complete(outbox.get())]
            while not outbox.empty():
                messages.append(outbox.get_nowait())
            yield [message for message in messages if message is not None]
        episodes.result()

    def _deserialize_parts(self, payload: bytes, shared_objects: Mapping[str, Any]) -> dict[str, Any]:
        for name, reference in shared_objects.items():
            if name not in self._shared_objects:
                self._shared_objects[name] = deserialize(ray.get(reference), name, self._shared_objects.__getitem__)
        fields: dict[str, Any] = deserialize(payload, "what the episodes need", self._shared_objects.__getitem__)
        return fields


async def _episodes(parts: RolloutParts, job: Job, put: Callable[[tuple[int, bytes] | None], None]) -> None:
    """Runs the episodes; puts None as the last message.

    Not a method: with an async method Ray would treat the worker as an async actor and run all methods on one event loop.
    """
    index_of = {start.seed: index for start, index in zip(job.starts, job.indices, strict=True)}
    beating = asyncio.ensure_future(_send_heartbeats(put))
    try:
        await run_episodes(parts, job.starts, on_finished=lambda done: put((index_of[done.seed], _serialize(done))))
    finally:
        beating.cancel()
        put(None)


async def _send_heartbeats(put: Callable[[None], None]) -> None:
    while True:
        await asyncio.sleep(_HEARTBEAT_SECONDS)
        put(None)


def _serialize(trajectory: Trajectory) -> bytes:
    """Pickles the episode's record. If that is impossible, returns the record of a failed episode."""
    try:
        return serialize(trajectory, f"the record of task {trajectory.task.task_id!r}")
    except SettingsError as error:
        prompt = trajectory.segments[0].spans[0]
        failed = Trajectory(
            trajectory.task,
            trajectory.segments[0].token_ids[: prompt.end],
            seed=trajectory.seed,
            group=trajectory.group,
        )
        failed.stop_reason, failed.error = StopReason.FAILED, str(error)
        return serialize(failed, "the record of a failed episode")
