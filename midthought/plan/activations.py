"""Activation memory: bytes per token that a forward pass keeps for the backward pass, and temporary memory of both passes.

Counted from transformers' Llama, Mistral and Qwen layers as the learner runs them: SDPA (no scores are kept), norms that
compute in float32. Korthikanti et al. 2022 (arXiv 2205.05198), section 4, counts other layers in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass

from midthought.plan.shape import Shape

FLOAT = 4
"""Bytes of a float32."""
NUM_MAPS = 7
"""Linear maps of a layer, each with an adapter."""
LOGITS_MIB = (512, 256, 128, 64)
"""Values of `training.logits_mib` on a GPU, tried before the other sizes: large blocks are better for its matrix product."""
LOGITS_SHARE = 160
"""A block of logits takes at most this fraction of a GPU's memory: its backward pass holds about four of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Activations:
    """Bytes per token of a decoder of `shape` that computes in numbers of `width` bytes.

    With H, Q, K, I the widths of the model, of its queries, of its keys and of its MLP, b the bytes of a number, and
    `norm(w) = w (4 + b)` what a norm keeps (its input in float32 and the normalised input), a layer keeps

        2 norm(H)  [+ norm(Q) + norm(K), Qwen3's]
        2 b H                      inputs of attention and MLP
        b (3 Q + 2 K)              rotated queries, keys, values, the rows' outputs and these joined (2 Q without packing);
                                   packing repeats shared keys and values: Q instead of K
        4 b I                      gate, its SiLU, up, their product
        4 (n_heads + 2 [+ n_heads + n_kv_heads])    log-sum-exp of the attention, roots of the norms
        b n                        mask of a sliding window that is shorter than the row's n tokens

    With LoRA of rank r, frozen weights keep nothing: a norm keeps 4 w, and each linear map 4 r. If b < 4, every map keeps its own
    copy of its input in float32. `is_fused` (`learning.fused_modules`): a norm keeps b w; LoRA layers b r of each map, and their
    adapters in half precision (`constant`); packing repeats no keys and values and joins no outputs.
    """

    shape: Shape
    width: int
    is_packed: bool = True
    lora_rank: int = 0
    row_tokens: int = 0
    """Tokens of a row, for the mask of a sliding window."""
    is_fused: bool = False
    """Whether norms, LoRA layers and attention are fused, as for half precision on a GPU."""
    are_offloaded: bool = False
    """Whether the inputs of recomputed layers are in main memory."""

    @property
    def layer(self) -> int:
        """Bytes per token kept by a layer."""
        shape, width = self.shape, self.width
        hidden, query, key, inner = shape.hidden_size, shape.query_size, shape.key_size, shape.intermediate_size
        is_by_rows = self.is_packed and not self.is_fused
        are_cast = self.lora_rank and width < FLOAT and not self.is_fused
        kept = 2 * (self._norm(hidden) + FLOAT) + FLOAT * shape.num_heads
        if shape.qk_norm:
            kept += self._norm(query) + self._norm(key) + FLOAT * (shape.num_heads + shape.num_kv_heads)
        is_repeated = is_by_rows and shape.num_heads != shape.num_kv_heads
        kept += width * (query + 2 * (query if is_repeated else key))
        kept += width * query if is_by_rows or are_cast else 0
        if are_cast:
            kept += FLOAT * (5 * hidden + query + inner) + 3 * width * inner
        else:
            kept += width * (2 * hidden + query + 4 * inner)
        kept += (width if self.is_fused else FLOAT) * self.lora_rank * NUM_MAPS
        has_mask = 0 < shape.sliding_window < self.row_tokens and not (self.is_packed and self.is_fused)
        return kept + (width * self.row_tokens if has_mask else 0)

    @property
    def all_layers(self) -> int:
        """Bytes per token kept by all layers."""
        return self.shape.num_layers * self.layer

    def constant(self, *, recomputed: bool) -> int:
        """Bytes kept for the backward pass however many tokens there are: fused adapters in half precision."""
        adapters = self.shape.adapter_parameters(self.lora_rank) if self.is_fused else 0
        return self.width * adapters // (self.shape.num_layers if recomputed else 1)

    def kept(self, *, recomputed: bool) -> int:
        """Kept between forward and backward pass: all layers, or only their inputs with gradient checkpointing; of offloaded
        ones, the input of the layer that computes. Also the last norm, sines and cosines, and token ids."""
        shape = self.shape
        num_inputs = 1 if self.are_offloaded else shape.num_layers
        layers = num_inputs * self.width * shape.hidden_size if recomputed else self.all_layers
        return layers + self._norm(shape.hidden_size) + 2 * self.width * shape.head_dim + 16

    def worked_on(self, *, recomputed: bool) -> int:
        """Peak during the layers' backward passes: kept tensors, one recomputed layer, the gradients of two parts of an MLP and
        its input. (The product in the MLP is freed as soon as its gradient exists.)"""
        gradients = 2 * self.width * self.shape.intermediate_size + 2 * FLOAT * self.shape.hidden_size
        return self.kept(recomputed=recomputed) + (self.layer if recomputed else 0) + gradients

    def _norm(self, width: int) -> int:
        if self.is_fused:
            return width * self.width
        return width * (FLOAT if self.lora_rank else FLOAT + self.width)


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
        at_once = max(1, int(self.logits_mib * 2**20) // (FLOAT * self.shape.vocab_size))
        return -(-self.num_tokens // at_once) if self.logits_mib else 1

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
        `fused` compares. All at once: logits, their logarithm, its exponential, and the two entropy terms."""
        return 5 * self.block + self._half_a_block if self.num_blocks == 1 else 2 * self.block + 3 * self._half_a_block

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
