"""Which runner a model gets: the fastest one that gives what a plain forward pass gives, tried on the model itself."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import torch
from transformers import PreTrainedModel

from midthought.inference.decoder import Decoder
from midthought.inference.recorded import Record
from midthought.inference.runner import CachedRunner, RecomputingRunner, Row, Runner, share_tensors, tolerance_of

logger = logging.getLogger(__name__)


def make_runner(model: PreTrainedModel, *, record: Record | None = None) -> Runner:
    """A cached runner where that gives what a plain forward gives, tried on the model itself; else the other, with a
    warning. `record`: what records its passes of decoding."""
    plain, twin = RecomputingRunner(share_tensors(model)), share_tensors(model)
    decoder = Decoder.of(twin)
    for cached in (CachedRunner(twin, decoder=decoder), CachedRunner(twin)) if decoder else (CachedRunner(twin),):
        reason = _why_not_cached(cached, plain)
        cached.clear()
        if reason is None:
            if record is not None:
                cached.record_steps(record)
            return cached
    warnings.warn(
        f"{type(model).__name__}: the key/value cache cannot be kept across calls ({reason}); "
        "every step computes the whole sequence anew, which is slow but right",
        stacklevel=2,
    )
    return plain


def _why_not_cached(cached: CachedRunner, plain: RecomputingRunner) -> str | None:
    """None where a cached forward gives what a plain one gives; else what is in the way."""
    config = plain.model.config.get_text_config()
    layer_types: list[str] | None = getattr(config, "layer_types", None)
    if layer_types and (other := set(layer_types) - {"full_attention", "sliding_attention"}):
        return f"it has layers of type {', '.join(sorted(other))}"
    try:
        difference = _largest_difference(cached, plain, config)
    except Exception as error:
        logger.debug("the cached forward failed", exc_info=True)
        return f"its attention does not take a cache of slots: {type(error).__name__}: {error}".splitlines()[0]
    if not difference <= tolerance_of(plain.model.dtype):
        return f"its log-probabilities would be wrong by {difference:.2g}"
    return _why_windows_differ(cached.cache.windows, config, layer_types)


def _largest_difference(cached: CachedRunner, plain: RecomputingRunner, config: Any) -> float:
    """Largest |Δ log-probability| over three sequences: prefilled in part, continued by one token, then by several."""
    window = getattr(config, "sliding_window", None) or 0
    base = 10 + (window if window <= 128 else 0)
    generator = torch.Generator().manual_seed(0)
    lengths = [base, base - 4, base + 3]
    sequences = [torch.randint(config.vocab_size, (length,), generator=generator).tolist() for length in lengths]
    slots = [1, 0, 3]
    largest, cuts_before = 0.0, [0, 0, 0]
    for left_out in ((5, 4, 6), (4, 3, 5), (1, 1, 0), (0, 0, 0)):
        cuts = [length - missing for length, missing in zip(lengths, left_out, strict=True)]
        rows = [
            Row(ids[:cut], before, slot)
            for ids, cut, before, slot in zip(sequences, cuts, cuts_before, slots, strict=True)
            if cut > before
        ]
        ours, theirs = cached.forward(rows), plain.forward(rows)
        step = (ours.float().log_softmax(-1) - theirs.float().log_softmax(-1)).abs().max().item()
        largest = step if not step <= largest else largest  # NaN stays
        cuts_before = cuts
    return largest


def _why_windows_differ(windows: dict[int, int | None], config: Any, layer_types: list[str] | None) -> str | None:
    """A window longer than the checked sequences leaves no trace in the numbers: compare what the layers asked for."""
    if len(windows) != config.num_hidden_layers:
        return f"{len(windows)} of its {config.num_hidden_layers} layers ask for attention the usual way"
    configured = getattr(config, "sliding_window", None)
    if layer_types:
        expected = [configured if kind == "sliding_attention" else None for kind in layer_types]
    else:
        expected = [configured] * config.num_hidden_layers
    asked = [windows[index] for index in sorted(windows)]
    return None if asked == expected else f"its layers ask for windows {asked}, its settings say {expected}"
