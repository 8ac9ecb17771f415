"""Chooses a model's runner: the fastest one that is as exact as the model's own forward pass, measured by log-probabilities."""

from __future__ import annotations

import copy
import itertools
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from midthought.engines.local.cuda_graphs import Record
from midthought.engines.local.decoder import Decoder
from midthought.engines.local.runner import CachedRunner, RecomputingRunner, Row, Runner, share_tensors
from midthought.engines.local.sampling import expected_difference
from midthought.errors import EngineError
from midthought.models.peft_weights import base_of

ROUNDING = 1e-4
"""Deviation from float32, in nats, that is always accepted: additions in another order."""
NOT_CAUSAL = 0.01
"""Deviation in float32, in nats, above which a token's distribution depends on the tokens after it."""
logger = logging.getLogger(__name__)


def make_runner(
    model: PreTrainedModel, *, new_record: Callable[[], Record] | None = None, merge_adapters: bool = True
) -> Runner:
    """Returns the first of these that deviates from float32 about as little as the model's own forward pass does: the fused
    decoder, the model's own layers with a key/value cache, the model without a cache. Warns if it is not the first possible.

    `new_record`: returns a function that records passes of few tokens (`cuda_graphs`). `merge_adapters`: as in `LocalEngine`.
    Raises EngineError for a PEFT model that learns a prompt, and for a model that is not causal.
    """
    try:
        model = base_of(model)
    except ValueError as error:
        raise EngineError(str(error)) from error
    plain, twin = RecomputingRunner(share_tensors(model)), share_tensors(model)
    trial = Trial(plain)
    for decoder, loss in _ways(twin, merge_adapters=merge_adapters):
        cached = CachedRunner(twin, decoder=decoder)
        reason = trial.why_not(cached)
        if reason is None:
            if new_record is not None:
                cached.record_steps(new_record, tolerance=2 * trial.bound.largest)
            return cached
        warnings.warn(
            f"{type(model).__name__} in {str(model.dtype).removeprefix('torch.')}: {loss.format(reason)}", stacklevel=2
        )
    return plain


def _ways(twin: PreTrainedModel, *, merge_adapters: bool) -> Iterator[tuple[Decoder | None, str]]:
    """Yields decoders, None for the model's own layers, and what it means if one cannot be used."""
    decoder = Decoder.of(twin, merge_adapters=merge_adapters)
    if decoder is not None and decoder.uses_kernels:
        yield decoder, "decoding is slower: the Triton kernels are not used ({})"
        decoder = Decoder.of(twin, merge_adapters=merge_adapters, fused_kernels=False)
    if decoder is not None:
        yield decoder, "decoding calls the model's own layers, which is slower: the fused decoder is not used ({})"
    yield (
        None,
        "the key/value cache cannot be kept across calls ({}); every step computes the whole sequence anew, which is slow but "
        "right",
    )


class Deviation(NamedTuple):
    """Expected |Δ log-probability| of a sampled token, in nats, over several positions."""

    mean: float
    largest: float

    @classmethod
    def of(cls, found: Sequence[Tensor], reference: Sequence[Tensor]) -> Deviation:
        """Computes `Σ_v p(v) |log q(v) - log p(v)|` from logits `[V]` and float32 log-probabilities `[V]`, one each per
        position.

        Weighting by the reference's probability p ignores tokens that are never sampled, whose tiny probabilities are the
        least exact. The result is NaN if a logit is NaN.
        """
        each = torch.stack([expected_difference(one, other) for one, other in zip(found, reference, strict=True)])
        return cls(each.mean().item(), each.max().item())


class Trial:
    """Measures a runner on three sequences: prefilled in part, continued by one token several times, then by several at
    once."""

    def __init__(self, plain: RecomputingRunner) -> None:
        self._plain = plain
        self._config = config = plain.model.config.get_text_config()
        window = getattr(config, "sliding_window", None) or 0
        base = 12 + (window if window <= 128 else 0)
        lengths = (base, base - 4, base + 3)
        generator = torch.Generator().manual_seed(0)
        sequences = [torch.randint(config.vocab_size, (length,), generator=generator).tolist() for length in lengths]
        self._rounds: list[list[Row]] = []
        before: tuple[int, ...] = (0, 0, 0)
        for left_out in ((7, 6, 7), (6, 5, 6), (5, 4, 5), (4, 3, 4), (1, 1, 0), (0, 0, 0)):
            cuts = tuple(length - missing for length, missing in zip(lengths, left_out, strict=True))
            parts = zip(sequences, cuts, before, (1, 0, 3), strict=True)
            self._rounds.append([Row(ids[:cut], start, slot) for ids, cut, start, slot in parts if cut > start])
            before = cuts
        with_other_end = [*sequences[0][:-4], *sequences[2][:4]]
        *whole, again, other = float32_logprobs(plain.model, [*sequences, sequences[0], with_other_end])
        by_chance, by_end = (expected_difference(each[-5], whole[0][-5]) for each in (again, other))
        if by_end > NOT_CAUSAL + 2 * by_chance:
            raise EngineError(
                f"{type(plain.model).__name__} is not causal: what it predicts depends on the tokens after it; give a decoder "
                "(of BERT and similar models, one with is_decoder=true in its config.json)"
            )
        logprobs = dict(zip((1, 0, 3), whole, strict=True))
        self._reference = [logprobs[row.slot][len(row.token_ids) - 1] for row in itertools.chain(*self._rounds)]
        self.own = self.deviation(plain)
        """Deviation of the model's own forward pass."""
        self.bound = Deviation(2 * self.own.mean + ROUNDING, 3 * self.own.largest + ROUNDING)
        """Largest deviation of a runner that is accepted."""

    def deviation(self, runner: Runner) -> Deviation:
        found: list[Tensor] = [logits for rows in self._rounds for logits in runner.forward(rows)]
        return Deviation.of(found, self._reference)

    def why_not(self, cached: CachedRunner) -> str | None:
        """None if the cached runner computes what the model's own forward pass computes; else the reason. Clears its cache."""
        layer_types: list[str] | None = getattr(self._config, "layer_types", None)
        if layer_types and (other := set(layer_types) - {"full_attention", "sliding_attention"}):
            return f"it has layers of type {', '.join(sorted(other))}"
        try:
            found = self.deviation(cached)
        except Exception as error:
            logger.debug("the cached forward failed", exc_info=True)
            return f"its attention does not take a cache of slots: {type(error).__name__}: {error}".splitlines()[0]
        finally:
            cached.clear()
        if not (found.mean <= self.bound.mean and found.largest <= self.bound.largest):
            return (
                f"its log-probabilities would be wrong by {found.mean:.2g} nats on average and up to {found.largest:.2g}; those "
                f"of the model's own forward pass are off by {self.own.mean:.2g} and {self.own.largest:.2g}"
            )
        return _why_windows_differ(cached.cache.windows, self._config, layer_types)


def _why_windows_differ(windows: dict[int, int | None], config: Any, layer_types: list[str] | None) -> str | None:
    """Returns the reason if the layers' sliding windows differ from the config. Windows longer than the test sequences do
    not change the numbers."""
    if len(windows) != config.num_hidden_layers:
        return f"{len(windows)} of its {config.num_hidden_layers} layers ask for attention the usual way"
    configured = getattr(config, "sliding_window", None)
    if layer_types:
        expected = [configured if kind == "sliding_attention" else None for kind in layer_types]
    else:
        expected = [configured] * config.num_hidden_layers
    asked = [windows[index] for index in sorted(windows)]
    return None if asked == expected else f"its layers ask for windows {asked}, its settings say {expected}"


# -- log-probabilities in float32 ----------------------------------------------------------------------------------


@torch.no_grad()
def float32_logprobs(model: PreTrainedModel, sequences: Sequence[Sequence[int]]) -> list[Tensor]:
    """Returns `[length, V]` float32 log-probabilities after each token of each sequence.

    The weights of one layer at a time are converted to float32, so it needs little more memory than the model. Quantized
    weights stay as they are.
    """
    twin = _over_the_same_memory(model)
    for module, parameters in _units(twin):
        if halves := [parameter for parameter in parameters if _is_half(parameter)]:
            _widen(module, halves)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")  # no TF32
    try:
        return [
            twin(input_ids=torch.tensor([list(ids)], device=model.device), use_cache=False)
            .logits[0]
            .float()
            .log_softmax(-1)
            for ids in sequences
        ]
    finally:
        torch.set_float32_matmul_precision(before)


def _over_the_same_memory(model: PreTrainedModel) -> Any:
    """Returns a copy of the modules in eval mode, with other parameter objects over the same memory, and buffers in float32."""
    memo: dict[int, Tensor] = {}
    for tensor in itertools.chain(model.parameters(), model.buffers()):
        if not _is_half(tensor):
            memo[id(tensor)] = tensor
        elif isinstance(tensor, nn.Parameter):
            memo[id(tensor)] = nn.Parameter(tensor.detach(), requires_grad=False)
        else:
            memo[id(tensor)] = tensor.float()
    return copy.deepcopy(model, memo).eval()


def _widen(module: nn.Module, parameters: list[nn.Parameter]) -> None:
    """Gives the module float32 parameters and inputs while it is called.

    A model that casts inputs to a weight's type before the call casts them to half precision.
    """
    compute = module.forward

    def forward(*inputs: Any, **options: Any) -> Any:
        kept = [parameter.data for parameter in parameters]
        for parameter in parameters:
            parameter.data = parameter.data.float()
        try:
            return compute(*map(_wide, inputs), **{name: _wide(each) for name, each in options.items()})
        finally:
            for parameter, data in zip(parameters, kept, strict=True):
                parameter.data = data

    module.forward = forward


def _wide(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and _is_half(value) else value


def _units(module: nn.Module) -> Iterator[tuple[nn.Module, list[nn.Parameter]]]:
    """Yields whole decoder layers, and every other module with the parameters that it holds itself."""
    if isinstance(module, GradientCheckpointingLayer):
        yield module, list(module.parameters())
        return
    yield module, list(module.parameters(recurse=False))
    for child in module.children():
        yield from _units(child)


def _is_half(tensor: Tensor) -> bool:
    return tensor.dtype in (torch.bfloat16, torch.float16)
