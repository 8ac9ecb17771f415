"""Attention over rows that stand one after the other in one long row, each by itself: packed sequences.

Registered in transformers' AttentionInterface, it is told the rows through the model's keyword arguments and
runs torch's attention on every row: nothing is padded, and no row sees another. (On a CPU this is as quick as
gathering rows of like length into padded blocks, and quicker where lengths differ.) Knows no batch and no loss.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

ATTENTION_NAME = "midthought_rows"
LAYER_TYPES = {"full_attention", "sliding_attention"}
REFUSED = ("softcap", "s_aux", "position_bias")
"""Attention of these kinds is not that of `sdpa`."""
PROBE_LENGTHS = (3, 7, 5)
TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-4}
"""Of the probe, relative to the largest figure; half precision: 0.05."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Rows:
    """How many tokens each row has. An object, so that compiled layers do not depend on the numbers."""

    lengths: tuple[int, ...]


class UnpackableError(TypeError):
    """This attention cannot be computed row by row."""


def row_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    rows: Rows | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    windows: list[int | None] | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Causal attention within `rows`: queries [1, heads, N, D], keys and values [1, kv_heads, N, D] -> [1, N, heads, D].
    `windows` collects the calls.

    Raises UnpackableError where the rows were not passed on, or the attention is of a kind that is not known here.
    """
    if rows is None:
        raise UnpackableError("it does not pass keyword arguments on to its attention")
    if strange := [name for name in REFUSED if options.get(name) is not None]:
        raise UnpackableError(f"attention with {strange[0]!r}")
    if windows is not None:
        windows.append(sliding_window)
    if (num_sharing := query.shape[1] // key.shape[1]) > 1:
        key, value = (each.repeat_interleave(num_sharing, dim=1) for each in (key, value))
    outputs = []
    parts = (tensor.split(rows.lengths, dim=2) for tensor in (query, key, value))
    for of_queries, of_keys, of_values in zip(*parts, strict=True):
        mask = _window(of_queries, sliding_window)
        attended = scaled_dot_product_attention(
            of_queries, of_keys, of_values, mask, dropout, is_causal=mask is None, scale=scaling
        )
        outputs.append(attended.transpose(1, 2))
    return torch.cat(outputs, dim=1), None


def _window(query: Tensor, size: int | None) -> Tensor | None:
    """The mask [1, 1, n, n] of a row that is longer than the window: a token sees itself and `size` - 1 before it."""
    length = query.shape[2]
    if size is None or length <= size:
        return None
    everywhere = torch.ones(length, length, dtype=torch.bool, device=query.device)
    return everywhere.tril().triu(1 - size)[None, None]


AttentionInterface.register(ATTENTION_NAME, torch.compiler.disable(row_attention))


@contextmanager
def attending_by_rows(*models: Any) -> Iterator[None]:
    """Within it the models attend by rows: to be called with `row_arguments`, which no other attention understands."""
    before = [(config, config._attn_implementation) for model in models for config in _configs(model)]
    try:
        for config, _ in before:
            config._attn_implementation = ATTENTION_NAME
        yield
    finally:
        for config, name in before:
            config._attn_implementation = name


def row_arguments(lengths: Sequence[int], device: torch.device) -> dict[str, Any]:
    """What a model that attends by rows is called with besides the tokens [1, sum of lengths]."""
    positions = torch.cat([torch.arange(length, device=device) for length in lengths])
    return {"position_ids": positions[None], "rows": Rows(tuple(lengths))}


@torch.no_grad()
def can_pack(model: Any) -> bool:
    """Whether rows side by side give what each gives alone: the model is asked, on three short rows of made-up tokens.

    No where a layer mixes tokens by other means than attention, where attention has parts that are not known here, or
    where the figures differ. The log says why.
    """
    config = model.config.get_text_config()
    others = set(getattr(config, "layer_types", None) or ()) - LAYER_TYPES
    reason = f"it has layers of the type {min(others)!r}" if others else _difference(model, config)
    if reason:
        _log.warning("%s cannot be packed: %s; rows are padded", type(model).__name__, reason)
    return not reason


def _difference(model: Any, config: Any) -> str:
    """Why packed figures are not those of padded rows; empty where they are."""
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(0)
    token_ids = torch.randint(config.vocab_size, (len(PROBE_LENGTHS), max(PROBE_LENGTHS)), generator=generator)
    is_there = torch.arange(max(PROBE_LENGTHS)) < torch.tensor(PROBE_LENGTHS)[:, None]
    alone = _figures(model, token_ids.to(device))[is_there.to(device)]
    windows: list[int | None] = []
    arguments = {**row_arguments(PROBE_LENGTHS, device), "windows": windows}
    try:
        with attending_by_rows(model):
            together = _figures(model, token_ids[is_there][None].to(device), **arguments)
    except (TypeError, ValueError) as error:
        return str(error)
    if len(windows) != config.num_hidden_layers:
        return (
            f"{len(windows)} of its {config.num_hidden_layers} layers attend through transformers' AttentionInterface"
        )
    num_sliding = (getattr(config, "layer_types", None) or []).count("sliding_attention")
    if sum(window is not None for window in windows) < num_sliding:
        return "its layers do not tell their attention how far it sees"
    difference = float((together[0] - alone).abs().max() / alone.abs().max())
    tolerance = TOLERANCES.get(next(model.parameters()).dtype, 0.05)
    return "" if difference <= tolerance else f"figures differ by {difference:.1g} of the largest"


def _figures(model: Any, token_ids: Tensor, **arguments: Any) -> Tensor:
    """Logits of a causal LM, hidden states of its trunk."""
    with torch.autocast(token_ids.device.type, enabled=False):
        outputs = model(input_ids=token_ids, use_cache=False, **arguments)
    figures: Tensor = outputs.logits if hasattr(outputs, "logits") else outputs.last_hidden_state
    return figures.double()


def _configs(model: Any) -> list[Any]:
    """Every configuration that one of the model's modules looks its attention up in."""
    found = [module.config for module in model.modules() if hasattr(module, "config")]
    return list({id(config): config for config in found if hasattr(config, "_attn_implementation")}.values())
