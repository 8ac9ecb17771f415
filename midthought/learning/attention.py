"""Attention for packed sequences: rows concatenated into one long row, each attending only to itself.

Registered in transformers' AttentionInterface. Receives the row lengths through the model's keyword arguments: there is no
padding, and no row sees another. In half precision on a GPU all rows are one call (`models/varlen_attention.py`); otherwise
torch's attention runs on every row. (On a CPU this is as fast as padded blocks of rows of similar length, and faster if
lengths differ.) Does not depend on a batch or a loss.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from midthought.models.varlen_attention import RowBounds, attend_rows, is_usable

ATTENTION_NAME = "midthought_rows"
LAYER_TYPES = {"full_attention", "sliding_attention"}
REFUSED = ("softcap", "s_aux", "position_bias")
"""Options of attention that `sdpa` does not compute."""
PROBE_LENGTHS = (3, 7, 5)
TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-4}
"""Maximum difference in the probe, relative to the largest output; half precision: 0.05."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Rows:
    """The number of tokens of each row, and its parent: an earlier row, whose keys and values it sees before its own.

    An object, so that compiled layers do not depend on the numbers.
    """

    lengths: tuple[int, ...]
    parents: tuple[int | None, ...]
    key_lengths: tuple[int, ...]
    bounds: RowBounds
    key_bounds: RowBounds
    masks: dict[Any, Tensor] = field(default_factory=dict, repr=False, compare=False)
    """Masks of rows with a parent, which all layers share: one per layer would take more memory than the row."""

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device, parents: Sequence[int | None] = ()) -> Rows:
        parents = tuple(parents) or (None,) * len(lengths)
        pairs = zip(lengths, parents, strict=True)
        keys = tuple(length if parent is None else lengths[parent] + length for length, parent in pairs)
        return cls(tuple(lengths), parents, keys, RowBounds.of(lengths, device), RowBounds.of(keys, device))

    def with_parents(self, keys: Tensor) -> Tensor:
        """[1, kv_heads, N, D] -> [1, kv_heads, S, D]: every row's keys or values after its parent's."""
        if self.key_lengths == self.lengths:
            return keys
        own = keys.split(self.lengths, dim=2)
        pairs = zip(self.parents, own, strict=True)
        return torch.cat(
            [each for parent, row in pairs for each in ((row,) if parent is None else (own[parent], row))], dim=2
        )

    def mask(self, query: Tensor, key: Tensor) -> Tensor:
        """Returns the mask [1, 1, n, m] of the last n of m tokens, 0 or -inf: a token sees itself and all tokens before it."""
        kind = query.dtype, query.shape[2], key.shape[2]
        if kind not in self.masks:
            unseen = query.new_full((query.shape[2], key.shape[2]), -torch.inf)
            self.masks[kind] = unseen.triu(key.shape[2] - query.shape[2] + 1)[None, None]
        return self.masks[kind]


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
    Each call appends its `sliding_window` to `windows`.

    Raises UnpackableError if the model does not pass `rows` on, or if the kind of attention is not supported.
    """
    if rows is None:
        raise UnpackableError("it does not pass keyword arguments on to its attention")
    if strange := [name for name in REFUSED if options.get(name) is not None]:
        raise UnpackableError(f"attention with {strange[0]!r}")
    if windows is not None:
        windows.append(sliding_window)
    key, value = rows.with_parents(key), rows.with_parents(value)
    queries, keys, values = (each[0].transpose(0, 1) for each in (query, key, value))
    if not dropout and is_usable(queries, keys, values, sliding_window):
        attended = attend_rows(
            queries, keys, values, rows.bounds, rows.key_bounds, scale=scaling, window=sliding_window
        )
        return attended[None], None
    if (num_sharing := query.shape[1] // key.shape[1]) > 1:
        key, value = (each.repeat_interleave(num_sharing, dim=1) for each in (key, value))
    outputs = []
    lengths = (rows.lengths, rows.key_lengths, rows.key_lengths)
    parts = (tensor.split(each, dim=2) for tensor, each in zip((query, key, value), lengths, strict=True))
    for of_queries, of_keys, of_values in zip(*parts, strict=True):
        has_parent = of_queries.shape[2] < of_keys.shape[2]
        mask = rows.mask(of_queries, of_keys) if has_parent else _window(of_queries, sliding_window)
        attended = scaled_dot_product_attention(
            of_queries, of_keys, of_values, mask, dropout, is_causal=mask is None, scale=scaling
        )
        outputs.append(attended.transpose(1, 2))
    return torch.cat(outputs, dim=1), None


def _window(query: Tensor, size: int | None) -> Tensor | None:
    """Returns the mask [1, 1, n, n] of a row longer than the window: a token sees itself and `size` - 1 tokens before it."""
    length = query.shape[2]
    if size is None or length <= size:
        return None
    everywhere = torch.ones(length, length, dtype=torch.bool, device=query.device)
    return everywhere.tril().triu(1 - size)[None, None]


AttentionInterface.register(ATTENTION_NAME, torch.compiler.disable(row_attention))


@contextmanager
def attending_by_rows(*models: Any) -> Iterator[None]:
    """Makes the models attend by rows within the context. Call them with `row_arguments`, which only this attention supports."""
    before = [(config, config._attn_implementation) for model in models for config in _configs(model)]
    try:
        for config, _ in before:
            config._attn_implementation = ATTENTION_NAME
        yield
    finally:
        for config, name in before:
            config._attn_implementation = name


def row_arguments(lengths: Sequence[int], device: torch.device, parents: Sequence[int | None] = ()) -> dict[str, Any]:
    """Returns the keyword arguments of a model that attends by rows (`Rows`), in addition to the tokens [1, sum of lengths]."""
    rows = Rows.of(lengths, device, parents)
    pairs = zip(rows.lengths, rows.key_lengths, strict=True)
    positions = torch.cat([torch.arange(end - length, end, device=device) for length, end in pairs])
    return {"position_ids": positions[None], "rows": rows}


@torch.no_grad()
def can_pack(model: Any) -> bool:
    """Whether packed rows give the same outputs as padded rows. Runs the model on three short rows of random tokens.

    False if a layer mixes tokens by other means than attention, if the kind of attention is not supported, or if the
    outputs differ. The reason is logged.
    """
    config = model.config.get_text_config()
    others = set(getattr(config, "layer_types", None) or ()) - LAYER_TYPES
    reason = f"it has layers of the type {min(others)!r}" if others else _difference(model, config)
    if reason:
        _log.warning("%s cannot be packed: %s; rows are padded", type(model).__name__, reason)
    return not reason


@torch.no_grad()
def can_share(model: Any) -> bool:
    """Whether rows may attend to the keys of another row before their own (`Rows.parents`), for a model that `can_pack`.

    False if layers see only a window, or if the outputs differ. The reason is logged.
    """
    reason = _difference(model, model.config.get_text_config(), num_shared=2)
    if reason:
        _log.warning("prompts of %s are computed once per sample: %s", type(model).__name__, reason)
    return not reason


def _difference(model: Any, config: Any, num_shared: int = 0) -> str:
    """Returns the reason why outputs of packed and padded rows differ; empty if they are equal. `num_shared`: the first tokens
    of all rows are one row, which the others share."""
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(0)
    token_ids = torch.randint(
        config.vocab_size, (len(PROBE_LENGTHS), num_shared + max(PROBE_LENGTHS)), generator=generator
    )
    shared = token_ids[0, :num_shared]
    token_ids[:, :num_shared] = shared
    own = torch.arange(-num_shared, max(PROBE_LENGTHS))
    is_own = (own >= 0) & (own < torch.tensor(PROBE_LENGTHS)[:, None])
    alone = _outputs(model, token_ids.to(device))[is_own.to(device)]
    windows: list[int | None] = []
    if num_shared:
        arguments = row_arguments((num_shared, *PROBE_LENGTHS), device, (None, *(0 for _ in PROBE_LENGTHS)))
    else:
        arguments = row_arguments(PROBE_LENGTHS, device)
    together_ids = torch.cat([shared, token_ids[is_own]])[None].to(device)
    try:
        with attending_by_rows(model):
            together = _outputs(model, together_ids, **arguments, windows=windows)
    except UnpackableError as error:
        return str(error)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # architectures differ in what they require of their arguments
        return f"its attention fails: {type(error).__name__}: {error}".splitlines()[0]
    if len(windows) != config.num_hidden_layers:
        return (
            f"{len(windows)} of its {config.num_hidden_layers} layers attend through transformers' AttentionInterface"
        )
    if num_shared and any(window is not None for window in windows):
        return "it has layers that see only a window"
    has_window = getattr(config, "sliding_window", None) is not None
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * (config.num_hidden_layers * has_window)
    num_sliding = kinds.count("sliding_attention")
    if sum(window is not None for window in windows) < num_sliding:
        return "its layers do not tell their attention how far it sees"
    difference = float((together[0, num_shared:] - alone).abs().max() / alone.abs().max())
    tolerance = TOLERANCES.get(next(model.parameters()).dtype, 0.05)
    return "" if difference <= tolerance else f"outputs differ by {difference:.1g} of the largest"


def _outputs(model: Any, token_ids: Tensor, **arguments: Any) -> Tensor:
    """Returns the logits of a causal LM, or the hidden states of a trunk."""
    with torch.autocast(token_ids.device.type, enabled=False):
        outputs = model(input_ids=token_ids, use_cache=False, **arguments)
    found: Tensor = outputs.logits if hasattr(outputs, "logits") else outputs.last_hidden_state
    return found.double()


def _configs(model: Any) -> list[Any]:
    """Returns every configuration from which one of the model's modules reads its attention implementation."""
    found = [module.config for module in model.modules() if hasattr(module, "config")]
    return list({id(config): config for config in found if hasattr(config, "_attn_implementation")}.values())
