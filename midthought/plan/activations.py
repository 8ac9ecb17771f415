"""Activation memory: bytes per token that a forward pass keeps for the backward pass, and temporary memory of both passes.

Counted from transformers' Llama, Mistral, Qwen, Mixtral and Gemma layers as the learner runs them: SDPA (no scores are
kept, but in Gemma 2), norms that
compute in float32, biases and rotary embeddings that keep no tensors. Korthikanti et al. 2022 (arXiv 2205.05198), section 4,
counts other layers in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from midthought.plan.shape import Shape

FLOAT = 4
"""Bytes of a float32."""
LOGITS_MIB = (512, 256, 128, 64)
"""Values of `training.logits_mib` on a GPU, tried before the other sizes: large blocks are better for its matrix product."""
LOGITS_SHARE = 160
"""A block of logits takes at most this fraction of a GPU's memory: its backward pass holds about four of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Activations:
    """Bytes per token of a decoder of `shape` that computes in numbers of `width` bytes.

    With H, Q, K, I the widths of the model, of its queries, of its keys and of its MLP, b the bytes of a number, and per
    norm of a width w what it keeps: its input in float32 and the normalised input (for the gradient of its weight),
    `norm(w) = w (4 + b)`, or `8 w` in Gemma, whose norms multiply in float32, a layer keeps

        2 norm(H)                  [4 in Gemma; + norm(Q) + norm(K), Qwen3's and Gemma 3's]
        2 b H                      inputs of attention and MLP
        b (3 Q + 2 K)              rotated queries, keys, values, the rows' outputs and these joined (2 Q without packing);
                                   packing repeats shared keys and values: Q instead of K
        4 b I                      gate, its SiLU, up, their product
        4 (n_heads + 2 [+ n_heads + n_kv_heads])    log-sum-exp of the attention, roots of the norms
        b n                        mask of a sliding window that is shorter than the row's n tokens

    A token in k of E experts of width m keeps `b (2 k H + 4 k m)` instead of 4 b I (gathered inputs, their outputs, and the same
    four), and `40 k + 4 E` of routing; a shared expert keeps 4 b times its width, and `b (H + 1)` for its gate. Attention with
    capped logits (Gemma 2) keeps all scores twice, `8 n_heads n`, and neither log-sum-exp nor a second copy of its outputs.

    With LoRA of rank r, frozen weights keep nothing: a norm keeps 4 w, and each of the linear maps 4 r. If b < 4, every map
    keeps its own copy of its input in float32 (peft's adapters are in float32) instead of the shared one. Experts with adapters
    compute with merged weights, which are kept for the backward pass: `constant`. DoRA keeps what a map and its adapter give,
    and constants that grow with the square of a map's input (`_dora_constant`).

    `is_fused` (`learning.fused_modules`, `varlen_attention`): a norm keeps its input, `norm(w) = b w`, but Gemma's; a LoRA layer
    b r of each map, its shared input, and adapters in half precision (`constant`); packing repeats no keys and values and joins
    no outputs: b (2 Q + 2 K).
    """

    shape: Shape
    width: int
    is_packed: bool = True
    lora_rank: int = 0
    use_dora: bool = False
    row_tokens: int = 0
    """Tokens of a row, for what grows with their square."""
    is_fused: bool = False
    """Whether norms, LoRA layers and attention are fused, as for half precision on a GPU."""
    are_offloaded: bool = False
    """Whether the inputs of recomputed layers are in main memory."""

    @property
    def layer(self) -> int:
        """Bytes per token kept by the largest layer."""
        mlp = self._experts if self.shape.num_experts else self._mlp
        return self._attention + mlp + max(0, self._mask)

    @property
    def all_layers(self) -> int:
        """Bytes per token kept by all layers."""
        shape = self.shape
        num_dense = shape.num_layers - shape.num_expert_layers
        mlps = num_dense * self._mlp + shape.num_expert_layers * (self._experts if shape.num_experts else 0)
        return shape.num_layers * self._attention + mlps + shape.num_sliding_layers * self._mask

    @property
    def _attention(self) -> int:
        """A layer but its MLP and the mask."""
        shape, width = self.shape, self.width
        hidden, query, key = shape.hidden_size, shape.query_size, shape.key_size
        num_norms = 4 if shape.is_gemma else 2
        kept = num_norms * (self._norm(hidden) + FLOAT)
        if shape.qk_norm:
            kept += self._norm(query) + self._norm(key) + FLOAT * (shape.num_heads + shape.num_kv_heads)
        repeats = (self._is_by_rows or shape.attn_softcap) and shape.num_heads != shape.num_kv_heads
        kept += width * (query + 2 * (query if repeats else key))
        if shape.attn_softcap:
            kept += 8 * shape.num_heads * self.row_tokens
        else:
            kept += FLOAT * shape.num_heads + (width * query if self._is_by_rows or self._are_cast else 0)
        inputs = FLOAT * (3 * hidden + query) if self._are_cast else width * (hidden + query)
        return kept + inputs + self._adapters(shape.attention_linears)

    @property
    def _is_by_rows(self) -> bool:
        """Whether attention is computed row by row. Fused attention computes all rows at once, without a mask."""
        return self.is_packed and not self.is_fused

    @property
    def _mlp(self) -> int:
        """The MLP of a layer without experts, with its input."""
        hidden, inner = self.shape.hidden_size, self.shape.intermediate_size
        maps = {name: self.shape.linears[name] for name in ("gate", "up", "down")}
        return self._inputs_of_mlp(hidden, inner) + self._adapters(maps)

    def _inputs_of_mlp(self, hidden: int, inner: int) -> int:
        if self._are_cast:
            return FLOAT * (2 * hidden + inner) + 3 * self.width * inner
        return self.width * (hidden + 4 * inner)

    @property
    def _experts(self) -> int:
        """The experts of a token, with their input, router, and the shared expert."""
        shape, width, hidden = self.shape, self.width, self.shape.hidden_size
        per_token, size, shared = shape.experts_per_token, shape.expert_size, shape.shared_expert_size
        are_frozen = self.lora_rank and not shape.adapts_experts
        parts = width * per_token * ((hidden + 3 * size) if are_frozen else (2 * hidden + 4 * size))
        routing = 40 * per_token + FLOAT * shape.num_experts
        kept = parts + routing + (FLOAT if self._are_cast and are_frozen else width) * hidden
        if self.lora_rank and shape.adapts_experts:
            kept += FLOAT * self.lora_rank
        if shared:
            maps = {"gate": (hidden, shared), "up": (hidden, shared), "down": (shared, hidden), "weight": (hidden, 1)}
            kept += self._inputs_of_mlp(hidden, shared) - (0 if self._are_cast else width * hidden)
            kept += width * (hidden + 1) + self._adapters(maps)
        return kept

    @property
    def _mask(self) -> int:
        """The mask of a layer with a sliding window, as numbers."""
        shape = self.shape
        has_mask = shape.num_sliding_layers and self.row_tokens > shape.sliding_window and not shape.attn_softcap
        return self.width * self.row_tokens if has_mask and not (self.is_packed and self.is_fused) else 0

    def _adapters(self, maps: Mapping[str, tuple[int, int]]) -> int:
        if not self.lora_rank:
            return 0
        of_dora = (self.width + FLOAT) * sum(outputs for _, outputs in maps.values()) if self.use_dora else 0
        return (self.width if self._are_adapters_fused else FLOAT) * self.lora_rank * len(maps) + of_dora

    @property
    def _are_cast(self) -> bool:
        return bool(self.lora_rank) and self.width < FLOAT and not self._are_adapters_fused

    @property
    def _are_adapters_fused(self) -> bool:
        return self.is_fused and bool(self.lora_rank) and not self.use_dora

    def constant(self, *, recomputed: bool) -> int:
        """Bytes kept for the backward pass however many tokens there are: experts' weights with their adapters merged, and fused
        adapters in half precision."""
        shape = self.shape
        if self.use_dora:
            return (1 if recomputed else shape.num_layers) * self._dora_constant
        if not (self.lora_rank and shape.adapts_experts):
            adapters = shape.adapter_parameters(self.lora_rank) if self._are_adapters_fused else 0
            return self.width * adapters // (shape.num_layers if recomputed else 1)
        adapters = shape.expert_adapters(self.lora_rank) if self.width < FLOAT else 0
        num_layers = 1 if recomputed else shape.num_expert_layers
        return num_layers * self.width * (shape.expert_parameters + adapters)

    @property
    def _dora_constant(self) -> int:
        """Per layer: peft computes B A from an identity matrix [in, in] and keeps it, A's outputs, and 3 vectors of scales."""
        maps = self.shape.linears.values()
        from_identity = sum(inputs * (inputs + self.lora_rank) for inputs, _ in maps)
        return FLOAT * (from_identity + 3 * sum(outputs for _, outputs in maps))

    @property
    def dora_temporary(self) -> int:
        """Temporary memory for the norms of DoRA's weights: B A, the sum with the weight, and its square, of the largest map."""
        return 3 * FLOAT * max(i * o for i, o in self.shape.linears.values()) if self.use_dora else 0

    @property
    def weight_gradient(self) -> int:
        """Bytes of the largest gradient of one tensor inside a layer that is computed before it is added up: all experts'."""
        return self.width * 2 * self.shape.expert_parameters // 3 if self._learn_experts else 0

    @property
    def _learn_experts(self) -> bool:
        return bool(self.shape.num_experts) and (not self.lora_rank or self.shape.adapts_experts)

    @property
    def boundary(self) -> int:
        """Bytes of a layer's input, the only tensor kept with gradient checkpointing."""
        return self.width * self.shape.hidden_size

    @property
    def backward(self) -> int:
        """Gradients that exist at once during a layer's backward pass: of two parts of its MLP and of its input.

        The MLP's product is freed as soon as its gradient exists, so the third part needs no further memory.
        """
        shape = self.shape
        of_experts = shape.experts_per_token * (2 * shape.expert_size + shape.hidden_size)
        parts = (
            max(2 * shape.intermediate_size, of_experts)
            if shape.num_dense_layers or not shape.num_experts
            else of_experts
        )
        scores = FLOAT * shape.num_heads * self.row_tokens if shape.attn_softcap else 0
        return max(self.width * parts, scores) + FLOAT * 2 * shape.hidden_size

    def kept(self, *, recomputed: bool) -> int:
        """Kept between forward and backward pass: all layers, or only their inputs with gradient checkpointing; of offloaded
        ones, the input of the layer that computes."""
        num_inputs = 1 if self.are_offloaded else self.shape.num_layers
        return (num_inputs * self.boundary if recomputed else self.all_layers) + self.ends

    def worked_on(self, *, recomputed: bool) -> int:
        """Peak during the layers' backward passes: kept tensors, one recomputed layer, gradients."""
        return self.kept(recomputed=recomputed) + (self.layer if recomputed else 0) + self.backward

    @property
    def ends(self) -> int:
        """Kept outside the layers: the last norm, sines and cosines, token ids."""
        return self._norm(self.shape.hidden_size) + 2 * self.width * self.shape.head_dim + 16

    def _norm(self, width: int) -> int:
        if self.is_fused and not self.shape.is_gemma:
            return width * self.width
        if self.lora_rank:
            return width * FLOAT
        return width * (2 * FLOAT if self.shape.is_gemma else FLOAT + self.width)


@dataclass(frozen=True, kw_only=True, slots=True)
class Head:
    """Memory of log-probabilities at the output layer, in bytes, for `num_tokens` policy tokens in one pass.

    Computed in blocks of `logits_mib` MiB of float32 (0: all tokens at once). Source: `midthought.learning.logprobs`.
    """

    shape: Shape
    width: int
    num_tokens: int
    logits_mib: float
    learns: bool = True
    """The output layer's weight has a gradient (not with LoRA)."""
    is_fused: bool = False
    """Whether matrix products of half-precision blocks add to the weight's float32 gradient themselves."""

    @property
    def num_blocks(self) -> int:
        """Number of blocks, of about equal numbers of tokens."""
        at_once = (
            max(1, int(self.logits_mib * 2**20) // (FLOAT * self.shape.vocab_size))
            if self.logits_mib
            else self.num_tokens
        )
        return -(-self.num_tokens // at_once)

    @property
    def block(self) -> int:
        """Bytes of the logits of a block."""
        return -(-self.num_tokens // self.num_blocks) * FLOAT * self.shape.vocab_size

    @property
    def hidden(self) -> int:
        """Hidden states of policy tokens, kept for the backward pass."""
        return self.num_tokens * self.width * self.shape.hidden_size

    @property
    def forward(self) -> int:
        """While scoring: logits and the terms of their sum; in half precision also the product."""
        return 2 * self.block + self._half_a_block

    @property
    def backward(self) -> int:
        """While learning. In blocks: logits and their gradient, in half precision also the product and its gradient, twice while
        `fused` compares; the gradient of a cap takes three more. All at once: logits, their logarithm, its exponential, and the
        two entropy terms; the gradient of a cap takes two more."""
        if self.num_blocks == 1:
            return (7 if self.shape.final_softcap else 5) * self.block + self._half_a_block
        return (5 if self.shape.final_softcap else 2) * self.block + 3 * self._half_a_block

    @property
    def _half_a_block(self) -> int:
        return self.block // 2 if self.width < FLOAT else 0

    @property
    def kept(self) -> int:
        """Kept until the backward pass. All at once: the logits' logarithm and the entropy terms. In blocks: nothing."""
        return 3 * self.block if self.num_blocks == 1 else 0

    @property
    def weight(self) -> int:
        """The weight's gradient, accumulated in float32; in half precision also the gradient of one block, or (`is_fused`) a copy
        of the sum beside no more logits."""
        if not self.learns:
            return 0
        copy = self.shape.embedding_parameters * (self.width if self.width < FLOAT else 0)
        beside_logits = max(0, copy - self.backward) if self.is_fused else copy
        return self.shape.embedding_parameters * FLOAT + beside_logits


def logits_sizes(memory_bytes: int) -> tuple[int, ...]:
    """Returns the values of `training.logits_mib` for a GPU with this memory, largest first; empty if it is small."""
    return tuple(size for size in LOGITS_MIB if size * 2**20 <= memory_bytes // LOGITS_SHARE)
