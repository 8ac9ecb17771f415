"""Layers of Llama-like decoders, taken apart, and copies of their weights for fast decoding.

Projections of one input are joined into one, which is faster for small models only; large ones are read in place. LoRA adapters
are merged if memory allows; else they are computed beside the base weights. The model's own tensors are never changed.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from midthought.engines.local.device import memory_bytes
from midthought.models.memory import MAX_COPIED_BYTES, MERGED_SHARE
from midthought.models.peft_weights import effective_tensors, is_adapted, used_module

_log = logging.getLogger(__name__)


class Projection:
    """Linear maps of one input with concatenated outputs; some may have adapters.

    Without a copy, weights are read in place and layers with adapters are called. The copy of a single layer without
    adapters is a view.
    """

    def __init__(self, *modules: Any) -> None:
        self.modules = modules
        self.has_adapters = any(is_adapted(module) for module in modules)
        self._sizes = [_base(module).weight.shape[0] for module in modules]
        self._laid_out: tuple[Tensor, Tensor | None] | None = None
        """`[in, out]` and `[out]`."""

    def copy(self) -> None:
        weight, bias = self._laid_out or (None, None)
        tensors = [_tensors(module) for module in self.modules]
        if len(tensors) > 1 or self.has_adapters:
            weight = _joined([its for its, _ in tensors], None if weight is None else weight.t())
            biases = [its for _, its in tensors if its is not None]
            bias = _joined(biases, bias) if biases else None
        else:
            [(weight, bias)] = tensors
        self._laid_out = weight.t(), bias

    @property
    def copied_bytes(self) -> int:
        """Size of the copy; 0 for a view."""
        if len(self.modules) == 1 and not self.has_adapters:
            return 0
        return sum(tensor.nbytes for module in self.modules for tensor in _base(module).parameters())

    @property
    def copies(self) -> tuple[Tensor | None, ...]:
        """The tensors that are read instead of the modules' tensors."""
        return self._laid_out or ()

    @property
    def weights(self) -> Sequence[Tensor] | None:
        """The weight of each map, `[out, in]`; None if outputs are more than products with them: biases, adapters that are
        called."""
        if self._laid_out is not None:
            weight, bias = self._laid_out
            return weight.t().split(self._sizes) if bias is None else None
        if self.has_adapters or any(module.bias is not None for module in self.modules):
            return None
        return [module.weight for module in self.modules]

    def __call__(self, hidden: Tensor) -> Tensor:
        """Returns the concatenated outputs, `[T, out]`, for `[T, in]`."""
        if self._laid_out is None:
            outs = self._outputs(hidden)
            return torch.cat(outs, dim=-1) if len(outs) > 1 else outs[0]
        weight, bias = self._laid_out
        return torch.mm(hidden, weight) if bias is None else torch.addmm(bias, hidden, weight)

    def parts(self, hidden: Tensor) -> Sequence[Tensor]:
        """Returns the outputs of each map; their rows may be parts of longer rows."""
        return self._outputs(hidden) if self._laid_out is None else self(hidden).split(self._sizes, dim=-1)

    def added(self, hidden: Tensor, onto: Tensor) -> Tensor:
        """Adds the outputs of the only map to `onto`, `[T, out]`, in place."""
        [module] = self.modules
        if self._laid_out is None and is_adapted(module):
            return onto.add_(module(hidden))
        weight, bias = self._laid_out or (module.weight.t(), module.bias)
        onto.addmm_(hidden, weight)
        return onto if bias is None else onto.add_(bias)

    def _outputs(self, hidden: Tensor) -> list[Tensor]:
        return [
            module(hidden) if is_adapted(module) else F.linear(hidden, module.weight, module.bias)
            for module in self.modules
        ]


def _base(module: Any) -> Any:
    """Returns the linear layer without its adapters."""
    return module.get_base_layer() if is_adapted(module) else module


def _tensors(module: Any) -> tuple[Tensor, Tensor | None]:
    """Returns the weight and bias that a linear layer computes with, including its adapters."""
    if not is_adapted(module):
        return module.weight, module.bias
    tensors = effective_tensors(module)
    return tensors["weight"], tensors.get("bias")


class HeadNorms:
    """RMS norms (arXiv 1910.07467) of the heads of queries and keys, `[T, num_queries + num_keys, head_dim]`.

    `scaling`: factor of the attention scores; the copied weights of the queries include it.
    """

    def __init__(self, query_norm: Any, key_norm: Any, num_queries: int, num_keys: int, scaling: float) -> None:
        self.modules = (query_norm, key_norm)
        self._numbers = (num_queries, num_keys)
        self._scaling = scaling
        self._weight: Tensor | None = None

    def copy(self) -> None:
        query_norm, key_norm = self.modules
        weights = (self._scaling * query_norm.weight, key_norm.weight)
        pairs = zip(weights, self._numbers, strict=True)
        self._weight = _joined([weight.expand(number, -1) for weight, number in pairs], self._weight)

    has_adapters = False

    @property
    def copied_bytes(self) -> int:
        """Size of the copy."""
        return sum(tensor.nbytes for norm in self.modules for tensor in norm.parameters())

    @property
    def copies(self) -> tuple[Tensor | None, ...]:
        """The tensors that are read instead of the modules' tensors."""
        return (self._weight,)

    def __call__(self, heads: Tensor) -> tuple[Tensor, float]:
        """Returns the normalized heads, and the remaining factor of the scores."""
        if self._weight is None or heads.dtype != torch.float32:
            parts = zip(self.modules, heads.split(self._numbers, dim=1), strict=True)
            return torch.cat([normed(norm, part) for norm, part in parts], dim=1), self._scaling
        return rms_normed(heads, self._weight, self.modules[0].variance_epsilon), 1.0


def _joined(parts: Sequence[Tensor], before: Tensor | None) -> Tensor:
    """Concatenates the parts, if possible into the memory of `before`, because recorded passes read that address."""
    is_alike = before is not None and before.dtype == parts[0].dtype and before.device == parts[0].device
    return torch.cat(list(parts), out=before) if is_alike else torch.cat(list(parts))


def normed(norm: Any, hidden: Tensor) -> Tensor:
    """Applies an RMS norm (arXiv 1910.07467). In half precision it calls the module, because modules round at different
    steps."""
    return rms_normed(hidden, norm.weight, norm.variance_epsilon) if hidden.dtype == torch.float32 else norm(hidden)


def rms_normed(hidden: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Computes `weight · hidden / √(mean(hidden²) + epsilon)` over the last dimension, in fp32.

    On a CPU, torch's own function consists of a dozen operations; these four take half the time.
    """
    if hidden.device.type != "cpu":
        return F.rms_norm(hidden, hidden.shape[-1:], None, epsilon) * weight
    length = torch.linalg.vector_norm(hidden, dim=-1, keepdim=True)
    mean_of_squares = torch.addcmul(_constant(epsilon), length, length, value=1 / hidden.shape[-1])
    return torch.mul(hidden, mean_of_squares.rsqrt_()).mul_(weight)


@functools.cache
def _constant(value: float) -> Tensor:
    return torch.tensor(value)


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


class WeightCopies:
    """Keeps copies equal to the current weights.

    Copies everything if it is small (`MAX_COPIED_BYTES`). For large models it copies only projections with adapters, if memory
    allows.
    """

    def __init__(self, copied: Sequence[Projection | HeadNorms], *, merge_adapters: bool = True) -> None:
        if not merge_adapters:
            copied = [each for each in copied if not each.has_adapters]
        merged = [each for each in copied if each.has_adapters]
        num_bytes = sum(each.copied_bytes for each in copied)
        self._copied: Sequence[Projection | HeadNorms] = (
            copied if num_bytes <= MAX_COPIED_BYTES else _if_they_fit(merged)
        )
        self._originals = [tensor for each in self._copied for module in each.modules for tensor in module.parameters()]
        self._states: list[tuple[int, int]] | None = None

    def renew(self) -> None:
        """Copies all tensors again if one was changed in place or moved to other memory."""
        states = [(0 if tensor.is_inference() else tensor._version, tensor.data_ptr()) for tensor in self._originals]
        if states != self._states:
            for each in self._copied:
                each.copy()
            self._states = states

    def addresses(self) -> list[int]:
        """Returns the addresses of the copies, after copying what has changed."""
        self.renew()
        return [copy.data_ptr() for each in self._copied for copy in each.copies if copy is not None]

    def forget(self) -> None:
        """Forces a copy at the next `renew`: tensors do not count writes through `.data` or by fused optimizers as changes."""
        self._states = None


def _if_they_fit(merged: Sequence[Projection | HeadNorms]) -> Sequence[Projection | HeadNorms]:
    """Returns the projections with adapters if there is memory for merged copies of all of them, else none."""
    if not merged:
        return ()
    num_bytes = sum(each.copied_bytes for each in merged)
    free = memory_bytes(next(merged[0].modules[0].parameters()).device)
    if num_bytes <= MERGED_SHARE * free:
        return merged
    _log.warning(
        "adapters are computed beside the base weights, which is slower: merged copies would take %.1f GiB of %.1f GiB free",
        num_bytes / 2**30,
        free / 2**30,
    )
    return ()
