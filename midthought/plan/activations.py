"""Activation memory: bytes per token that a forward pass keeps for the backward pass, and temporary memory of both passes.

Counted from transformers' Llama, Qwen2 and Qwen3 layers as the learner runs them: SDPA (no scores are kept), norms that
compute in float32, biases and rotary embeddings that keep no tensors. Korthikanti et al. 2022 (arXiv 2205.05198), section 4,
counts other layers in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass

from midthought.plan.shape import Shape

FLOAT = 4
"""Bytes of a float32."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Activations:
    """Bytes per token of a decoder of `shape` that computes in numbers of `width` bytes.

    With H, Q, K, I the widths of the model, of its queries, of its keys and of its MLP, b the bytes of a number, and per
    norm of a width w what it keeps: its input in float32 and the normalised input (for the gradient of its weight),
    `norm(w) = w (4 + b)`, a layer keeps

        2 norm(H)                  [+ norm(Q) + norm(K), Qwen3's]
        2 b H                      inputs of attention and MLP
        b (3 Q + 2 K)              rotated queries, keys, values, the rows' outputs and these joined (2 Q without packing)
        4 b I                      gate, its SiLU, up, their product
        4 (n_heads + 2 [+ n_heads + n_kv_heads])    log-sum-exp of the attention, roots of the norms

    With LoRA of rank r, frozen weights keep nothing: a norm keeps 4 w, and each of the seven linear maps 4 r. If b < 4, every map
    keeps its own copy of its input in float32 (peft's adapters are in float32) instead of the shared one.
    """

    shape: Shape
    width: int
    is_packed: bool = True
    lora_rank: int = 0

    @property
    def layer(self) -> int:
        """Bytes kept by one layer."""
        shape, width = self.shape, self.width
        hidden, query, key, inner = shape.hidden_size, shape.query_size, shape.key_size, shape.intermediate_size
        kept = 2 * self._norm(hidden) + FLOAT * (2 + shape.num_heads)
        if shape.qk_norm:
            kept += self._norm(query) + self._norm(key) + FLOAT * (shape.num_heads + shape.num_kv_heads)
        are_cast = bool(self.lora_rank) and width < FLOAT
        attention = width * ((2 if self.is_packed or are_cast else 1) * query + 2 * key)
        if are_cast:
            inputs = FLOAT * sum(inputs for inputs, _ in shape.linears.values()) + 3 * width * inner
        else:
            inputs = width * (2 * hidden + query + 4 * inner)
        return kept + attention + inputs + FLOAT * self.lora_rank * len(shape.linears)

    @property
    def boundary(self) -> int:
        """Bytes of a layer's input, the only tensor kept with gradient checkpointing."""
        return self.width * self.shape.hidden_size

    @property
    def backward(self) -> int:
        """Gradients that exist at once during a layer's backward pass: of two parts of its MLP and of its input.

        The MLP's product is freed as soon as its gradient exists, so the third part needs no further memory.
        """
        return self.width * 2 * self.shape.intermediate_size + FLOAT * 2 * self.shape.hidden_size

    def kept(self, *, recomputed: bool) -> int:
        """Kept between forward and backward pass: all layers, or only their inputs with gradient checkpointing."""
        return self.shape.num_layers * (self.boundary if recomputed else self.layer) + self.ends

    def worked_on(self, *, recomputed: bool) -> int:
        """Peak during the layers' backward passes: kept tensors, one recomputed layer, gradients."""
        return self.kept(recomputed=recomputed) + (self.layer if recomputed else 0) + self.backward

    @property
    def ends(self) -> int:
        """Kept outside the layers: the last norm, sines and cosines, token ids."""
        return self._norm(self.shape.hidden_size) + 2 * self.width * self.shape.head_dim + 16

    def _norm(self, width: int) -> int:
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
        """While learning. In blocks: logits, the previous block's logits and gradient (freed once the new logits exist), and one
        entropy term. All at once: logits, their logarithm, its exponential, and the two entropy terms."""
        return (5 if self.num_blocks == 1 else 4) * self.block + self._half_a_block

    @property
    def _half_a_block(self) -> int:
        return self.block // 2 if self.width < FLOAT else 0

    @property
    def kept(self) -> int:
        """Kept until the backward pass. All at once: the logits' logarithm and the entropy terms. In blocks: nothing."""
        return 3 * self.block if self.num_blocks == 1 else 0

    @property
    def weight(self) -> int:
        """The weight's gradient, accumulated in float32; in half precision also the gradient of one block."""
        if not self.learns:
            return 0
        return self.shape.embedding_parameters * (FLOAT + (self.width if self.width < FLOAT else 0))
