"""A Qwen3 as a bare loop: keys and values in one preallocated block, equal rows, no tools. The upper limit of speed.

It has no requests and no text, and shares only the norm with the engine: all rows have the same length, take the same step
and never end early. On a GPU it is no limit, because launching its operations takes longer than running them; `floor.py`
computes a limit for GPUs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from midthought.engines.local.weight_copies import rms_normed

MAX_PREFILL_TOKENS = 1024
"""Rows are prefilled in groups of so many tokens: what larger ones compute falls out of the processor's cache."""


class _Layer(NamedTuple):
    input_norm: Tensor
    qkv: Tensor
    qk_norm: Tensor
    """`[heads + kv_heads, head_dim]`; that of the queries holds the scale of the scores."""
    output: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


class BareLoop:
    """Holds `num_rows` sequences of the same length. `prefill` and `sample` carry all of them on.

    The projections are copied together (queries, keys and values; gate and up), and the dimensions of queries and keys
    are put in another order, in which those that RoPE turns together are neighbours: a complex number each.

    Args:
        model: a Qwen3.
        max_length: most tokens of a row.
    """

    @torch.inference_mode()
    def __init__(self, model: Any, num_rows: int, max_length: int) -> None:
        config = model.config
        self.num_heads, self.num_kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim, self.epsilon = config.head_dim, config.rms_norm_eps
        self.embeddings, self.head = model.model.embed_tokens.weight, model.lm_head.weight.t()
        self.final_norm = model.model.norm.weight
        self.layers = [self._layer(layer) for layer in model.model.layers]
        device = self.embeddings.device
        size = (2, len(self.layers), num_rows, self.num_kv_heads, max_length, self.head_dim)
        self.keys, self.values = torch.zeros(size, device=device, dtype=self.embeddings.dtype)
        positions = torch.arange(max_length, device=device)[None]
        cos, sin = model.model.rotary_emb(torch.zeros(1, device=device), positions)
        self.turns = torch.complex(cos, sin)[0, :, None, : self.head_dim // 2].contiguous()
        self.length = 0

    def _layer(self, layer: Any) -> _Layer:
        attention, mlp, head_dim = layer.self_attn, layer.mlp, self.head_dim
        order = torch.arange(head_dim, device=self.embeddings.device).view(2, -1).t().flatten()
        queries_keys = torch.cat([attention.q_proj.weight, attention.k_proj.weight])
        queries_keys = queries_keys.unflatten(0, (-1, head_dim))[:, order].flatten(0, 1)
        queries_norm = attention.q_norm.weight[order] * head_dim**-0.5
        keys_norm = attention.k_norm.weight[order]
        return _Layer(
            input_norm=layer.input_layernorm.weight,
            qkv=torch.cat([queries_keys, attention.v_proj.weight]).t(),
            qk_norm=torch.stack([queries_norm] * self.num_heads + [keys_norm] * self.num_kv_heads),
            output=attention.o_proj.weight.t(),
            mlp_norm=layer.post_attention_layernorm.weight,
            gate_up=torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]).t(),
            down=mlp.down_proj.weight.t(),
        )

    def reset(self) -> None:
        """Forget all tokens."""
        self.length = 0

    @torch.inference_mode()
    def prefill(self, token_ids: Tensor) -> Tensor:
        """Take `[num_rows, n]` more tokens; `[num_rows, V]` logits after the last."""
        num_rows, num_new = token_ids.shape
        step = max(1, MAX_PREFILL_TOKENS // num_new)
        logits = [
            self._forward(token_ids[start : start + step], slice(start, start + step))
            for start in range(0, num_rows, step)
        ]
        self.length += num_new
        return torch.cat(logits)

    @torch.inference_mode()
    def sample(self, logits: Tensor, num_tokens: int) -> Tensor:
        """`[num_rows, num_tokens]`: drawn one after the other. The last one is not taken in yet: prefill it with what
        follows."""
        drawn = [_draw(logits)]
        for _ in range(num_tokens - 1):
            logits = self._forward(drawn[-1], slice(None))
            self.length += 1
            drawn.append(_draw(logits))
        return torch.cat(drawn, dim=1)

    def _forward(self, token_ids: Tensor, rows: slice) -> Tensor:
        num_rows, num_new = token_ids.shape
        start, end = self.length, self.length + num_new
        num_turned = self.num_heads + self.num_kv_heads
        turns, mask = self.turns[start:end], None
        if start and num_new > 1:
            mask = self.keys.new_full((num_new, end), -torch.inf).triu(start + 1)
            mask = mask.repeat(self.num_heads // self.num_kv_heads, 1)
        x = F.embedding(token_ids.flatten(), self.embeddings)
        for layer, all_keys, all_values in zip(self.layers, self.keys, self.values, strict=True):
            keys, values = all_keys[rows, :, :end], all_values[rows, :, :end]
            qkv = (self._norm(x, layer.input_norm) @ layer.qkv).view(num_rows, num_new, -1, self.head_dim)
            turned = rms_normed(qkv[:, :, :num_turned], layer.qk_norm, self.epsilon)
            turned = _turn(turned, turns).transpose(1, 2)
            keys[:, :, start:] = turned[:, self.num_heads :]
            values[:, :, start:] = qkv[:, :, num_turned:].transpose(1, 2)
            attended = self._attend(turned[:, : self.num_heads], keys, values, mask)
            x = torch.addmm(x, attended, layer.output)
            gate, up = (self._norm(x, layer.mlp_norm) @ layer.gate_up).chunk(2, dim=-1)
            x = torch.addmm(x, F.silu(gate).mul_(up), layer.down)
        return self._norm(x.view(num_rows, num_new, -1)[:, -1], self.final_norm) @ self.head

    def _attend(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """`[num_rows · n, heads · head_dim]`. Queries that share a key head form one query axis, except in the prefill.

        Each variant is the fastest that was found on a CPU, on which plain operations are fastest for a single query.
        """
        num_rows, num_heads, num_new, head_dim = queries.shape
        num_repeats = num_heads // self.num_kv_heads
        packed = queries.reshape(num_rows, self.num_kv_heads, num_repeats * num_new, head_dim)
        if num_new > 1 and mask is None:
            keys, values = keys.repeat_interleave(num_repeats, 1), values.repeat_interleave(num_repeats, 1)
            attended = F.scaled_dot_product_attention(queries, keys, values, is_causal=True, scale=1.0)
        elif num_new > 1 or queries.device.type != "cpu":
            attended = F.scaled_dot_product_attention(packed, keys, values, attn_mask=mask, scale=1.0)
        else:
            attended = (packed @ keys.transpose(2, 3)).softmax(-1) @ values
        attended = attended.reshape(num_rows, num_heads, num_new, head_dim).transpose(1, 2)
        return attended.reshape(num_rows * num_new, -1)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return rms_normed(x, weight, self.epsilon)


def _turn(x: Tensor, turns: Tensor) -> Tensor:
    """RoPE (arXiv 2104.09864): neighbours are a complex number, turned by its position."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turns).flatten(-2).to(x.dtype)


def _draw(logits: Tensor) -> Tensor:
    """`[num_rows, 1]`: a token of each row, at temperature 1, by inverse CDF."""
    cumulative = logits.float().softmax(-1).cumsum(-1)
    total = cumulative[:, -1:]
    drawn = torch.searchsorted(cumulative, torch.rand_like(total) * total, right=True)
    return drawn.clamp_(max=logits.shape[-1] - 1)
