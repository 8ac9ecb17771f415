"""Keeps servers in sync with a policy in training: after each update they load its weights, and a check verifies it."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from midthought.engines.background_loop import BackgroundLoop
from midthought.engines.engine import Sampling, Stopper
from midthought.engines.servers.engine import ServerEngine
from midthought.engines.servers.process import ServerProcess
from midthought.engines.servers.publication import Publication, WeightCheck
from midthought.engines.servers.weight_folder import has_loadable_adapters, is_tied, write_adapters, write_model
from midthought.types import Completion

_NUM_PREFIXES = 8
TOLERANCES = {"float32": 0.01, "bfloat16": 0.1, "float16": 0.05}
"""Maximum mean difference between a server's log-probabilities and the policy's, by data type."""


class SyncedServers:
    """An engine over servers that follow a policy in training. Implements `midthought.engines.engine.Engine`.

    The constructor tests the update: the servers load the policy with perturbed weights, then the real ones, with a check after
    each. So a server that reports success but keeps the old weights is detected before training starts; the small
    change of a training step would hide it.

    Args:
        engine: engine over the servers. Their model is the policy, or its base model if adapters are sent alone.
        policy: a causal LM that is trained in place, with or without PEFT adapters. LoRA adapters are sent alone, others as
            merged weights (`weight_folder.has_loadable_adapters`).
        probe_ids: tokens of a text that is natural for the policy; at least two.
        folder: folder for the weights, visible to the servers under the same path; a temporary one by default.
        tolerance: maximum mean difference in log-probability, in nats; by default 0.01 in float32, 0.1 in bfloat16.
        process: a server that was started only for this engine; `shutdown` stops it.

    Raises `EngineError` if a server cannot be reached, does not accept weights, or computes something else.
    """

    def __init__(
        self,
        engine: ServerEngine,
        policy: Any,
        *,
        probe_ids: Sequence[int],
        max_seq_len: int,
        folder: str | Path | None = None,
        tolerance: float | None = None,
        process: ServerProcess | None = None,
    ) -> None:
        self.engine = engine
        self.max_seq_len = max_seq_len
        self.eos_token_ids = engine.eos_token_ids
        self._policy = policy
        self._sends_adapters = has_loadable_adapters(policy)
        self._probe_ids = list(probe_ids)[: max_seq_len - 1]
        usual = TOLERANCES.get(str(policy.dtype).removeprefix("torch."), 0.01)
        self._tolerance = usual if tolerance is None else tolerance
        self._process = process
        self._temporary = None if folder else tempfile.TemporaryDirectory(prefix="midthought-weights-")
        self._folder = Path(folder or self._temporary.name).resolve()  # type: ignore[union-attr]
        self._name = f"midthought-{secrets.token_hex(4)}"
        self._num_published = 0
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

    async def sample(
        self, episode: int, token_ids: Sequence[int], sampling: Sampling, *, stopper: Stopper | None = None
    ) -> Completion:
        """See `ServerEngine.sample`. Each completion comes from one version of the weights."""
        return await self.engine.sample(episode, token_ids, sampling, stopper=stopper)

    def open(self, episode: int) -> None:
        self.engine.open(episode)

    def close(self, episode: int) -> None:
        self.engine.close(episode)

    def update_weights(self) -> None:
        """Makes all servers load the policy, which was changed in place, and increments the version.

        Waits for running samples; later ones wait. Raises `EngineError` like the constructor.
        """
        self._publish(self.engine.policy_version + 1)

    def shutdown(self) -> None:
        """Removes the written weights, and stops the server if it was started here. May be called twice."""
        self._loop.close()
        if self._process is not None:
            self._process.stop()
        shutil.rmtree(self._folder / self._name, ignore_errors=True)
        if self._temporary is not None:
            self._temporary.cleanup()

    def _publish(self, policy_version: int) -> None:
        """Writes the weights, makes the servers load them, and removes older ones."""
        self._num_published += 1
        path = self._folder / self._name / str(self._num_published)
        path.parent.mkdir(parents=True, exist_ok=True)
        if self._sends_adapters:
            write_adapters(self._policy, path)
        else:
            write_model(self._policy, path)
        publication = Publication(
            path=path,
            adapter=f"{self._name}-{self._num_published}" if self._sends_adapters else None,
            proof=make_weight_check(self._policy, self._probe_ids, self._tolerance),
            likely_cause=_likely_cause(self._policy),
        )
        self._loop.run(self.engine.publish(publication, policy_version))
        for older in path.parent.iterdir():
            if older != path:
                shutil.rmtree(older)


def make_weight_check(policy: Any, token_ids: Sequence[int], tolerance: float) -> WeightCheck:
    """Computes the policy's distributions after several prefixes of the text, in one forward pass."""
    import torch

    count = min(_NUM_PREFIXES, len(token_ids))
    lengths = [len(token_ids) * (number + 1) // count for number in range(count)]
    was_training = policy.training
    policy.eval()
    with torch.no_grad():
        logits = policy(input_ids=torch.tensor([list(token_ids)], device=policy.device), use_cache=False).logits[0]
        logprobs = logits[[length - 1 for length in lengths]].float().log_softmax(-1).cpu()
    policy.train(was_training)
    return WeightCheck(token_ids=token_ids, lengths=lengths, logprobs=logprobs, tolerance=tolerance)


@contextlib.contextmanager
def perturbed(policy: Any) -> Iterator[None]:
    """Context in which the policy computes something else. Afterwards its weights are bit-identical to before.

    Shifts the rows of the embedding and the output layer by one; adapters get random weights.
    """
    import torch

    sends_adapters = has_loadable_adapters(policy)
    with torch.no_grad():
        if sends_adapters:
            weights = [value for name, value in policy.named_parameters() if "lora_B" in name]
            kept = [weight.clone() for weight in weights]
            generator = torch.Generator().manual_seed(0)
            for weight in weights:
                weight.add_((0.1 * torch.randn(weight.shape, generator=generator)).to(weight))
        else:
            embeddings = policy.get_input_embeddings().weight, policy.get_output_embeddings().weight
            weights = list({id(weight): weight for weight in embeddings}.values())
            for weight in weights:
                weight.copy_(weight.roll(1, 0))
    try:
        yield
    finally:
        with torch.no_grad():
            for number, weight in enumerate(weights):
                weight.copy_(kept[number] if sends_adapters else weight.roll(-1, 0))


def _likely_cause(policy: Any) -> str:
    if has_loadable_adapters(policy):
        return (
            "Adapters depend on their base model: the server must have the same base model as the training, in the same "
            "data type (--dtype)"
        )
    if is_tied(policy):
        return (
            "The policy's output layer is tied to its embedding, and a server that was started on such a model may reload "
            "only one of them: start it with `midthought engine serve MODEL`, which unties them, or leave base_url empty "
            "to start one automatically"
        )
    return (
        "It may use another data type than the policy (--dtype), a quantized model, or results of older weights in its "
        "prefix cache"
    )
