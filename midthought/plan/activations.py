"""Activation memory: bytes per token that a forward pass keeps for the backward pass, and temporary memory of both passes.

Counted from transformers' Llama, Mistral and Qwen layers as the learner runs them: SDPA (no scores are kept), norms that
compute in float32. Korthikanti et al. 2022 (arXiv 2205.05198), section 4, counts other layers in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass

from midthought.plan.settings import PlanSettings
from midthought.plan.shape import Shape

FLOAT = 4
"""Bytes of a float32."""
NUM_MAPS = 7
"""Linear maps of a layer, each with an adapter."""
LOGITS_MIB = (512, 256, 128, 64)
"""Values of `training.logits_mib` on a GPU, tried before the other sizes: large blocks are better for its matrix product."""
LOGITS_SHARE = 160
"""A block of logits takes at most this fraction of a GPU's memory: its backward pass holds about four of them."""


@dataclass(frozen=True, slots=True)
class Activations:
    """Bytes per token of a decoder of `shape`.

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
    copy of its input in float32. `is_fused` (`learning.fused`): a norm keeps b w; LoRA layers b r of each map, and their
    adapters in half precision (`constant`); packing repeats no keys and values and joins no outputs.
    """

    shape: Shape
    settings: PlanSettings
    lora_rank: int
    """Of this model: a separate critic has no adapters."""

    @property
    def width(self) -> int:
        return self.settings.width

    @property
    def layer(self) -> int:
        """Bytes per token kept by a layer."""
        shape, width = self.shape, self.width
        hidden, query, key, inner = shape.hidden_size, shape.query_size, shape.key_size, shape.intermediate_size
        is_fused, num_tokens = self.settings.is_fused, self.settings.tokens_of_episode
        is_by_rows = self.settings.packing and not is_fused
        are_cast = self.lora_rank and width < FLOAT and not is_fused
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
        kept += (width if is_fused else FLOAT) * self.lora_rank * NUM_MAPS
        has_mask = 0 < shape.sliding_window < num_tokens and not (self.settings.packing and is_fused)
        return kept + (width * num_tokens if has_mask else 0)

    @property
    def constant(self) -> int:
        """Bytes kept for the backward pass however many tokens there are: fused adapters in half precision."""
        adapters = self.shape.adapter_parameters(self.lora_rank) if self.settings.is_fused else 0
        return self.width * adapters // (self.shape.num_layers if self.settings.gradient_checkpointing else 1)

    @property
    def kept(self) -> int:
        """Kept between forward and backward pass: all layers, or only their inputs with gradient checkpointing; of offloaded
        ones, the input of the layer that computes. Also the last norm, sines and cosines, and token ids."""
        shape = self.shape
        are_offloaded = self.settings.gradient_checkpointing == "offload" and self.settings.device == "gpu"
        inputs = (1 if are_offloaded else shape.num_layers) * self.width * shape.hidden_size
        layers = inputs if self.settings.gradient_checkpointing else shape.num_layers * self.layer
        return layers + self._norm(shape.hidden_size) + 2 * self.width * shape.head_dim + 16

    @property
    def worked_on(self) -> int:
        """Peak during the layers' backward passes: kept tensors, one recomputed layer, the gradients of two parts of an MLP and
        its input. (The product in the MLP is freed as soon as its gradient exists.)"""
        gradients = 2 * self.width * self.shape.intermediate_size + 2 * FLOAT * self.shape.hidden_size
        return self.kept + (self.layer if self.settings.gradient_checkpointing else 0) + gradients

    def _norm(self, width: int) -> int:
        if self.settings.is_fused:
            return width * self.width
        return width * (FLOAT if self.lora_rank else FLOAT + self.width)


@dataclass(frozen=True, slots=True)
class Head:
    """Memory of log-probabilities at the output layer, in bytes, for the policy tokens in one pass.

    Computed in blocks of `logits_mib` MiB of float32 (0: all tokens at once). Source: `midthought.learning.logprobs`.
    """

    shape: Shape
    settings: PlanSettings

    @property
    def num_tokens(self) -> int:
        settings = self.settings
        return max(1, settings.tokens_of_pass * settings.max_tokens // settings.tokens_of_episode)

    @property
    def num_blocks(self) -> int:
        """Number of blocks, of about equal numbers of tokens."""
        at_once = max(1, int(self.settings.logits_mib * 2**20) // (FLOAT * self.shape.vocab_size))
        return -(-self.num_tokens // at_once) if self.settings.logits_mib else 1

    @property
    def block(self) -> int:
        """Bytes of the logits of a block."""
        return -(-self.num_tokens // self.num_blocks) * FLOAT * self.shape.vocab_size

    @property
    def product(self) -> int:
        """Bytes of a block's matrix product in half precision."""
        return self.block // 2 if self.settings.width < FLOAT else 0

    @property
    def backward(self) -> int:
        """While learning. In blocks: logits and their gradient, in half precision also the product and its gradient, twice while
        `fused` compares. All at once: logits, their logarithm, its exponential, and the two entropy terms."""
        return 5 * self.block + self.product if self.num_blocks == 1 else 2 * self.block + 3 * self.product


def logits_sizes(memory_bytes: int) -> tuple[int, ...]:
    """Returns the values of `training.logits_mib` for a GPU with this memory, largest first; empty if it is small."""
    return tuple(size for size in LOGITS_MIB if size * 2**20 <= memory_bytes // LOGITS_SHARE)
