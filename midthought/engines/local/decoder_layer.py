"""A layer of a Llama-like decoder, taken apart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import nn

from midthought.engines.local.weight_copies import HeadNorms, Projection
from midthought.models.peft_weights import used_module


class Layer(NamedTuple):
    """What a layer computes with."""

    input_norm: nn.Module
    queries_keys_values: Projection
    head_norms: HeadNorms | None
    output: Projection
    mlp_norm: nn.Module
    gate_up: Projection
    down: Projection
    scaling: float
    window: int | None

    @classmethod
    def of(cls, layer: Any, config: Any) -> Layer:
        """Takes apart a layer of transformers."""
        attention, mlp = layer.self_attn, layer.mlp

        def project(owner: Any, *names: str) -> Projection:
            return Projection(*(used_module(getattr(owner, name)) for name in names))

        def norms() -> HeadNorms:
            norms = used_module(attention.q_norm), used_module(attention.k_norm)
            numbers = config.num_attention_heads, config.num_key_value_heads
            return HeadNorms(*norms, *numbers, attention.scaling)

        return cls(
            input_norm=used_module(layer.input_layernorm),
            queries_keys_values=project(attention, "q_proj", "k_proj", "v_proj"),
            head_norms=norms() if hasattr(attention, "q_norm") else None,
            output=project(attention, "o_proj"),
            mlp_norm=used_module(layer.post_attention_layernorm),
            gate_up=project(mlp, "gate_proj", "up_proj"),
            down=project(mlp, "down_proj"),
            scaling=attention.scaling,
            window=_window(attention, config),
        )

    @property
    def copied(self) -> Iterator[Projection | HeadNorms]:
        """All that may be copied."""
        yield from self.projections
        if self.head_norms is not None:
            yield self.head_norms

    @property
    def projections(self) -> tuple[Projection, ...]:
        """In the order of their use."""
        return self.queries_keys_values, self.output, self.gate_up, self.down


def _window(attention: Any, config: Any) -> int | None:
    """Returns the module's sliding window: Mistral reads it from the config, Qwen stores it in the module, Llama has none."""
    if hasattr(attention, "sliding_window"):
        return attention.sliding_window
    return getattr(config, "sliding_window", None)
