"""Memory of a device by part, in bytes: the learner's at its peak, and the engine's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from midthought.models.memory import MAX_COPIED_BYTES, MERGED_SHARE
from midthought.plan.activations import FLOAT, Activations, Head
from midthought.plan.settings import PlanSettings
from midthought.plan.shape import Shape

MIB = 2**20
HEADROOM = 0.1
"""Share of the memory that is not planned: CUDA context (about 1 GiB), fragmentation."""
BLOCK_OF_8_BITS = 256
"""Numbers of an 8-bit moment that share a float32 scale. (Tensors below 4096 numbers keep float32 moments: negligible.)"""
MERGE_BYTES = {4: 8, 2: 28}
"""Temporary bytes per number of a weight, by its width, while adapters are merged into it: float32 copies, and in half precision
the parts of stochastic rounding (`peft_weights.effective_tensors`)."""
BUCKETS = 2 * 128 * MIB
"""Buffers for sending new weights to an engine: one bucket for the sender and one for the receiver."""
LOCAL_SHARE = 0.5
"""Largest share of the memory for the local engine's KV cache."""
ENOUGH_SEQUENCES = 16
"""An engine with fewer concurrent sequences, while more are waiting, reads its weights for too few tokens."""


class Learning(NamedTuple):
    """What policy and critic hold all the time, in bytes."""

    weights: int
    masters: int = 0
    gradients: int = 0
    moments: int = 0


@dataclass(frozen=True)
class Memory:
    """Memory of a device by part, for `settings` and a model of `shape`."""

    shape: Shape
    settings: PlanSettings

    def changed(self, changes: Mapping[str, Any]) -> Memory:
        """Returns the plan with these settings."""
        return Memory(self.shape, replace(self.settings, **changes))

    @property
    def width(self) -> int:
        return self.settings.width

    # -- the learner -------------------------------------------------------------------------------------------------

    @property
    def adapter_parameters(self) -> int:
        """Parameters of the adapters; 0 without adapters."""
        return self.shape.adapter_parameters(self.settings.lora_rank)

    @cached_property
    def whole(self) -> Learning:
        """Policy and critic, wherever the optimizer's states are. A separate critic is a trunk that is fully trained even with
        LoRA; a value head alone is not counted."""
        settings, shape, adapters = self.settings, self.shape, self.adapter_parameters
        frozen, trained = (shape.parameters, 0) if settings.lora_rank else (0, shape.parameters)
        trained += shape.trunk_parameters if settings.critic == "separate" else 0
        learning = trained + adapters
        scales = 2 * FLOAT * -(-learning // BLOCK_OF_8_BITS)
        return Learning(
            weights=self.width * (frozen + trained) + FLOAT * adapters,
            masters=FLOAT * trained if self.width < FLOAT else 0,
            gradients=FLOAT * learning,
            moments=2 * learning + scales if settings.optimizer == "adamw_8bit" else 2 * FLOAT * learning,
        )

    @property
    def held(self) -> Learning:
        """Policy and critic on the device. With an optimizer in main memory, gradients go there after each backward pass."""
        return Learning(self.whole.weights) if self._is_optimizer_apart else self.whole

    @property
    def _is_optimizer_apart(self) -> bool:
        return self.settings.offload_optimizer and self.settings.device == "gpu"

    @property
    def reference(self) -> int:
        """A frozen copy; with LoRA the policy without adapters is used instead."""
        has_one = self.settings.reference and not self.settings.lora_rank
        return self.width * self.shape.parameters if has_one else 0

    @property
    def states(self) -> dict[str, int]:
        """What the learner holds between its steps, by part."""
        return {
            "weights": self.held.weights,
            "float32 masters": self.held.masters,
            "Adam moments": self.held.moments,
            "reference": 0 if self.settings.offload_reference else self.reference,
            "gradients": self.held.gradients,
        }

    @cached_property
    def moments(self) -> dict[str, dict[str, int]]:
        """The learner's memory by part at each possible peak, by the name of the operation.

        Gradients are kept during a backward pass if an optimizer step has several micro-batches. The critic's forward pass runs
        after the policy's, so its backward pass runs first and frees its activations.
        """
        settings, shape, width, after = self.settings, self.shape, self.width, self.states
        head, policy = Head(shape, settings), Activations(shape, settings, settings.lora_rank)
        accumulates = settings.mini_batch_size * settings.tokens_of_episode > settings.micro_batch_tokens
        during = {**after, "gradients": after["gradients"] if accumulates else 0}
        tokens = settings.tokens_of_pass
        constant = policy.constant + head.num_tokens * width * shape.hidden_size
        kept, layers = tokens * policy.kept + constant, tokens * policy.worked_on + constant
        scored = tokens * (Activations(shape, settings, 1).layer + width * shape.hidden_size)
        embedding = 0 if settings.lora_rank else width * shape.embedding_parameters
        tied = embedding if shape.is_tied else 0
        copy = embedding if width < FLOAT else 0
        of_head = FLOAT * embedding // width + (max(0, copy - head.backward) if settings.is_fused else copy)
        fresh = self._fresh_gradients or (tied if width == FLOAT and accumulates else 0)
        fresh += FLOAT * embedding // width
        found = {
            "output layer's backward pass": {
                "activations": kept,
                "logits": head.backward,
                "temporary gradient": of_head,
            },
            "layers' backward pass": {"activations": layers, "temporary gradient": tied},
            "end of the backward pass": {"gradients": after["gradients"], "temporary gradient": fresh},
            "scoring": {
                "gradients": after["gradients"],
                "reference": self.reference,
                "activations": scored,
                "logits": 2 * head.block + head.product,
            },
        }
        if settings.critic == "separate":
            of_critic = tokens * Activations(shape, settings, 0).worked_on
            logits = 3 * head.block if head.num_blocks == 1 else 0  # their logarithm and the terms of the entropy
            found["critic's backward pass"] = {"activations": kept + of_critic, "logits": logits}
        return {name: {**during, **parts} for name, parts in found.items()}

    @property
    def _fresh_gradients(self) -> int:
        """Gradients before they are converted to float32, or leave the device."""
        is_half = self.width < FLOAT
        if self._is_optimizer_apart and (self.settings.lora_rank or not is_half):
            return self.whole.gradients
        return self.whole.masters * self.width // FLOAT

    @property
    def learner(self) -> dict[str, int]:
        """The learner's memory by part, at its peak."""
        return max(self.moments.values(), key=lambda parts: sum(parts.values()))

    # -- the engine --------------------------------------------------------------------------------------------------

    @property
    def engine_weights(self) -> int:
        """vLLM's copy of the weights."""
        return self.width * self.shape.parameters if self.settings.backend == "vllm" else 0

    @property
    def kv_bytes_of_sequence(self) -> int:
        """Bytes of the keys and values of a whole episode."""
        return 2 * self.width * self.shape.num_layers * self.shape.key_size * self.settings.tokens_of_episode

    @property
    def kv_room(self) -> int:
        """Memory for keys and values; negative if the engine's weights alone do not fit."""
        share = self.settings.gpu_memory_utilization if self.settings.backend == "vllm" else LOCAL_SHARE
        return round(share * self.settings.memory_bytes) - self.engine_weights

    @property
    def num_sequences(self) -> int:
        """Concurrent sequences: the minimum of the limit, the available ones, and those that fit at full length."""
        room = self.kv_room // self.kv_bytes_of_sequence
        return max(0, min(self.settings.max_num_seqs, self.settings.batch_size, room))

    @property
    def kv_cache(self) -> int:
        """KV cache: vLLM uses all of its share; `local` uses what its sequences need."""
        is_local = self.settings.backend == "local"
        return self.num_sequences * self.kv_bytes_of_sequence if is_local else max(0, self.kv_room)

    @property
    def copied_weights(self) -> int:
        """Copies that `local` samples from: all layers with their adapters merged in, or a small model's projections, queries
        joined with keys and values, gate with up; 0 if it has no memory for them."""
        settings, shape, width = self.settings, self.shape, self.width
        if settings.backend != "local":
            return 0
        if settings.lora_rank:
            copies = width * shape.all_layers_parameters
            limit = max(MAX_COPIED_BYTES, MERGED_SHARE * (settings.memory_bytes - sum(self.held)))
            return copies if settings.merge_adapters and copies <= limit else 0
        joined = shape.query_size + 2 * shape.key_size + 2 * shape.intermediate_size
        copies = width * shape.num_layers * shape.hidden_size * joined
        return copies if copies <= MAX_COPIED_BYTES else 0

    @property
    def engine(self) -> dict[str, int]:
        """The engine's memory by part."""
        merges = self.copied_weights and self.settings.lora_rank
        return {
            "engine's weights": self.engine_weights,
            "copied weights": self.copied_weights,
            "merging one layer": MERGE_BYTES[self.width] * self.shape.largest_map if merges else 0,
            "engine's KV cache": self.kv_cache,
            "weight-sync buckets": BUCKETS if self.settings.backend == "vllm" else 0,
        }

    # -- both --------------------------------------------------------------------------------------------------------

    @cached_property
    def phases(self) -> dict[str, dict[str, int]]:
        """Memory by part, for every phase. While the learner works, vLLM has released everything, and `local` its cache on a
        GPU. While an engine samples, the learner still has its gradients."""
        backend, engine = self.settings.backend, self.engine
        if backend == "apart":
            return {"learning": self.learner}
        stays = {**engine, "merging one layer": 0} if backend == "local" else {}
        if self.settings.device == "gpu":
            stays["engine's KV cache"] = 0
        return {"learning": {**self.learner, **stays}, "sampling": {**self.states, **engine}}

    @property
    def totals(self) -> dict[str, int]:
        """Total memory of every phase."""
        return {name: sum(parts.values()) for name, parts in self.phases.items()}

    @property
    def needed(self) -> int:
        """Memory of the largest phase."""
        return max(self.totals.values())

    @property
    def limit(self) -> int:
        """Memory that a plan may use."""
        return round((1.0 - HEADROOM) * self.settings.memory_bytes)

    @property
    def lack(self) -> tuple[bool, int]:
        """Whether vLLM lacks a cache for enough sequences, and the bytes beyond the limit, over all phases."""
        settings = self.settings
        enough = min(ENOUGH_SEQUENCES, settings.max_num_seqs, settings.batch_size)
        excess = sum(max(0, total - self.limit) for total in self.totals.values())
        return settings.backend == "vllm" and self.num_sequences < enough, excess

    @property
    def fits(self) -> bool:
        """Whether the run fits, in the memory and in vLLM's cache."""
        return self.lack == (False, 0)
