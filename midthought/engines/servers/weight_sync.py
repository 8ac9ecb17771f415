"""A policy in training, sampled from servers: after every update they load its weights, and prove it.

Knows models as PyTorch modules, folders and servers; nothing of losses, tasks or text.
"""

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
from midthought.engines.servers.publication import Proof, Publication
from midthought.engines.servers.weight_folder import are_loadable, is_tied, write_adapters, write_model
from midthought.types import Completion

_NUM_BEGINNINGS = 8
TOLERANCES = {"float32": 0.01, "bfloat16": 0.1, "float16": 0.05}
"""Largest mean difference between a server's log-probabilities and the policy's, by the type of its weights."""


class SyncedServers:
    """An engine over servers that follow a policy in training. Implements `midthought.engines.engine.Engine`.

    Made, it rehearses: the servers load the policy with its embeddings out of order, then in order, each time with
    the proof. So a server that says "done" and goes on with old weights is found before training begins, not hidden by the
    smallness of a step.

    Args:
        engine: over the servers, whose model is the policy's own, or, if adapters are sent alone, its base.
        policy: a causal LM that is trained in place, with or without PEFT adapters. LoRA adapters are sent alone; of others the
            merged weights are sent (`weight_folder.are_loadable`).
        probe_ids: a text by its tokens, as natural to the policy as may be; at least two.
        folder: where weights are written, under a path that the servers see, too; a temporary one by default.
        tolerance: largest mean difference in log-probability, in nats; by default 0.01 in float32, 0.1 in bfloat16.
        process: a server that was started for this engine alone, ended by `shutdown`.

    Raises EngineError where a server cannot be reached, takes no weights, or computes something else.
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
        self._sends_adapters = are_loadable(policy)
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
            with out_of_order(policy):
                self._publish(0)
            self._publish(0)
            undo.pop_all()

    @property
    def policy_version(self) -> int:
        """Updates so far."""
        return self.engine.policy_version

    @policy_version.setter
    def policy_version(self, version: int) -> None:
        self.engine.policy_version = version

    async def sample(
        self, episode: int, token_ids: Sequence[int], sampling: Sampling, *, stopper: Stopper | None = None
    ) -> Completion:
        """See `ServerEngine.sample`; every completion is of one version of the weights."""
        return await self.engine.sample(episode, token_ids, sampling, stopper=stopper)

    def open(self, episode: int) -> None:
        self.engine.open(episode)

    def close(self, episode: int) -> None:
        self.engine.close(episode)

    def update_weights(self) -> None:
        """The policy was changed in place: have every server load it, and count a new version.

        Samples that are on their way are waited for, later ones wait. EngineError as when this was made.
        """
        self._publish(self.engine.policy_version + 1)

    def shutdown(self) -> None:
        """Remove the weights that were written, and end the server that was started. Doing so twice is fine."""
        self._loop.close()
        if self._process is not None:
            self._process.stop()
        shutil.rmtree(self._folder / self._name, ignore_errors=True)
        if self._temporary is not None:
            self._temporary.cleanup()

    def _publish(self, policy_version: int) -> None:
        """Write the weights, have them loaded, remove older ones."""
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
            proof=make_proof(self._policy, self._probe_ids, self._tolerance),
            likely_cause=_likely_cause(self._policy),
        )
        self._loop.run(self.engine.publish(publication, policy_version))
        for older in path.parent.iterdir():
            if older != path:
                shutil.rmtree(older)


def make_proof(policy: Any, token_ids: Sequence[int], tolerance: float) -> Proof:
    """The policy's distributions after several beginnings of the text, spread over its length; one forward pass."""
    import torch

    count = min(_NUM_BEGINNINGS, len(token_ids))
    lengths = [len(token_ids) * (number + 1) // count for number in range(count)]
    was_training = policy.training
    policy.eval()
    with torch.no_grad():
        logits = policy(input_ids=torch.tensor([list(token_ids)], device=policy.device), use_cache=False).logits[0]
        logprobs = logits[[length - 1 for length in lengths]].float().log_softmax(-1).cpu()
    policy.train(was_training)
    return Proof(token_ids=token_ids, lengths=lengths, logprobs=logprobs, tolerance=tolerance)


@contextlib.contextmanager
def out_of_order(policy: Any) -> Iterator[None]:
    """Within it the policy computes something else, and afterwards, to the bit, what it did before.

    Its tokens change places by one, in the embedding and in the output layer; adapters get weights at random.
    """
    import torch

    sends_adapters = are_loadable(policy)
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
    if are_loadable(policy):
        return (
            "Adapters add to a base model: the server must hold the very one that training began with, in the same "
            "type (--dtype)"
        )
    if is_tied(policy):
        return (
            "The policy's output layer is tied to its embedding, and a server that was started on such a model may reload "
            "only the one of them: start it with `midthought engine serve MODEL`, which unties them, or leave base_url "
            "empty to have one started"
        )
    return (
        "It may run in another type than the policy (--dtype), hold a quantised model, or have kept what it computed "
        "with older weights (its prefix cache)"
    )
