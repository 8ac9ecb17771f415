"""Weights for an engine to load, and the proof that it computes with them: log-probabilities after prefixes of a text.

Writes a policy as folders that model servers load: the whole model with its output layer stored separately, or its adapters
alone. Does not depend on a running engine.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from midthought.engines.shared_tensors import Manifest, SharedTensors, memory_folder
from midthought.errors import EngineError
from midthought.files.regular import storage_errors
from midthought.models.gguf import quiet_transformers
from midthought.models.peft_folders import merged_tensors, save_adapters, save_merged
from midthought.models.peft_weights import adapter_state, is_adapted
from midthought.tokenization import Renderer

_NUM_PREFIXES = 8
_TOLERANCES = {"float32": 0.01, "bfloat16": 0.1, "float16": 0.05}
"""Maximum mean difference between an engine's log-probabilities and the policy's, by data type."""
_MAX_PROBE_TOKENS = 320
_PROBE = (
    "The tide clock is in the hall of the harbour house. It has one hand, which goes round once between two high "
    "tides, so it agrees with no other clock in the town. Who keeps it? Think first, then answer. The keeper's daughter "
    "wound it for forty-one years; on the last evening she wrote down 7 numbers: 3, 1, 4, 1, 5, 9 and 2. "
)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Publication:
    """Weights that an engine must load (a whole model from a folder or from shared memory, then the adapter), and their proof.

    The engine samples one token after each of several prefixes of a text. Sampling works as in rollouts, so a prefix cache
    with results of older weights is detected, too.
    """

    path: Path | None = None
    """Folder of the adapter, or else of a whole model. Servers see it under the same path."""
    tensors: Manifest | None = None
    """A whole model in shared memory; with an adapter, its base model."""
    adapter: str | None = None
    """Name of the adapter in the folder."""
    prefixes: Sequence[Sequence[int]]
    """P sequences of tokens, the shortest first."""
    logprobs: Tensor  # [P, V], the policy's distribution after each prefix
    tolerance: float
    """Maximum mean difference, in nats."""
    likely_cause: str
    """Likely reason if an engine loads the weights and still computes something else."""

    def prefixes_within(self, max_seq_len: int) -> list[Sequence[int]]:
        """Returns the prefixes after which a sequence of that length has room for a token."""
        return [prefix for prefix in self.prefixes if len(prefix) < max_seq_len]

    def check(self, name: str, sampled: Sequence[tuple[int, float]]) -> None:
        """Checks the (token, log-probability) pairs that the engine `name` sampled after the first prefixes.

        Raises `EngineError` with the likely cause if the log-probabilities are not the policy's.
        """
        if not sampled:
            raise EngineError(f"the context of {name} is too short to check its weights")
        differences = [
            abs(float(row[token_id]) - logprob) if token_id < len(row) else float("inf")
            for row, (token_id, logprob) in zip(self.logprobs, sampled, strict=False)
        ]
        difference = sum(differences) / len(differences)
        if not difference <= self.tolerance:
            raise EngineError(
                f"{name} does not compute with the new weights: its log-probabilities differ from the "
                f"policy's by {difference:.3g} on average, {self.tolerance:g} are allowed. {self.likely_cause}"
            )


class PublishedPolicy:
    """A policy in training whose weights are published again and again.

    Args:
        policy: a causal LM that is trained in place, with or without PEFT adapters. LoRA adapters are sent alone, others as
            merged weights (`has_loadable_adapters`). If adapters are sent alone, servers already have the base model's
            weights; an engine that reads shared memory gets them with the first publication.
        probe_ids: tokens of a text that is natural for the policy; at least two.
        folder: folder for the weights, visible to servers under the same path. None: a temporary one.
        keeps_in_memory: whether the temporary folder is in memory if there is room; an engine that was started elsewhere, for
            example in a container, may not see that folder.
        tolerance: maximum mean difference in log-probability, in nats; by default 0.01 in float32, 0.1 in bfloat16.
    """

    def __init__(
        self,
        policy: Any,
        *,
        probe_ids: Sequence[int],
        folder: str | Path | None = None,
        keeps_in_memory: bool = False,
        tolerance: float | None = None,
    ) -> None:
        self._policy = policy
        self._sends_adapters = has_loadable_adapters(policy)
        self._probe_ids = list(probe_ids)
        usual = _TOLERANCES.get(str(policy.dtype).removeprefix("torch."), 0.01)
        self._tolerance = usual if tolerance is None else tolerance
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._folder = None if folder is None else Path(folder).resolve()
        self._keeps_in_memory = keeps_in_memory
        self._name = f"midthought-{secrets.token_hex(4)}"
        self._num_published = 0

    @contextlib.contextmanager
    def perturbed(self) -> Iterator[None]:
        """Context in which the policy computes something else. Afterwards its weights are bit-identical to before.

        Shifts the rows of the embedding and the output layer by one; adapters get random weights.
        """
        with torch.no_grad():
            if self._sends_adapters:
                weights = [value for name, value in self._policy.named_parameters() if "lora_B" in name]
                kept = [weight.clone() for weight in weights]
                generator = torch.Generator().manual_seed(0)
                for weight in weights:
                    weight.add_((0.1 * torch.randn(weight.shape, generator=generator)).to(weight))
            else:
                embeddings = self._policy.get_input_embeddings().weight, self._policy.get_output_embeddings().weight
                weights = list({id(weight): weight for weight in embeddings}.values())
                for weight in weights:
                    weight.copy_(weight.roll(1, 0))
        try:
            yield
        finally:
            with torch.no_grad():
                for number, weight in enumerate(weights):
                    weight.copy_(kept[number] if self._sends_adapters else weight.roll(-1, 0))

    @contextlib.contextmanager
    def publication(self, *, in_memory: bool) -> Iterator[Publication]:
        """Context in which an engine can load the policy's weights, a whole model `in_memory` or from a folder. After success
        removes older weights from the folder. Raises `StorageError` if the weights cannot be written."""
        self._num_published += 1
        sends_model = not self._sends_adapters
        path, tensors = None, None
        with contextlib.ExitStack() as stack:
            if in_memory and (sends_model or self._num_published == 1):
                shared = SharedTensors(merged_tensors(self._policy, with_adapters=sends_model))
                stack.callback(shared.close)
                tensors = shared.manifest
            if self._sends_adapters or not in_memory:
                path = self._write_folder()
            prefixes, logprobs = _prefixes(self._policy, self._probe_ids)
            if self._policy.device.type == "cuda":
                torch.cuda.empty_cache()  # an engine in another process needs memory that PyTorch keeps for later
            yield Publication(
                path=path,
                tensors=tensors,
                adapter=f"{self._name}-{self._num_published}" if self._sends_adapters else None,
                prefixes=prefixes,
                logprobs=logprobs,
                tolerance=self._tolerance,
                likely_cause=_likely_cause(self._policy, from_folder=not in_memory),
            )
        if path is not None:
            for older in path.parent.iterdir():
                if older != path:
                    shutil.rmtree(older)

    def remove_folder(self) -> None:
        """Removes the written weights. May be called twice."""
        if self._folder is not None:
            shutil.rmtree(self._folder / self._name, ignore_errors=True)
        if self._temporary is not None:
            self._temporary.cleanup()

    def _write_folder(self) -> Path:
        if self._folder is None:
            written = [each for each in self._policy.parameters() if each.requires_grad or not self._sends_adapters]
            num_bytes = 2 * sum(weight.nbytes for weight in written)  # of two versions
            place = memory_folder(num_bytes) if self._keeps_in_memory else None
            self._temporary = tempfile.TemporaryDirectory(prefix="midthought-weights-", dir=place)
            self._folder = Path(self._temporary.name).resolve()
        path = self._folder / self._name / str(self._num_published)
        with storage_errors(self._folder, "or set inference.weights_path to another folder"):
            path.parent.mkdir(parents=True, exist_ok=True)
            if self._sends_adapters:
                save_adapters(self._policy, path)
            else:
                write_model(self._policy, path)
        return path


def probe_token_ids(renderer: Renderer, max_seq_len: int) -> list[int]:
    """Returns the tokens after which an engine's log-probabilities are compared with the policy's."""
    return renderer.prompt([{"role": "user", "content": _PROBE * 4}])[: min(_MAX_PROBE_TOKENS, max_seq_len - 1)]


def _prefixes(policy: Any, token_ids: Sequence[int]) -> tuple[list[Sequence[int]], Tensor]:
    """Returns several prefixes of the text, and the policy's distributions `[P, V]` after them, from one forward pass."""
    count = min(_NUM_PREFIXES, len(token_ids))
    prefixes = [token_ids[: len(token_ids) * (number + 1) // count] for number in range(count)]
    was_training = policy.training
    policy.eval()
    with torch.no_grad():
        logits = policy(input_ids=torch.tensor([list(token_ids)], device=policy.device), use_cache=False).logits[0]
        logprobs = logits[[len(prefix) - 1 for prefix in prefixes]].float().log_softmax(-1).cpu()
    policy.train(was_training)
    return prefixes, logprobs


def has_loadable_adapters(policy: Any) -> bool:
    """Whether the adapters of the policy can be loaded by servers: LoRA or rsLoRA of one rank and scale, and nothing else.

    vLLM and SGLang refuse DoRA, `modules_to_save` and trained biases, and ignore ranks and scales of single layers.
    """
    if not hasattr(policy, "get_base_model") or len(policy.active_adapters) != 1:
        return False
    config = policy.peft_config[policy.active_adapters[0]]
    others = ("use_dora", "modules_to_save", "trainable_token_indices", "target_parameters", "lora_bias")
    patterns = ("rank_pattern", "alpha_pattern")
    return (
        config.peft_type.value == "LORA"
        and config.bias == "none"
        and not any(getattr(config, name, None) for name in (*others, *patterns))
        and not is_adapted(policy.get_input_embeddings())
        and not is_adapted(policy.get_output_embeddings())
        and not any(disabled or merged for _, disabled, _, merged, _ in adapter_state(policy))
    )


def write_model(policy: Any, path: Path, tokenizer: Any = None, *, with_adapters: bool = True) -> None:
    """Writes a model folder: the policy with its adapters merged, or with `with_adapters=False` its base model.

    The output layer of a model with tied embeddings is stored as well, so that a server
    started on the folder reloads both (vLLM's reload of tied embeddings does not change the output layer). Any Hugging Face
    tool loads the folder.
    """
    with quiet_transformers():
        save_merged(policy, path, with_adapters=with_adapters, unties_embeddings=True)
        if tokenizer is not None:
            tokenizer.save_pretrained(path)


def _likely_cause(policy: Any, *, from_folder: bool) -> str:
    if has_loadable_adapters(policy):
        return (
            "Adapters depend on their base model: the engine must have the same base model as the training, in the same "
            "data type (--dtype)"
        )
    if from_folder and policy.get_output_embeddings().weight is policy.get_input_embeddings().weight:
        return (
            "The policy's output layer is tied to its embedding, and a server that was started on such a model may reload "
            "only one of them: start it with `midthought engine serve MODEL`, which unties them, or leave base_url empty "
            "to start one automatically"
        )
    return (
        "It may use another data type than the policy (--dtype), a quantized model, or results of older weights in its "
        "prefix cache"
    )
