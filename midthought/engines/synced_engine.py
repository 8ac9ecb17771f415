"""An engine outside the learner's process that follows a policy in training: it loads each update, and a check verifies it."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shutil
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from midthought.engines.engine import Sampling, Stopper
from midthought.engines.reloadable_engine import ReloadableEngine
from midthought.engines.shared_tensors import MEMORY_FOLDER, SharedTensors
from midthought.engines.weight_publication import (
    TOLERANCES,
    Publication,
    has_loadable_adapters,
    is_tied,
    make_weight_check,
    perturbed,
    write_model,
)
from midthought.models.peft_folders import merged_tensors, save_adapters
from midthought.tools.background_loop import BackgroundLoop
from midthought.types import Completion


class SyncedEngine:
    """Makes a `ReloadableEngine` follow a policy in training. Implements `midthought.engines.engine.TrainedEngine`.

    The constructor tests the update: the engine loads the policy with perturbed weights, then the real ones, with a check after
    each. So an engine that reports success but keeps the old weights is detected before training starts; the small
    change of a training step would hide it.

    Args:
        engine: an engine whose model has the policy's architecture. If adapters are sent alone, servers already have the base
            model's weights; an engine that reads shared memory gets them here.
        policy: a causal LM that is trained in place, with or without PEFT adapters. LoRA adapters are sent alone, others as
            merged weights (`publication.has_loadable_adapters`).
        probe_ids: tokens of a text that is natural for the policy; at least two.
        folder: folder for the weights, visible to servers under the same path. None: a temporary one.
        in_memory: whether the temporary folder is in memory if there is room; an engine that was started elsewhere, for
            example in a container, may not see that folder.
        tolerance: maximum mean difference in log-probability, in nats; by default 0.01 in float32, 0.1 in bfloat16.

    Raises `EngineError` if the engine cannot be reached, does not accept weights, or computes something else; then the engine
    is shut down.
    """

    def __init__(
        self,
        engine: ReloadableEngine,
        policy: Any,
        *,
        probe_ids: Sequence[int],
        max_seq_len: int,
        folder: str | Path | None = None,
        in_memory: bool = False,
        tolerance: float | None = None,
    ) -> None:
        self.engine = engine
        self.max_seq_len = max_seq_len
        self.eos_token_ids = engine.eos_token_ids
        self._policy = policy
        self._sends_adapters = has_loadable_adapters(policy)
        self._probe_ids = list(probe_ids)[: max_seq_len - 1]
        usual = TOLERANCES.get(str(policy.dtype).removeprefix("torch."), 0.01)
        self._tolerance = usual if tolerance is None else tolerance
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._folder = None if folder is None else Path(folder).resolve()
        self._in_memory = in_memory
        self._name = f"midthought-{secrets.token_hex(4)}"
        self._num_published = 0
        self._waking = threading.Lock()
        self._loop = BackgroundLoop("midthought-weights")
        with contextlib.ExitStack() as undo:
            undo.callback(self.shutdown)
            self._loop.run(engine.check())
            with perturbed(policy):
                self._publish(0)
            self._publish(0)
            undo.pop_all()

    @property
    def policy_version(self) -> int:
        """Number of updates so far."""
        return self.engine.policy_version

    @policy_version.setter
    def policy_version(self, version: int) -> None:
        self.engine.policy_version = version

    @property
    def progress(self) -> object:
        """Always another object: servers and vLLM have limits for each request."""
        return object()

    async def sample(
        self, episode: int, token_ids: Sequence[int], sampling: Sampling, *, stopper: Stopper | None = None
    ) -> Completion:
        """See the engine's `sample`. Each completion comes from one version of the weights."""
        if self.engine.is_asleep:
            await asyncio.to_thread(self._wake_up)
        return await self.engine.sample(episode, token_ids, sampling, stopper=stopper)

    def open(self, episode: int) -> None:
        self.engine.open(episode)

    def close(self, episode: int) -> None:
        self.engine.close(episode)

    def update_weights(self) -> None:
        """Makes the engine load the policy, which was changed in place, and increments the version.

        Waits for running samples; later ones wait. Raises `EngineError` like the constructor.
        """
        with self._waking:
            self._publish(self.engine.policy_version + 1)

    def sleep(self) -> None:
        """Releases the engine's memory, if it can; the next sample or update loads the policy again."""
        with self._waking:
            self._loop.run(self.engine.sleep())

    def shutdown(self) -> None:
        """Removes the written weights, and shuts the engine down. May be called twice."""
        self._loop.close()
        self.engine.shutdown()
        if self._folder is not None:
            shutil.rmtree(self._folder / self._name, ignore_errors=True)
        if self._temporary is not None:
            self._temporary.cleanup()

    def _wake_up(self) -> None:
        with self._waking:
            if self.engine.is_asleep:
                self._publish(self.engine.policy_version)

    def _publish(self, policy_version: int) -> None:
        """Makes the engine load the policy's weights, and removes older weights from the folder."""
        self._num_published += 1
        sends_model = not self._sends_adapters
        with contextlib.ExitStack() as stack:
            path, tensors = None, None
            if self.engine.reads_memory and (sends_model or self._num_published == 1):
                shared = SharedTensors(merged_tensors(self._policy, with_adapters=sends_model))
                stack.callback(shared.close)
                tensors = shared.manifest
            if self._sends_adapters or not self.engine.reads_memory:
                path = self._write_folder()
            publication = Publication(
                path=path,
                tensors=tensors,
                adapter=f"{self._name}-{self._num_published}" if self._sends_adapters else None,
                proof=make_weight_check(self._policy, self._probe_ids, self._tolerance),
                likely_cause=_likely_cause(self._policy, is_server=not self.engine.reads_memory),
            )
            if self._policy.device.type == "cuda":
                torch.cuda.empty_cache()  # an engine in another process needs memory that PyTorch keeps for later
            self._loop.run(self.engine.publish(publication, policy_version))
        if path is not None:
            for older in path.parent.iterdir():
                if older != path:
                    shutil.rmtree(older)

    def _write_folder(self) -> Path:
        if self._folder is None:
            written = [each for each in self._policy.parameters() if each.requires_grad or not self._sends_adapters]
            num_bytes = 2 * sum(weight.nbytes for weight in written)  # of two versions
            place = memory_folder(num_bytes) if self._in_memory else None
            self._temporary = tempfile.TemporaryDirectory(prefix="midthought-weights-", dir=place)
            self._folder = Path(self._temporary.name).resolve()
        path = self._folder / self._name / str(self._num_published)
        path.parent.mkdir(parents=True, exist_ok=True)
        if self._sends_adapters:
            save_adapters(self._policy, path)
        else:
            write_model(self._policy, path)
        return path


def memory_folder(num_bytes: int) -> Path | None:
    """Returns a folder in memory with room for `num_bytes`; None if there is none."""
    if not MEMORY_FOLDER.is_dir() or shutil.disk_usage(MEMORY_FOLDER).free < num_bytes:
        return None
    return MEMORY_FOLDER


def _likely_cause(policy: Any, *, is_server: bool) -> str:
    if has_loadable_adapters(policy):
        return (
            "Adapters depend on their base model: the engine must have the same base model as the training, in the same "
            "data type (--dtype)"
        )
    if is_server and is_tied(policy):
        return (
            "The policy's output layer is tied to its embedding, and a server that was started on such a model may reload "
            "only one of them: start it with `midthought engine serve MODEL`, which unties them, or leave base_url empty "
            "to start one automatically"
        )
    return (
        "It may use another data type than the policy (--dtype), a quantized model, or results of older weights in its "
        "prefix cache"
    )
