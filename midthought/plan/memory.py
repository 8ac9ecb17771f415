"""Memory of a GPU by part, in bytes: the learner's at its peak, and the engine's.

Sharding as in ZeRO stage 3 and FSDP: weights, gradients and optimizer states are divided by the number of shards
(Rajbhandari et al. 2020, arXiv 1910.02054, section 5.3), and the weights of one layer at a time are gathered for
computing, with the next layer's prefetched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from functools import cached_property
from typing import Any

from midthought.models.memory import MAX_COPIED_BYTES, MERGED_SHARE
from midthought.plan.activations import FLOAT, Activations, Head
from midthought.plan.settings import PlanSettings
from midthought.plan.shape import Shape

WIDTHS = {"float32": 4, "bfloat16": 2}
MIB = 2**20
BLOCK_OF_8_BITS = 256
"""Numbers of an 8-bit moment that share a float32 scale. (Tensors below 4096 numbers keep float32 moments: negligible.)"""
GATHERED_LAYERS = 2
MERGE_BYTES = {4: 8, 2: 28}
"""Temporary bytes per number of a weight, by its width, while adapters are merged into it: float32 copies, and in half precision
the parts of stochastic rounding (`peft_weights.effective_tensors`)."""
BUCKETS = 2 * 128 * MIB
"""Buffers for sending new weights to an engine: one bucket for the sender and one for the receiver."""
ENOUGH_SEQUENCES = 16
"""An engine with fewer concurrent sequences, while more are waiting, reads its weights for too few tokens."""


@dataclass(frozen=True, slots=True)
class Learning:
    """What a trained or frozen model holds on one GPU all the time, in bytes."""

    weights: int = 0
    masters: int = 0
    gradients: int = 0
    moments: int = 0

    @property
    def total(self) -> int:
        return sum(astuple(self))

    def __add__(self, other: Learning) -> Learning:
        return Learning(*map(sum, zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True)
class Memory:
    """Memory of a GPU by part, for `settings` and a model of `shape`."""

    shape: Shape
    settings: PlanSettings

    def changed(self, changes: Mapping[str, Any]) -> Memory:
        """Returns the plan with these arguments."""
        return Memory(self.shape, self.settings.model_copy(update=changes))

    @property
    def width(self) -> int:
        return WIDTHS[self.settings.dtype]

    @property
    def policy(self) -> Learning:
        if not self.settings.lora_rank:
            return self._learning(self.shape.parameters)
        adapters = self.adapter_parameters
        frozen = self.shared(self.width * self.shape.parameters)
        grown = self.shared(FLOAT * adapters)
        return Learning(weights=frozen + grown, gradients=grown, moments=self._moments(FLOAT, adapters))

    @property
    def adapter_parameters(self) -> int:
        """Parameters of the adapters; 0 without adapters."""
        return self.shape.adapter_parameters(self.settings.lora_rank)

    @property
    def reference(self) -> int:
        """A frozen copy; with LoRA the policy without adapters is used instead."""
        has_one = self.settings.reference and not self.settings.lora_rank
        return self.shared(self.width * self.shape.parameters) if has_one else 0

    @cached_property
    def whole(self) -> Learning:
        """Policy and critic, wherever the optimizer's states are. A separate critic is a trunk that is fully trained even with
        LoRA. A value head alone is not counted."""
        separate = self.settings.critic == "separate"
        return self.policy + (self._learning(self.shape.trunk_parameters) if separate else Learning())

    @property
    def held(self) -> Learning:
        """Policy and critic on the GPU. With an optimizer in main memory, gradients go there after each backward pass."""
        return Learning(weights=self.whole.weights) if self._is_optimizer_apart else self.whole

    @property
    def _is_optimizer_apart(self) -> bool:
        return self.settings.offload_optimizer and self.settings.device == "gpu"

    @property
    def in_main_memory(self) -> int:
        """What the optimizer has in main memory instead of the GPU's: copies of the trained weights, their gradients, moments."""
        whole = self.whole
        return (whole.masters or whole.gradients) + whole.gradients + whole.moments if self._is_optimizer_apart else 0

    @property
    def gathered(self) -> int:
        """Gathered weights while they compute, if weights are sharded: whole layers and all weights outside the layers."""
        if self.settings.num_shards == 1:
            return 0
        shape = self.shape
        layers = min(GATHERED_LAYERS, shape.num_layers) * shape.layer_parameters
        return self.width * (layers + shape.parameters - shape.all_layers_parameters)

    @cached_property
    def head(self) -> Head:
        settings = self.settings
        return Head(
            shape=self.shape,
            width=self.width,
            num_tokens=max(1, settings.tokens_of_pass * settings.response_tokens // settings.tokens_of_episode),
            logits_mib=settings.logits_mib,
            learns=not settings.lora_rank,
            is_fused=settings.is_fused,
        )

    @cached_property
    def moments(self) -> dict[str, dict[str, int]]:
        """The learner's memory by part at each possible peak, by the name of the operation.

        The critic's forward pass runs after the policy's, so its backward pass runs first and frees its activations.
        """
        held, settings, head, width = self.held, self.settings, self.head, self.width
        stays = {"weights": held.weights, "float32 masters": held.masters, "Adam moments": held.moments}
        stays |= {"gathered weights": self.gathered, "reference": 0 if settings.offload_reference else self.reference}
        during = {**stays, "gradients": held.gradients if self.accumulates else 0}
        after = {**stays, "gradients": held.gradients}
        tokens, recomputed = settings.tokens_of_pass, settings.gradient_checkpointing
        embedding = 0 if settings.lora_rank else width * self.shape.embedding_parameters
        largest = max(embedding, self.shared(embedding * FLOAT // width)) if self._has_masters else embedding
        policy, scoring = self._activations(settings.lora_rank), self._activations(1)
        constant = policy.constant(recomputed=recomputed) + head.hidden
        kept = tokens * policy.kept(recomputed=recomputed) + constant
        layers = tokens * policy.worked_on(recomputed=recomputed) + constant
        found = {
            "output layer's backward pass": {
                **during,
                "activations": kept,
                "logits": head.backward,
                "temporary gradient": head.weight,
            },
            "layers' backward pass": {
                **during,
                "activations": layers,
                "temporary gradient": embedding if self.shape.is_tied else 0,
            },
            "end of the backward pass": {**after, "temporary gradient": self._fresh_gradients + largest},
            "scoring": {
                **after,
                "reference": self.reference,
                "activations": tokens * (scoring.layer + width * self.shape.hidden_size),
                "logits": head.forward,
            },
        }
        if settings.critic == "separate":
            of_critic = tokens * self._activations(0).worked_on(recomputed=recomputed)
            both = {**during, "activations": kept + of_critic, "logits": head.kept}
            found["critic's backward pass"] = both
        return found

    @property
    def accumulates(self) -> bool:
        """Whether an optimizer step has several micro-batches, so that gradients are kept while the next one computes."""
        settings = self.settings
        num_tokens = settings.mini_batch_size * settings.tokens_of_episode
        return num_tokens > settings.micro_batch_tokens * settings.learning_gpus

    @property
    def _fresh_gradients(self) -> int:
        """Gradients before they are converted to float32 or leave the GPU; of a tied output layer if gradients accumulate."""
        if self._is_optimizer_apart:
            is_half = self._has_masters and not self.settings.lora_rank
            return self.whole.weights if is_half else self.whole.gradients
        if self.settings.lora_rank:
            of_critic = self.shared(self.width * self.shape.trunk_parameters)
            return of_critic if self._has_masters and self.settings.critic == "separate" else 0
        if self._has_masters:
            return self.held.weights
        tied = self.width * self.shape.embedding_parameters if self.shape.is_tied and self.accumulates else 0
        return tied if self.settings.num_shards == 1 else 0

    @property
    def worst_moment(self) -> str:
        return max(self.moments, key=lambda name: sum(self.moments[name].values()))

    @property
    def learner(self) -> dict[str, int]:
        """The learner's memory by part, at its peak."""
        return self.moments[self.worst_moment]

    @property
    def engine_weights(self) -> int:
        """Weights on a GPU of the engine."""
        has_copy = self.settings.engine_has_copy
        return self.width * self.shape.parameters // self.settings.tensor_parallel if has_copy else 0

    @property
    def kv_bytes_of_sequence(self) -> float:
        """Bytes of the keys and values of a whole episode on a GPU of the engine."""
        per_token = 2 * self.width * self.shape.num_layers * self.shape.key_size
        return per_token * self.settings.tokens_of_episode / self.settings.tensor_parallel

    @property
    def kv_room(self) -> int:
        """Memory for keys and values on a GPU of the engine; negative if its weights alone do not fit."""
        share = self.settings.gpu_memory_utilization
        share = min(share, 0.5) if self.settings.engine == "local" else share
        return round(share * self.settings.memory_bytes) - self.engine_weights

    @property
    def num_sequences(self) -> int:
        """Concurrent sequences of one engine: the minimum of the limit, the available ones, and those that fit at full length."""
        room = int(self.kv_room // self.kv_bytes_of_sequence)
        return max(0, min(self.settings.max_num_seqs, self.settings.num_episodes_of_engine, room))

    @property
    def kv_cache(self) -> int:
        """KV cache: vLLM and SGLang use all of their share; `local` uses what its sequences need."""
        if self.settings.engine == "local":
            return round(self.num_sequences * self.kv_bytes_of_sequence)
        return max(0, self.kv_room)

    @property
    def joined_weights(self) -> int:
        """Copies of a small model's projections, without adapters, that `local` joins: queries with keys and values, gate with
        up."""
        shape = self.shape
        if self.settings.engine != "local" or self.settings.lora_rank:
            return 0
        joined = shape.query_size + 2 * shape.key_size + 2 * shape.intermediate_size
        copies = self.width * shape.num_layers * shape.hidden_size * joined
        return copies if copies <= MAX_COPIED_BYTES else 0

    @property
    def merged_adapters(self) -> int:
        """Merged copies of all layers that `local` samples from; 0 if it has no memory for them."""
        settings = self.settings
        if settings.engine != "local" or not settings.lora_rank or not settings.merge_adapters:
            return 0
        copies = self.width * self.shape.all_layers_parameters
        held = 0 if settings.is_split else self.held.total
        free = settings.memory_bytes - held - self.engine_weights
        return copies if copies <= max(MAX_COPIED_BYTES, MERGED_SHARE * free) else 0

    @property
    def engine(self) -> dict[str, int]:
        """The engine's memory by part, on one of its GPUs."""
        return {
            "engine's weights": self.engine_weights,
            "merged adapters": self.merged_adapters,
            "joined weights": self.joined_weights,
            "merging one layer": MERGE_BYTES[self.width] * self.shape.largest_map if self.merged_adapters else 0,
            "engine's KV cache": self.kv_cache,
            "weight-sync buckets": BUCKETS if self.settings.engine_has_copy else 0,
        }

    @cached_property
    def phases(self) -> dict[str, dict[str, int]]:
        """Memory of a GPU by part, for every phase with its own GPUs or its own time.

        While the learner works, an engine that sleeps has released everything, and `local` its cache on a GPU. While an engine
        in the same process samples, the learner still has its gradients; verl's discards them at the end of its step.
        """
        settings, engine, held = self.settings, self.engine, self.held
        is_local = settings.engine == "local"
        if settings.is_split:
            return {"learning": self.learner, "sampling": engine}
        stays = {} if settings.engine_sleeps and not is_local else dict(engine)
        if is_local:
            stays["merging one layer"] = 0
            if settings.device == "gpu":
                stays["engine's KV cache"] = 0
        learning = {**self.learner, **stays}
        if not settings.engine_sleeps and not is_local:
            return {"learning": learning}
        of_learner = {
            "weights": held.weights,
            "float32 masters": held.masters,
            "Adam moments": held.moments,
            "reference": 0 if settings.offload_reference else self.reference,
            "gradients": held.gradients if settings.in_process or is_local else 0,
        }
        return {"learning": learning, "sampling": {**({} if settings.offload else of_learner), **engine}}

    @property
    def totals(self) -> dict[str, int]:
        """Total memory of every phase."""
        return {name: sum(parts.values()) for name, parts in self.phases.items()}

    @property
    def needed(self) -> int:
        """Memory of the largest phase."""
        return max(self.totals.values())

    @property
    def excess(self) -> int:
        """Memory that all phases need beyond the limit."""
        return sum(max(0, total - self.limit) for total in self.totals.values())

    @property
    def limit(self) -> int:
        """Memory of a GPU that a plan may use."""
        return round((1.0 - self.settings.headroom) * self.settings.memory_bytes)

    @property
    def fits(self) -> bool:
        """Whether all parts fit and an engine holds enough sequences."""
        return self.needed <= self.limit and self.has_enough_sequences

    @property
    def has_enough_sequences(self) -> bool:
        settings = self.settings
        return self.num_sequences >= min(ENOUGH_SEQUENCES, settings.max_num_seqs, settings.num_episodes_of_engine)

    @property
    def _has_masters(self) -> bool:
        return self.width < FLOAT

    def _learning(self, parameters: int) -> Learning:
        number = FLOAT if self._has_masters else self.width
        return Learning(
            weights=self.shared(self.width * parameters),
            masters=self.shared(FLOAT * parameters) if self._has_masters else 0,
            gradients=self.shared(number * parameters),
            moments=self._moments(number, parameters),
        )

    def _moments(self, number: int, parameters: int) -> int:
        """Bytes of both moments of parameters whose copies have `number` bytes."""
        if self.settings.optimizer == "adamw_8bit":
            return self.shared(2 * parameters + 2 * FLOAT * -(-parameters // BLOCK_OF_8_BITS))
        return self.shared(2 * number * parameters)

    def shared(self, num_bytes: int) -> int:
        """Returns what one of the GPUs holds of something that is sharded."""
        return -(-num_bytes // self.settings.num_shards)

    def _activations(self, lora_rank: int) -> Activations:
        settings = self.settings
        return Activations(
            shape=self.shape,
            width=self.width,
            is_packed=settings.packing,
            lora_rank=lora_rank,
            row_tokens=settings.tokens_of_episode,
            is_fused=settings.is_fused,
            are_offloaded=settings.offload_activations and settings.device == "gpu",
        )
