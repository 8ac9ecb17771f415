"""The forward pass of Llama-like decoders over a model's own tensors, without the modules around them.

In small models, and wherever few tokens are decoded, calling modules costs as much as computing. Nothing here is trusted:
`make_runner` compares it with the model's own forward pass before it is used, and models that are not known, or were
changed, keep their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from midthought.inference.kv_cache import SlotBatch, attend

_KNOWN = {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"}


class _Layer(NamedTuple):
    input_norm: nn.Module
    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    query_norm: nn.Module | None
    key_norm: nn.Module | None
    output: nn.Linear
    mlp_norm: nn.Module
    gate: nn.Linear
    up: nn.Linear
    down: nn.Linear
    scaling: float
    window: int | None


class Decoder:
    """Logits of new tokens; their keys and values go into the cache.

    Weights are read where they are, at every call: a learner that changes them in place is seen.
    """

    def __init__(self, policy: Any) -> None:
        config, trunk = policy.config, policy.base_model
        self._embeddings, self._head = trunk.embed_tokens, policy.lm_head
        self._rotary, self._norm = trunk.rotary_emb, trunk.norm
        self._head_dim = trunk.layers[0].self_attn.head_dim
        self._layers = [
            _Layer(
                input_norm=layer.input_layernorm,
                query=layer.self_attn.q_proj,
                key=layer.self_attn.k_proj,
                value=layer.self_attn.v_proj,
                query_norm=getattr(layer.self_attn, "q_norm", None),
                key_norm=getattr(layer.self_attn, "k_norm", None),
                output=layer.self_attn.o_proj,
                mlp_norm=layer.post_attention_layernorm,
                gate=layer.mlp.gate_proj,
                up=layer.mlp.up_proj,
                down=layer.mlp.down_proj,
                scaling=layer.self_attn.scaling,
                window=_window(layer.self_attn, config),
            )
            for layer in trunk.layers
        ]

    @classmethod
    def of(cls, policy: Any) -> Decoder | None:
        """The decoder of a model that is known and as it was made; None for any other."""
        if type(policy).__name__ not in _KNOWN or policy.config.hidden_act != "silu":
            return None
        return cls(policy) if all(_is_plain(module) for module in _modules(policy)) else None

    def __call__(self, token_ids: Tensor, positions: Tensor, batch: SlotBatch, columns: Tensor) -> Tensor:
        """`[n, V]` logits after the `n` tokens that `columns` names, of `[T]` token ids at `[T]` positions."""
        hidden = F.embedding(token_ids, self._embeddings.weight)
        cos, sin = self._rotary(hidden[None], positions[None])
        cos, sin = cos[0, :, None], sin[0, :, None].clone()
        sin[..., : self._head_dim // 2].neg_()
        for index, layer in enumerate(self._layers):
            normed = _normed(layer.input_norm, hidden)
            query = self._turned(_linear(layer.query, normed), layer.query_norm, cos, sin)
            key = self._turned(_linear(layer.key, normed), layer.key_norm, cos, sin)
            value = _linear(layer.value, normed).view(len(hidden), -1, self._head_dim)
            attended = attend(
                batch,
                index,
                query.transpose(0, 1),
                key.transpose(0, 1),
                value.transpose(0, 1),
                scaling=layer.scaling,
                window=layer.window,
            )
            hidden = hidden + _linear(layer.output, attended.flatten(1))
            normed = _normed(layer.mlp_norm, hidden)
            hidden = hidden + _linear(layer.down, F.silu(_linear(layer.gate, normed)) * _linear(layer.up, normed))
        return _linear(self._head, _normed(self._norm, hidden[columns]))

    def _turned(self, flat: Tensor, norm: nn.Module | None, cos: Tensor, sin: Tensor) -> Tensor:
        """`[T, heads, head_dim]` with rotary positions (RoFormer, arXiv 2104.09864), whose first half of `sin` is negated."""
        heads = flat.view(len(flat), -1, self._head_dim)
        if norm is not None:
            heads = _normed(norm, heads)
        return torch.addcmul(heads * cos, heads.roll(self._head_dim // 2, -1), sin)


def _linear(module: nn.Linear, hidden: Tensor) -> Tensor:
    return F.linear(hidden, module.weight, module.bias)


def _normed(module: Any, hidden: Tensor) -> Tensor:
    """An RMS norm, arXiv 1910.07467. In half precision modules differ in where they round, so they do it themselves."""
    if hidden.dtype != torch.float32:
        return module(hidden)
    return F.rms_norm(hidden, module.weight.shape, module.weight, module.variance_epsilon)


def _window(attention: Any, config: Any) -> int | None:
    """As the module itself asks for it: Mistral's reads the settings, Qwen's hold their own, Llama's have none."""
    if hasattr(attention, "sliding_window"):
        return attention.sliding_window
    return getattr(config, "sliding_window", None)


def _modules(policy: Any) -> Iterator[nn.Module]:
    """All that is left out or taken apart."""
    trunk = policy.base_model
    yield from (policy, trunk, trunk.embed_tokens, trunk.norm, policy.lm_head)
    for layer in trunk.layers:
        yield from layer.modules()


def _is_plain(module: nn.Module) -> bool:
    """Whether nobody has put anything around or into a module."""
    hooks = (module._forward_hooks, module._forward_pre_hooks)
    is_extended = isinstance(module, nn.Linear) and type(module) is not nn.Linear
    return not any(hooks) and not is_extended and "forward" not in vars(module)
