"""Memory of a device by phase, in bytes: upper bounds from a model's shape and a run's settings, without loading the model.

Counted are the tensors of `learning` and of the engine; `benchmarks/plan.py` compares them with measurements of a learner.
Does not depend on the choice of settings.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

from midthought.config import RecipeConfig, settled
from midthought.errors import SettingsError
from midthought.models.memory import KEY_SHARE, MAX_COPIED_BYTES, MERGED_SHARE, MIN_SAVED
from midthought.plan.hardware import GIB, Hardware
from midthought.plan.shape import Shape

MIB = 2**20
WIDTHS = {"float32": 4, "bfloat16": 2}
"""Bytes of a number."""
FLOAT = WIDTHS["float32"]
HEADROOM = 0.1
"""Share of the memory that is not planned: CUDA context (about 1 GiB), fragmentation."""
BYTES_OF_MOMENTS = {"adamw": 8.0, "adamw_8bit": 2 + 8 / 256}
"""Per number: two moments in float32, or in 8 bits with two float32 scales per 256 numbers."""
BYTES_OF_LOGIT = {"whole": 22, "in blocks": 14}
"""Per logit, if all are computed at once: its gradient and the terms of its logarithm and its entropy in float32, and the product
in half precision. In blocks (`training.logits_mib`): its gradient, and three products in half precision. `learning.logprobs`."""
UNFUSED = 1.15
"""Safety factor of fused layers: a kernel that fails on this GPU is not used, and its layers keep more."""
MERGE_BYTES = 28
"""Temporary bytes per number of a weight while adapters are merged into it: float32 copies and the parts of stochastic rounding
(`peft_weights.effective_tensors`)."""
BUCKETS = 2 * 128 * MIB
"""Buffers for sending new weights to an engine: one bucket for the sender and one for the receiver."""
LOCAL_SHARE = 0.5
"""Largest share of the memory for the local engine's KV cache."""
SMALLEST_SHARE, LARGEST_SHARE = 0.05, 0.9
"""Of a GPU's memory that vLLM gets; the largest is its own default."""
ENOUGH_SEQUENCES = 16
"""An engine with fewer concurrent sequences, while more are waiting, reads its weights for too few tokens."""


class Learned(NamedTuple):
    """What policy and critic hold all the time, in bytes."""

    weights: int
    masters: int
    moments: int
    gradients: int


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Memory of a device while a model of `shape` is trained. Settings of a run have their names of `model`, `training` and
    `inference`, without `auto`."""

    shape: Shape
    device: Literal["gpu", "cpu"] = "gpu"
    """On a CPU, `local` keeps its cache while the learner works."""
    memory_gib: float = 80.0
    """Memory of the device."""
    dtype: str = "bfloat16"
    critic: Literal["none", "separate", "shared"] = "none"
    reference: bool = False
    """Whether there is a frozen reference. With LoRA it is the policy without adapters and takes no memory."""
    teacher_shape: Shape | None = None
    """Of the frozen teacher, if there is one."""
    float32_head: bool = False
    lora_rank: int = 0
    merge_adapters: bool = True
    optimizer: str
    offload: Literal["none", "reference", "optimizer"]
    gradient_checkpointing: bool | Literal["offload"]
    logits_mib: float
    micro_batch_tokens: int
    batch_size: int
    backend: Literal["local", "vllm", "apart"] = "local"
    """`local` samples with the learner's weights; `vllm` in this process has a copy, and releases its memory while the learner
    works; an engine apart has memory of its own, which is not planned."""
    gpu_memory_utilization: float | Literal["auto"] = "auto"
    """The share of vLLM; `auto`: what is free while it is awake."""
    max_num_seqs: int = 256
    prompt_tokens: int = 1024
    """Of the longest prompt; the default is an assumption."""
    max_tokens: int = 2048
    num_sharing: int = 1
    """Samples of a prompt that share it in a pass (`learning.micro_batching`); 1: no prompt is shared."""

    @classmethod
    def of(cls, shape: Shape, config: RecipeConfig, hardware: Hardware, **fixed: Any) -> Memory:
        """Returns the memory of a run; `fixed` replaces what does not follow from its settings. Raises `SettingsError`."""
        model, training, inference = config.model, config.training, config.inference
        in_process = hardware.kind == "gpu" and inference.backend == "vllm" and inference.in_process
        is_apart = config.ray.use_ray or (inference.backend != "local" and not in_process)
        named = {**vars(model), **vars(training), **vars(inference)}
        values = {field.name: named[field.name] for field in fields(cls) if field.name in named} | {
            "device": hardware.kind,
            "memory_gib": hardware.memory_gib,
            "dtype": model.weights_dtype,
            "critic": model.critic_kind if training.has_critic else "none",
            "reference": training.needs_reference,
            "lora_rank": model.adapter_rank,
            "gradient_checkpointing": settled(training.gradient_checkpointing, False),
            "logits_mib": training.max_logits_mib,
            "micro_batch_tokens": training.max_micro_batch_tokens,
            "backend": "apart" if is_apart else "vllm" if in_process else "local",
            "max_num_seqs": settled(inference.max_num_seqs),
            "num_sharing": 1 if shape.has_window else shared_samples(config),
        }
        return cls(shape=shape, **{**values, **fixed})

    def __post_init__(self) -> None:
        if self.dtype not in WIDTHS:
            raise SettingsError(f"dtype={self.dtype!r} is not counted here; {' and '.join(WIDTHS)} are")

    @property
    def width(self) -> int:
        """Bytes of a number."""
        return WIDTHS[self.dtype]

    @property
    def tokens_of_episode(self) -> int:
        return self.prompt_tokens + self.max_tokens

    @property
    def memory_bytes(self) -> int:
        return round(self.memory_gib * GIB)

    # -- prompts that a group shares -----------------------------------------------------------------------------------

    def tokens_together(self, num_samples: int) -> int:
        """Tokens of a prompt with so many samples, as `learning.micro_batching` counts them: the prompt once, and for each sample
        its own, the prompt's last token, and 1/8 of the others for a copy of their keys and values."""
        shared = self.prompt_tokens - 1
        copied = -(-shared // KEY_SHARE) if num_samples > 1 else 0
        return shared + num_samples * (self.max_tokens + 1 + copied)

    def pays(self, num_samples: int) -> bool:
        """Whether it saves enough that as many samples share their prompt."""
        saved = (num_samples - 1) * (self.prompt_tokens - 1)
        return num_samples > 1 and saved >= MIN_SAVED * num_samples * self.tokens_of_episode

    @property
    def samples_together(self) -> int:
        """The most samples that share their prompt in a pass."""
        sizes = range(self.num_sharing, 1, -1)
        return next((n for n in sizes if self.tokens_together(n) <= self.micro_batch_tokens and self.pays(n)), 1)

    @property
    def tokens_of_group(self) -> int:
        """Tokens that are computed for a group; its prompt is computed once for `samples_together`."""
        num_prompts = -(-self.num_sharing // self.samples_together)
        return num_prompts * (self.prompt_tokens - 1) + self.num_sharing * (self.max_tokens + 1)

    # -- the learner -------------------------------------------------------------------------------------------------

    @property
    def adapter_parameters(self) -> int:
        """Parameters of the adapters; 0 without adapters."""
        return self.shape.adapter_parameters(self.lora_rank)

    @property
    def trained_parameters(self) -> int:
        """Weights that are trained: the policy's without adapters, and a separate critic's. A value head alone is not counted."""
        of_critic = self.shape.trunk_parameters if self.critic == "separate" else 0
        return of_critic + (0 if self.lora_rank else self.shape.parameters)

    @cached_property
    def learned(self) -> Learned:
        """Policy and critic with the optimizer's states, wherever these are."""
        trained, adapters = self.trained_parameters, self.adapter_parameters
        frozen = self.shape.parameters if self.lora_rank else 0
        return Learned(
            weights=self.width * (frozen + trained) + FLOAT * adapters,
            masters=FLOAT * trained if self.width < FLOAT else 0,
            moments=math.ceil(BYTES_OF_MOMENTS[self.optimizer] * (trained + adapters)),
            gradients=FLOAT * (trained + adapters),
        )

    @property
    def held(self) -> int:
        """Policy and critic on the device. Gradients go to an optimizer in main memory after each backward pass."""
        return self.learned.weights if self.offload == "optimizer" and self.device == "gpu" else sum(self.learned)

    @property
    def frozen(self) -> tuple[int, int]:
        """The reference, a frozen copy (with LoRA the policy without adapters is used instead), and the teacher."""
        copied = self.shape.parameters if self.reference and not self.lora_rank else 0
        return self.width * copied, self.width * (self.teacher_shape.parameters if self.teacher_shape else 0)

    @property
    def states(self) -> int:
        """What the learner holds between its steps."""
        is_apart = self.offload != "none" and self.device == "gpu"
        return self.held + (0 if is_apart else sum(self.frozen))

    @property
    def layer(self) -> int:
        """Bytes per token that a layer keeps for its backward pass.

        With H, Q, K, I the widths of the model, of its queries, of its keys and of its MLP, and b the bytes of a number, these
        are the inputs of norms and linear maps, queries, keys, values, what the attention returns, and the MLP's gate, its SiLU,
        up and their product: b (4 H + 2 Q + 2 K + 4 I) if all is fused (`learning.fused`), times `UNFUSED`. Without fused kernels
        norms keep float32 copies, and packing repeats keys and values: b (6 H + 5 Q + 4 I) with b = 4. Norms of queries and keys
        add b (Q + K) and 2 b (Q + K), adapters of rank r 28 r; heads and norms have float32 numbers of their own. Korthikanti et
        al. 2022 (arXiv 2205.05198), section 4, counts other layers in the same way.
        """
        shape = self.shape
        hidden, query, key, inner = shape.hidden_size, shape.query_size, shape.key_size, shape.intermediate_size
        normed = query + key if shape.qk_norm else 0
        num_bytes: float = FLOAT * (6 * hidden + 5 * query + 4 * inner + 2 * normed)
        if self.device == "gpu" and self.width < FLOAT:
            num_bytes = UNFUSED * self.width * (4 * hidden + 2 * query + 2 * key + 4 * inner + normed)
        return math.ceil(num_bytes) + FLOAT * (7 * self.lora_rank + 2 * shape.num_heads + shape.num_kv_heads + 2)

    @cached_property
    def learner(self) -> int:
        """The learner's peak: in an update, or while it scores episodes with a teacher, or with a reference from main memory.

        A backward pass holds the activations of all layers, or their inputs and one recomputed layer; those of a separate critic
        are as many. Then come the logits of a block, or the gradients inside of a layer, and the gradient of the output layer. At
        its end there are no activations, but gradients that are not in float32 yet, or that leave the device.
        """
        shape, width, tokens = self.shape, self.width, max(self.micro_batch_tokens, self.tokens_of_episode)
        is_offloaded = self.gradient_checkpointing == "offload" and self.device == "gpu"
        inputs, layer = tokens * width * shape.hidden_size, tokens * self.layer
        recomputed = layer + (1 if is_offloaded else shape.num_layers) * inputs
        kept = recomputed if self.gradient_checkpointing else shape.num_layers * layer
        ends = 4 * inputs + width * self.adapter_parameters  # before and after the layers; adapters in half precision
        samples = self.samples_together
        num_policy_tokens = tokens * samples * self.max_tokens // self.tokens_together(samples)
        num_logits = max(1, num_policy_tokens) * shape.vocab_size
        at_once = max(shape.vocab_size, int(self.logits_mib * MIB) // FLOAT)
        way = "whole" if num_logits <= at_once else "in blocks"
        logits = BYTES_OF_LOGIT[way] * min(num_logits, at_once)
        scorers = shape, self.teacher_shape or shape
        if self.float32_head and width < FLOAT:
            logits += FLOAT * max(each.embedding_parameters for each in scorers)
        in_layer = 2 * tokens * (width * shape.intermediate_size + FLOAT * shape.hidden_size)
        backward = (2 if self.critic == "separate" else 1) * (kept + ends) + max(logits, in_layer)
        leaves_whole = self.held < sum(self.learned) and (self.lora_rank or width == FLOAT)
        fresh = width * self.trained_parameters if width < FLOAT else 0
        end = self.learned.gradients if leaves_whole else fresh
        of_head = 0 if self.lora_rank else (FLOAT + width) * shape.embedding_parameters
        scored = max(self.states, self.held + max(self.frozen))
        per_token = max(replace(self, shape=each).layer + 4 * width * each.hidden_size for each in scorers)
        scoring = scored + tokens * per_token + width * self.adapter_parameters + logits
        return max(self.states + of_head + max(backward, end), scoring)

    # -- the engine --------------------------------------------------------------------------------------------------

    @property
    def engine_weights(self) -> int:
        """vLLM's copy of the weights."""
        return self.width * self.shape.parameters if self.backend == "vllm" else 0

    @property
    def share(self) -> float:
        """vLLM's share of the memory; `auto`: what is free while vLLM is awake, rounded down to hundredths."""
        if self.gpu_memory_utilization != "auto":
            return self.gpu_memory_utilization
        free = self.limit - self.states - BUCKETS
        return min(LARGEST_SHARE, max(SMALLEST_SHARE, int(100 * free / self.memory_bytes) / 100))

    @property
    def kv_room(self) -> int:
        """Memory for keys and values; negative if the engine's weights alone do not fit."""
        share = self.share if self.backend == "vllm" else LOCAL_SHARE
        return round(share * self.memory_bytes) - self.engine_weights

    @property
    def kv_bytes_of_sequence(self) -> int:
        """Bytes of the keys and values of a whole episode."""
        return 2 * self.width * self.shape.num_layers * self.shape.key_size * self.tokens_of_episode

    @property
    def num_sequences(self) -> int:
        """Concurrent sequences: the minimum of the limit, the available ones, and those that fit at full length."""
        return max(0, min(self.max_num_seqs, self.batch_size, self.kv_room // self.kv_bytes_of_sequence))

    @property
    def kv_cache(self) -> int:
        """KV cache: vLLM uses all of its share; `local` uses what its sequences need."""
        return max(0, self.kv_room) if self.backend != "local" else self.num_sequences * self.kv_bytes_of_sequence

    @property
    def copied_weights(self) -> int:
        """Copies that `local` samples from: all layers with their adapters merged in, or a small model's projections, queries
        joined with keys and values, gate with up; 0 if it has no memory for them."""
        shape = self.shape
        if self.backend != "local":
            return 0
        if self.lora_rank:
            copies = self.width * shape.num_layers * shape.layer_parameters
            limit = max(MAX_COPIED_BYTES, MERGED_SHARE * (self.memory_bytes - self.held))
            return copies if self.merge_adapters and copies <= limit else 0
        joined = shape.query_size + 2 * shape.key_size + 2 * shape.intermediate_size
        copies = self.width * shape.num_layers * shape.hidden_size * joined
        return copies if copies <= MAX_COPIED_BYTES else 0

    # -- both --------------------------------------------------------------------------------------------------------

    @cached_property
    def phases(self) -> dict[str, int]:
        """Memory of every phase. While the learner works, vLLM has released everything, and `local` its cache on a GPU. While an
        engine samples, the learner still has its gradients."""
        if self.backend == "apart":
            return {"learning": self.learner}
        stays = self.copied_weights + (self.kv_cache if self.device == "cpu" else 0)
        merges = MERGE_BYTES * self.shape.largest_map if self.copied_weights and self.lora_rank else 0
        sampling = self.states + self.engine_weights + self.copied_weights + merges + self.kv_cache
        buckets = BUCKETS if self.backend == "vllm" else 0
        return {"learning": self.learner + stays, "sampling": sampling + buckets}

    @property
    def needed(self) -> int:
        """Memory of the largest phase."""
        return max(self.phases.values())

    @property
    def limit(self) -> int:
        """Memory that a plan may use."""
        return round((1.0 - HEADROOM) * self.memory_bytes)

    @property
    def lack(self) -> tuple[int, int]:
        """Sequences that vLLM's cache lacks for enough of them, and the bytes beyond the limit, over all phases."""
        enough = min(ENOUGH_SEQUENCES, self.max_num_seqs, self.batch_size) if self.backend == "vllm" else 0
        excess = sum(max(0, num_bytes - self.limit) for num_bytes in self.phases.values())
        return max(0, enough - self.num_sequences), excess

    @property
    def fits(self) -> bool:
        """Whether the run fits, in the memory and in vLLM's cache."""
        return self.lack == (0, 0)


def shared_samples(config: RecipeConfig) -> int:
    """Returns how many samples share a prompt by the settings; 1: each sample computes it."""
    is_shared = config.training.packing == "shared" and not config.inference.deterministic
    return config.training.episodes_per_task if is_shared else 1
