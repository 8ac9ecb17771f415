"""Forward pass of Llama-like decoders on a model's own tensors, without calling its modules.

In small models, or when few tokens are decoded, calling modules costs as much as computing. `make_runner` compares this pass
with the model's own forward pass before using it. Unknown or modified models keep their own forward pass.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from midthought.engines.local.device import kernels_of
from midthought.engines.local.layer_products import LayerProducts, is_fused_faster
from midthought.engines.local.slot_attention import attend, attend_cached
from midthought.engines.local.slot_batch import SlotBatch
from midthought.engines.local.weight_copies import Layer, Projection, WeightCopies, normed
from midthought.models.peft_weights import is_adapted, is_mergeable, used_module
from midthought.models.pretrained import Float32Linear
from midthought.models.varlen_attention import HALF

DTYPES = HALF
MAX_ROWS = 128
MIN_TILE_ROWS = 32
"""Smallest tile. Missing rows of a tile are not read, so smaller tiles save only compilation time."""

Attend = Callable[..., Tensor]
"""`Decoder._attend_each`"""
_KNOWN = {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"}
_FIXED_TURNS = {"default", "linear", "llama3", "yarn"}
"""Types of rotary embeddings that depend only on the position, not on the length of the longest sequence."""


class FusedStep:
    """Computes passes in which every token's attention is computed by itself: one new token per row, or few of any rows.

    Such a pass has few kernels: norms, gates and additions are parts of the kernels of products (`triton_products`). For each
    product it is measured on the model's own weights whether such a kernel is right and faster than separate kernels (cuBLAS).

    Args:
        norm, head: the last norm, and the output layer.
        attend: attention by other kernels, for rows or heads that `triton_attention` does not take.
    """

    def __init__(self, layers: Sequence[Layer], embeddings: Any, norm: Any, head: Any, attend: Attend) -> None:
        self._layers, self._embeddings, self._norm, self._head = layers, embeddings, norm, head
        self._attend = attend
        self._attention = kernels_of(embeddings.weight.device, "triton_attention")
        self._products = LayerProducts(embeddings.weight.device)
        self._plans: dict[int, dict[str, Any] | None] = {}

    @property
    def is_used(self) -> bool:
        """Whether it computes passes of some number of rows."""
        return any(self._plans.values())

    def __call__(self, token_ids: Tensor, positions: Tensor, batch: SlotBatch, turns: Tensor) -> Tensor | None:
        """Returns logits `[n, V]` after `[n]` tokens; None if other kernels are to compute this pass.

        `turns`: `[length, 2, head_dim]`, as in `triton_decoder`.
        """
        plan = self._plan_for(len(token_ids), turns.shape[2], is_measured=not batch.shares_slots)
        if plan is None:
            return None
        products = self._products
        hidden = products.embedded(token_ids, self._embeddings.weight, self._layers[0].input_norm)
        next_norms = [*(layer.input_norm for layer in self._layers[1:]), self._norm]
        attend = self._attended if plan["attention"] and not batch.shares_slots else self._attend
        for index, (layer, next_norm) in enumerate(zip(self._layers, next_norms, strict=True)):
            attended = functools.partial(attend, index, layer, turns=turns, positions=positions, batch=batch)
            hidden = products.layer(plan, layer, hidden, attended, next_norm)
        if plan["head"] is None:
            logits: Tensor = self._head(products.normed(hidden, self._norm))
        else:
            [logits] = products.parts(plan["head"], hidden, self._head, self._norm)
        return logits

    def _attended(
        self, index: int, layer: Layer, parts: Sequence[Tensor], turns: Tensor, positions: Tensor, batch: SlotBatch
    ) -> Tensor:
        """As `attend`, in one kernel if possible."""
        queries, new_keys, new_values = parts
        shape = (len(queries), -1, turns.shape[2])
        keys, values = batch.cache.layer(index, new_keys.view(shape), new_values.view(shape))
        norms = None if layer.head_norms is None else layer.head_norms.modules
        if not self._attention.can_attend_new(queries, keys, values, has_norms=norms is not None):
            return self._attend(index, layer, parts, turns, positions, batch)
        batch.cache.windows[index] = layer.window
        attended: Tensor = self._attention.attend_new(
            *parts, norms, turns, positions, batch.slots, keys, values, scale=layer.scaling, window=layer.window
        )
        return attended

    def _plan_for(self, num_rows: int, head_dim: int, *, is_measured: bool) -> dict[str, Any] | None:
        """Returns the plan for about as many rows.

        It is measured, which takes seconds, at their first pass that is not being recorded; if `is_measured` is false, never.
        """
        if num_rows > MAX_ROWS or not self._is_plain():
            return None
        num_tile_rows = max(MIN_TILE_ROWS, 1 << (num_rows - 1).bit_length())
        if num_tile_rows not in self._plans:
            is_recording = self._embeddings.weight.is_cuda and torch.cuda.is_current_stream_capturing()
            if not is_measured or is_recording:
                return None
            self._plans[num_tile_rows] = self._measured(num_tile_rows, head_dim)
        return self._plans[num_tile_rows]

    def _measured(self, num_rows: int, head_dim: int) -> dict[str, Any] | None:
        """Returns the tiles of each product, None for separate kernels, and whether one kernel computes `attention`."""
        plan = self._products.fastest(self._layers, self._norm, self._head, num_rows)
        if all(tiles is None for tiles in plan.values()):
            return None
        layer, like = self._layers[0], self._embeddings.weight
        new = [like.new_ones((num_rows, len(each))) for each in layer.queries_keys_values.weights or ()]
        norms = None if layer.head_norms is None else layer.head_norms.modules
        return plan | {"attention": is_fused_faster(new, norms, head_dim)}

    def _is_plain(self) -> bool:
        """Whether layers are products with weights; that changes when adapters are merged."""
        if self._embeddings.weight.dtype not in DTYPES:
            return False
        heads = [self._head] if isinstance(self._head, Projection) else []
        used = itertools.chain(heads, *(layer.projections for layer in self._layers))
        return all(projection.weights is not None for projection in used)


class Decoder:
    """Computes logits of new tokens, and writes their keys and values into the cache.

    Weights that a learner changes in place take effect in the next batch: they are read in place, or copied again if they
    have changed. LoRA layers are merged into copies; without memory for copies they are called.
    """

    def __init__(self, policy: Any, *, merge_adapters: bool = True, fused_kernels: bool = True) -> None:
        config, trunk = policy.config, policy.base_model
        self._embeddings, head = used_module(trunk.embed_tokens), used_module(policy.lm_head)
        self._head: Any = head if isinstance(head, Float32Linear) else Projection(head)
        self._rotary, self._norm = trunk.rotary_emb, used_module(trunk.norm)
        self._num_queries, self._num_keys = config.num_attention_heads, config.num_key_value_heads
        self._head_dim = trunk.layers[0].self_attn.head_dim
        self._layers = [Layer.of(layer, config) for layer in trunk.layers]
        copied = [each for layer in self._layers for each in layer.copied]
        copied += [self._head] if isinstance(self._head, Projection) else []
        self.copies = WeightCopies(copied, merge_adapters=merge_adapters)
        self._turns: Tensor | None = None
        self._kernels = kernels_of(policy.device, "triton_decoder") if fused_kernels else None
        self._step: FusedStep | None = None
        if self._kernels is not None:
            self._step = FusedStep(self._layers, self._embeddings, self._norm, self._head, self._attend_each)

    @property
    def uses_kernels(self) -> bool:
        """Whether it computes with `triton_decoder`."""
        return self._kernels is not None

    @property
    def fuses_products(self) -> bool:
        """Whether passes of one new token per row are computed by `FusedStep`."""
        return self._step is not None and self._step.is_used

    @property
    def reads_own_keys(self) -> bool:
        """Whether attention reads each row's own keys, and no masked ones."""
        has_windows = any(layer.window is not None for layer in self._layers)
        return self.uses_kernels and self._embeddings.weight.dtype in HALF and not has_windows

    @classmethod
    def of(cls, policy: Any, *, merge_adapters: bool = True, fused_kernels: bool = True) -> Decoder | None:
        """Returns the decoder of a known, unmodified model; None for any other model. `fused_kernels`: use `triton_decoder`
        on a GPU."""
        if type(policy).__name__ not in _KNOWN or policy.config.hidden_act != "silu":
            return None
        if policy.base_model.rotary_emb.rope_type not in _FIXED_TURNS:
            return None
        is_known = all(_is_known(module) for module in _modules(policy))
        return cls(policy, merge_adapters=merge_adapters, fused_kernels=fused_kernels) if is_known else None

    def __call__(self, token_ids: Tensor, positions: Tensor, batch: SlotBatch, columns: Tensor | None) -> Tensor:
        """Returns logits `[n, V]` after the `n` tokens at the indices `columns` (None: all), for `[T]` token ids at `[T]`
        positions."""
        if not batch.num_advances:
            self.copies.renew()
        table = self._turns_up_to(batch.longest, self._embeddings.weight)
        if self._step is not None and not batch.several:
            stepped = self._step(token_ids, positions, batch, table)
            if stepped is not None:
                return stepped if columns is None else stepped[columns]
        hidden = F.embedding(token_ids, self._embeddings.weight)
        if self._kernels is None:
            norm, gate_with, turns = normed, _gated, table.index_select(0, positions)[:, :, None].unbind(1)
        else:
            norm, gate_with, turns = self._kernels.normed, self._kernels.gated, (table,)
        for index, layer in enumerate(self._layers):
            attended = self._attend(index, layer, norm(layer.input_norm, hidden), turns, positions, batch)
            hidden = layer.output.added(attended.flatten(1), hidden)
            hidden = layer.down.added(gate_with(*layer.gate_up.parts(norm(layer.mlp_norm, hidden))), hidden)
        logits: Tensor = self._head(norm(self._norm, hidden if columns is None else hidden[columns]))
        return logits

    def _attend(
        self, index: int, layer: Layer, hidden: Tensor, turns: Sequence[Tensor], positions: Tensor, batch: SlotBatch
    ) -> Tensor:
        """Returns `[T, heads, head_dim]` for a layer's normalized input.

        `turns`: for the kernels, the table of all positions; else cosines and sines of the `T` tokens.
        """
        if self._kernels is not None:
            [table] = turns
            return self._attend_each(index, layer, layer.queries_keys_values.parts(hidden), table, positions, batch)
        num_turned, scaling = self._num_queries + self._num_keys, layer.scaling
        heads = layer.queries_keys_values(hidden).view(len(hidden), -1, self._head_dim)
        turned, values = heads[:, :num_turned], heads[:, num_turned:]
        if layer.head_norms is not None:
            turned, scaling = layer.head_norms(turned)
        turned = self._turned(turned, *turns)
        queries, keys = turned[:, : self._num_queries], turned[:, self._num_queries :]
        return attend(batch, index, queries, keys, values, scaling=scaling, window=layer.window)

    def _attend_each(
        self, index: int, layer: Layer, parts: Sequence[Tensor], turns: Tensor, positions: Tensor, batch: SlotBatch
    ) -> Tensor:
        """`_attend` with kernels, for queries, keys and values `[T, heads · head_dim]`."""
        assert self._kernels is not None
        queries, keys, values = parts
        shape = (len(queries), self._num_keys, self._head_dim)
        cached = batch.cache.layer(index, keys.view(shape), values.view(shape))
        norms = None if layer.head_norms is None else layer.head_norms.modules
        queries = self._kernels.turn_and_write(
            queries, keys, values, norms, turns, positions, batch.token_slots, *cached
        )
        return attend_cached(
            batch, index, queries, *cached, scaling=layer.scaling, window=layer.window, kernels=self._kernels
        )

    def _turns_up_to(self, length: int, like: Tensor) -> Tensor:
        """Returns `[length or more, 2, head_dim]`: cosines, and sines with the first half negated."""
        table = self._turns
        if table is None or len(table) < length or table.dtype != like.dtype or table.device != like.device:
            all_positions = torch.arange(-(-length // 1024) * 1024, device=like.device)
            cos, sin = self._rotary(like[None], all_positions[None])
            sin = torch.cat([-sin[..., : self._head_dim // 2], sin[..., self._head_dim // 2 :]], dim=-1)
            table = self._turns = torch.stack([cos[0], sin[0]], dim=1)
        return table

    def _turned(self, heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Applies rotary embeddings (RoFormer, arXiv 2104.09864) to `[T, heads, head_dim]`, in place."""
        rolled = heads.roll(self._head_dim // 2, -1)
        return heads.mul_(cos).addcmul_(rolled, sin)


def _gated(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate).mul_(up)


def _modules(policy: Any) -> Iterator[nn.Module]:
    """Yields all modules that are bypassed or taken apart. A layer with adapters is one module: it is merged or called."""
    trunk = policy.base_model
    yield from (policy, trunk)
    for module in (trunk.embed_tokens, trunk.norm, policy.lm_head, *trunk.layers):
        yield from _outer_modules(module)


def _outer_modules(module: nn.Module) -> Iterator[nn.Module]:
    used = used_module(module)
    yield used
    if not is_adapted(used):
        for child in used.children():
            yield from _outer_modules(child)


def _is_known(module: nn.Module) -> bool:
    """Whether the module is as transformers created it: no hooks or wrappers, and no change except LoRA on a linear layer."""
    hooks = (module._forward_hooks, module._forward_pre_hooks)
    is_extended = isinstance(module, nn.Linear) and type(module) not in (nn.Linear, Float32Linear)
    is_foreign = is_adapted(module) and not is_mergeable(module)
    return not any(hooks) and not is_extended and not is_foreign and "forward" not in vars(module)
