"""What a forward pass keeps for the backward pass, in bytes per token, and what the passes take besides.

Counted from transformers' Llama, Qwen2 and Qwen3 layers as the learner runs them: SDPA (no scores are kept), norms that
compute in float32, biases and rotary embeddings that keep nothing of their own. The same way of counting, for other
layers: Korthikanti et al. 2022 (arXiv 2205.05198), section 4.
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

    With LoRA of rank r nothing is kept for frozen weights: a norm keeps 4 w, and each of the seven maps 4 r. Where b < 4
    every map keeps a copy of its input in float32 (peft's adapters are in float32), in place of the one that is shared.
    """

    shape: Shape
    width: int
    is_packed: bool = True
    lora_rank: int = 0

    @property
    def layer(self) -> int:
        """Kept by one layer."""
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
        """A layer's input, which is all that is kept of it where layers are computed again."""
        return self.width * self.shape.hidden_size

    @property
    def backward(self) -> int:
        """Gradients that exist at once while a layer's backward pass runs: of two of its MLP's parts and of its input.

        An MLP's product is let go as soon as its gradient is there, so the third part takes no more.
        """
        return self.width * 2 * self.shape.intermediate_size + FLOAT * 2 * self.shape.hidden_size

    def kept(self, *, recomputed: bool) -> int:
        """Between forward and backward pass: by all layers, or the layers' inputs where they are computed again."""
        return self.shape.num_layers * (self.boundary if recomputed else self.layer) + self.ends

    def worked_on(self, *, recomputed: bool) -> int:
        """The most while layers' backward passes run: what is kept, a layer that was computed again, gradients."""
        return self.kept(recomputed=recomputed) + (self.layer if recomputed else 0) + self.backward

    @property
    def ends(self) -> int:
        """Kept beside the layers: what the last norm keeps, sines and cosines, numbers of the tokens."""
        return self._norm(self.shape.hidden_size) + 2 * self.width * self.shape.head_dim + 16

    def _norm(self, width: int) -> int:
        return width * (FLOAT if self.lora_rank else FLOAT + self.width)


@dataclass(frozen=True, kw_only=True, slots=True)
class Head:
    """What log-probabilities take at the output layer, in bytes, `num_tokens` policy tokens in one pass.

    Blocks of `logits_mib` MiB of float32 (0: all tokens at once). Source: `midthought.learning.logprobs`.
    """

    shape: Shape
    width: int
    num_tokens: int
    logits_mib: float
    learns: bool = True
    """The output layer's weight has a gradient (not with LoRA)."""

    @property
    def num_blocks(self) -> int:
        """Of about as many tokens each."""
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
        """States of policy tokens, kept for the backward pass."""
        return self.num_tokens * self.width * self.shape.hidden_size

    @property
    def forward(self) -> int:
        """While scoring: logits and the terms of their sum; in half precision the product as well."""
        return 2 * self.block + self._half_a_block

    @property
    def backward(self) -> int:
        """While learning. Block by block: logits, the last block's and their gradient, which are let go when these are there,
        and a term of the entropy's. All at once: logits, their logarithm, its exponential, and the entropy's two terms."""
        return (5 if self.num_blocks == 1 else 4) * self.block + self._half_a_block

    @property
    def _half_a_block(self) -> int:
        return self.block // 2 if self.width < FLOAT else 0

    @property
    def kept(self) -> int:
        """Of all logits at once: their logarithm and the entropy's terms, until the backward pass. Blocks leave nothing."""
        return 3 * self.block if self.num_blocks == 1 else 0

    @property
    def weight(self) -> int:
        """The weight's gradient, which adds up in float32; in half precision with a block's part of it beside it."""
        if not self.learns:
            return 0
        return self.shape.embedding_parameters * (FLOAT + (self.width if self.width < FLOAT else 0))
