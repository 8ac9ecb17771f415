"""Weights for an engine to load, and the proof that it computes with them: log-probabilities after prefixes of a text.

Writes a policy as folders that model servers load: the whole model with its output layer stored separately, or its adapters
alone. Does not depend on a running engine.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from midthought.engines.shared_tensors import Manifest
from midthought.errors import EngineError
from midthought.models.gguf import quiet_transformers
from midthought.models.peft_folders import save_merged
from midthought.models.peft_weights import adapter_state, is_adapted
from midthought.tokenization import Renderer

if TYPE_CHECKING:
    from torch import Tensor

_NUM_PREFIXES = 8
TOLERANCES = {"float32": 0.01, "bfloat16": 0.1, "float16": 0.05}
"""Maximum mean difference between an engine's log-probabilities and the policy's, by data type."""
_MAX_PROBE_TOKENS = 320
_PROBE = (
    "The tide clock is in the hall of the harbour house. It has one hand, which goes round once between two high "
    "tides, so it agrees with no other clock in the town. Who keeps it? Think first, then answer. The keeper's daughter "
    "wound it for forty-one years; on the last evening she wrote down 7 numbers: 3, 1, 4, 1, 5, 9 and 2. "
)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class WeightCheck:
    """Compares an engine's log-probabilities with the policy's.

    The engine samples one token after each of several prefixes of a text. Sampling works as in rollouts, so a prefix cache
    with results of older weights is detected, too.
    """

    token_ids: Sequence[int]
    lengths: Sequence[int]
    """Lengths of the P prefixes, ascending."""
    logprobs: Tensor  # [P, V], the policy's distribution after each prefix
    tolerance: float
    """Maximum mean difference, in nats."""

    def check(self, name: str, sampled: Sequence[tuple[int, float]], likely_cause: str) -> None:
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
                f"policy's by {difference:.3g} on average, {self.tolerance:g} are allowed. {likely_cause}"
            )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Publication:
    """Weights that an engine must load: a whole model from a folder or from shared memory, then the adapter."""

    path: Path | None = None
    """Folder of the adapter, or else of a whole model. Servers see it under the same path."""
    tensors: Manifest | None = None
    """A whole model in shared memory; with an adapter, its base model."""
    adapter: str | None = None
    """Name of the adapter in the folder."""
    proof: WeightCheck
    likely_cause: str
    """Likely reason if an engine loads the weights and still computes something else."""


def probe_token_ids(renderer: Renderer) -> list[int]:
    """Returns the tokens after which an engine's log-probabilities are compared with the policy's."""
    return renderer.prompt([{"role": "user", "content": _PROBE * 4}])[:_MAX_PROBE_TOKENS]


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


def is_tied(policy: Any) -> bool:
    """Whether its output layer is its embedding."""
    return policy.get_output_embeddings().weight is policy.get_input_embeddings().weight


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
