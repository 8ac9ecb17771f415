"""Computes a model's log-probabilities in float32, one layer at a time, and the deviation of others from them.

Does not depend on an engine or a cache.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer


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


def expected_difference(logits: Tensor, reference: Tensor) -> Tensor:
    """Expected |Δ log-probability| `[...]` of tokens drawn from the reference: logits and log-probabilities `[..., V]`."""
    logprobs = logits.float().log_softmax(-1)
    return (reference.exp() * (logprobs - reference).abs().nan_to_num(posinf=0.0)).sum(-1)


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
