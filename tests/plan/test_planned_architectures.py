"""Activations of each architecture, as a forward pass keeps them, and the local engine's copies of weights, against tensors."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import product
from typing import Any
from unittest.mock import patch

import pytest
import torch
from representatives import representatives

from benchmarks.plan import TRAINING, WORK, make_policy, make_trajectories, memory_of
from midthought.config import TrainingConfig
from midthought.engines.local.runner_selection import make_runner
from midthought.learning import attention, fused
from midthought.learning.attention import attending_by_rows
from midthought.learning.batch import TokenBatch
from midthought.learning.forward import ModelInputs, hidden_states
from midthought.learning.fused import FusedModules
from midthought.learning.learner import Learner
from midthought.learning.model import add_adapters
from midthought.plan.memory import Memory
from midthought.plan.shape import Shape

SIZES = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000}
CONFIGS: dict[str, dict[str, Any]] = {
    "qwen3": {"head_dim": 16, "intermediate_size": 192},
    "llama": {"intermediate_size": 192},
}
NUM_TOKENS = (128, 385)
"""Of a prompt and a response; the last token is not computed."""


def model_of(kind: str, num_layers: int, dtype: torch.dtype, lora_rank: int) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(kind, **SIZES, **CONFIGS[kind], num_hidden_layers=num_layers)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
        return add_adapters(model, lora_rank, 16) if lora_rank else model


def kept_bytes(model: Any, context: Callable[[], AbstractContextManager[Any]] = nullcontext) -> int:
    """Bytes that a packed forward pass of one row keeps for the backward pass, without parameters.

    `context`: of the forward pass.
    """
    prompt, response = NUM_TOKENS
    sizes = f"hidden_size=64 num_layers=1 num_heads=2 vocab_size={SIZES['vocab_size']}"
    plan = memory_of(f"{sizes} {WORK} batch_size=1 prompt_tokens={prompt} max_tokens={response}")
    Learner(model, None, None, TrainingConfig(learning_rate=1e-5, warmup_steps=0, adv_estimator="grpo"))
    batch = TokenBatch.from_trajectories(make_trajectories(plan))
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    kept: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept)
    with context(), FusedModules(model).active(), hooks, attending_by_rows(model):
        hidden_states(model, ModelInputs.of(batch, packed=True))
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


class Norm(torch.autograd.Function):
    """An RMS norm that keeps what CUDA's kernel keeps: input, weight, and a float32 root per row."""

    @staticmethod
    def forward(context: Any, hidden: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        root = torch.rsqrt(hidden.float().pow(2).mean(-1, keepdim=True) + epsilon)
        context.save_for_backward(hidden, weight, root)
        return (hidden.float() * root).to(hidden.dtype) * weight


class Attention(torch.autograd.Function):
    """Keeps what flash attention of several rows keeps: queries, keys, values, outputs and their log-sum-exp. Computes none."""

    @staticmethod
    def forward(context: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        attended = torch.zeros_like(query)
        context.save_for_backward(query, key, value, attended, torch.zeros(query.shape[:2]))
        return attended


@contextmanager
def fused_on_a_cpu() -> Iterator[None]:
    """Fuses modules and attention as on a GPU."""
    with (
        patch.object(fused, "DEVICES", {"cpu"}),
        patch(
            "torch.nn.functional.rms_norm", lambda hidden, size, weight, epsilon: Norm.apply(hidden, weight, epsilon)
        ),
        patch.object(attention, "is_usable", lambda query, key, value, window: True),
        patch.object(
            attention, "attend_rows", lambda query, key, value, *rows, **options: Attention.apply(query, key, value)
        ),
    ):
        yield


WAYS = [("cpu", torch.float32, 0), ("cpu", torch.bfloat16, 8), ("gpu", torch.bfloat16, 0), ("gpu", torch.bfloat16, 8)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("kind", "way"), representatives(product(CONFIGS, WAYS), *product(CONFIGS, WAYS[:1]), ("qwen3", WAYS[3]))
)
def test_a_layer_keeps_at_most_the_bytes_that_are_planned(kind, way):
    """The bytes of 4 layers: 6 layers' less 2 layers'."""
    device, dtype, lora_rank = way
    context = fused_on_a_cpu if device == "gpu" else nullcontext
    few, many = (kept_bytes(model_of(kind, number, dtype, lora_rank), context) for number in (2, 6))
    shape = Shape.from_config({"model_type": kind, **SIZES, **CONFIGS[kind], "num_hidden_layers": 4})
    given = {**TRAINING, "dtype": str(dtype).removeprefix("torch."), "lora_rank": lora_rank}
    memory = Memory(shape=shape, device=device, **given)
    adapters = memory.adapter_parameters * memory.width if device == "gpu" else 0
    planned = (sum(NUM_TOKENS) - 1) * 4 * memory.layer + adapters
    assert many - few <= planned <= 1.5 * (many - few)


# -- copies of weights that the local engine makes ------------------------------------------------------------------

SIZE = "hidden_size=256 num_layers=4 num_heads=8 num_kv_heads=4 head_dim=32 intermediate_size=768 vocab_size=4000"
TABLE_OF_TURNS = 1024 * 2 * 32
"""Numbers of the sines and cosines that the engine keeps, not planned."""


def alive_bytes() -> int:
    """Bytes of all tensors that Python can reach, without those that a compiler keeps in place of real ones."""
    gc.collect()
    plain = (torch.Tensor, torch.nn.Parameter)
    tensors = [each for each in gc.get_objects() if type(each) in plain and not each.is_meta]
    return sum({each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}.values())


@pytest.mark.parametrize(
    ("dtype", "lora_rank"),
    [
        ("float32", 0),
        ("bfloat16", 8),
        pytest.param("bfloat16", 0, marks=pytest.mark.slow),
        pytest.param("float32", 8, marks=pytest.mark.slow),
    ],
)
def test_the_engines_copies_have_the_planned_size(dtype, lora_rank):
    memory = memory_of(SIZE, "device=cpu", f"dtype={dtype}", f"lora_rank={lora_rank}")
    policy = make_policy(memory.shape, getattr(torch, dtype))
    if lora_rank:
        add_adapters(policy, lora_rank, 16)
    with torch.no_grad():
        before = alive_bytes()
        runner = make_runner(policy)
        copied = alive_bytes() - before - runner.cache.num_bytes - memory.width * TABLE_OF_TURNS
    assert memory.copied_weights > 0
    assert memory.copied_weights == pytest.approx(copied, rel=0.01)
