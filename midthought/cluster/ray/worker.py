"""What runs in a Ray actor: a copy of the policy, an engine over it, and the rollout loop. Trajectories leave as they end.

Knows the loop and the engine as this process has them; nothing of other workers or of learning.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
import torch

from midthought.cluster.ray.serialization import deserialize, serialize
from midthought.cluster.ray.weights import TensorSlice, copy_slices, digest_of, fill_placeholders, named_tensors
from midthought.engines.engine import TrainedEngine
from midthought.errors import SettingsError
from midthought.rollout.episode import EpisodeStart, RolloutParts, run_episodes
from midthought.types import StopReason, Trajectory

_HEARTBEAT_SECONDS = 1.0
"""So often a worker says that its event loop turns."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Numerics:
    """What decides the bits of a forward pass, besides the weights."""

    num_threads: int
    is_deterministic: bool
    matmul_precision: str

    @classmethod
    def of_this_process(cls, num_threads: int | None = None) -> Numerics:
        return cls(
            num_threads=num_threads or torch.get_num_threads(),
            is_deterministic=torch.are_deterministic_algorithms_enabled(),
            matmul_precision=torch.get_float32_matmul_precision(),
        )

    def apply(self) -> None:
        """Of this thread; the other figures are the process's."""
        torch.set_num_threads(self.num_threads)
        torch.use_deterministic_algorithms(self.is_deterministic)
        torch.set_float32_matmul_precision(self.matmul_precision)


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """Episodes for one worker."""

    places: tuple[int, ...]
    starts: tuple[EpisodeStart, ...]
    """One for each place; an episode is known by its seed."""
    policy_version: int
    shared_objects: Mapping[str, Any]
    """By name: Ray's references to what is sent once and kept."""


class RolloutWorker:
    """One process of the worker group. Its name stands before every line that it logs."""

    def __init__(self, name: str, numerics: Numerics, search_path: Sequence[str] = ()) -> None:
        """`search_path`: where modules are found besides, for the code of the user."""
        sys.path += [folder for folder in search_path if folder not in sys.path]
        logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
        self._name = name
        self._numerics = numerics
        self._loop = asyncio.new_event_loop()
        self._shared_objects: dict[str, Any] = {}
        numerics.apply()

    def __repr__(self) -> str:
        return self._name

    def build(self, model: bytes, make_engine: Callable[[Any], TrainedEngine]) -> None:
        """Make the policy, its tensors not filled yet, and the engine over it."""
        device = "cuda" if ray.get_gpu_ids() else "cpu"
        self._model = deserialize(model, "the policy", fill_placeholders(device)).eval()
        self._tensors = named_tensors(self._model)
        self._engine = make_engine(self._model)

    def load(self, pieces: Sequence[TensorSlice]) -> None:
        """Write a bucket into the policy, in place."""
        copy_slices(self._tensors, pieces)

    def activate_weights(self) -> dict[str, str]:
        """Sample from what was loaded; the digest of every tensor, as it lies in the policy now."""
        self._engine.update_weights()
        return {name: digest_of(tensor) for name, tensor in self._tensors.items()}

    def run(self, payload: bytes, job: Job) -> Iterator[list[tuple[int, bytes]]]:
        """Run the episodes; gives `(place, pickled Trajectory)` of those that have ended, and nothing now and then, to say
        that it lives.

        All of it in this thread: a second one that computes would have OpenMP threads of its own, and with more of them than
        cores every pass is slower.
        """
        outbox: asyncio.Queue[tuple[int, bytes] | None] = asyncio.Queue()
        parts = RolloutParts(engine=self._engine, **self._deserialize_parts(payload, job.shared_objects))
        self._engine.policy_version = job.policy_version
        self._numerics.apply()
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
    """Not a method: Ray would take the worker for an asynchronous one, and run all of it on one event loop.

    The last thing that it puts comes when all has ended.
    """
    place_of = {start.seed: place for start, place in zip(job.starts, job.places, strict=True)}
    beating = asyncio.ensure_future(_send_heartbeats(put))
    try:
        await run_episodes(parts, job.starts, on_finished=lambda done: put((place_of[done.seed], _serialize(done))))
    finally:
        beating.cancel()
        put(None)


async def _send_heartbeats(put: Callable[[None], None]) -> None:
    while True:
        await asyncio.sleep(_HEARTBEAT_SECONDS)
        put(None)


def _serialize(trajectory: Trajectory) -> bytes:
    """The episode's record; one that holds what cannot be sent has failed."""
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
