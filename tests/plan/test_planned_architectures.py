"""Activations of each architecture, as a forward pass keeps them, and the whole memory of a learner's iteration."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from representatives import representatives

from benchmarks.memory import STATUS
from benchmarks.plan import PLAIN, WORK, make_trajectories, memory_of, planned_bytes, take
from midthought.config import TrainingConfig
from midthought.learning import attention, fused
from midthought.learning.adapters import add_adapters
from midthought.learning.attention import attending_by_rows
from midthought.learning.batch import TokenBatch
from midthought.learning.forward import hidden_states
from midthought.learning.fused import FusedModules
from midthought.learning.learner import Learner
from midthought.learning.packing import ModelInputs
from midthought.plan.activations import Activations
from midthought.plan.settings import PlanSettings
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


def kept_bytes(model: Any, context: Callable[[], AbstractContextManager[Any]] = nullcontext) -> tuple[int, bool]:
    """Bytes that a forward pass of one row keeps for the backward pass, without parameters; whether it is packed.

    `context`: of the forward pass.
    """
    prompt, response = NUM_TOKENS
    plan = memory_of(f"hidden_size=64 num_layers=1 num_heads=2 vocab_size=100 {WORK} batch_size=1")
    settings = plan.changed({"prompt_tokens": prompt, "max_tokens": response}).settings
    batch = TokenBatch.from_trajectories(make_trajectories(settings, SIZES["vocab_size"]))
    learner = Learner(
        model, None, None, TrainingConfig(learning_rate=1e-5, warmup_steps=0, adv_estimator="grpo", logits_mib=64)
    )
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    kept: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    layout = ModelInputs.of(batch, packed=learner.is_packed)
    with context(), FusedModules(model).active(), torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept):
        if learner.is_packed:
            with attending_by_rows(model):
                hidden_states(model, layout)
        else:
            hidden_states(model, layout)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values()), learner.is_packed


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("dtype", "lora_rank"),
    [
        (torch.float32, 0),
        (torch.bfloat16, 8),
        pytest.param(torch.bfloat16, 0, marks=pytest.mark.slow),
        pytest.param(torch.float32, 8, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("kind", CONFIGS)
def test_a_layer_keeps_the_bytes_that_are_planned(kind, dtype, lora_rank):
    """The bytes of 4 layers: 6 layers' less 2 layers'."""
    (few, is_packed), (many, _) = (kept_bytes(model_of(kind, number, dtype, lora_rank)) for number in (2, 6))

    def planned(num_layers: int) -> int:
        shape = Shape.from_config({"model_type": kind, **SIZES, **CONFIGS[kind], "num_hidden_layers": num_layers})
        num_tokens = sum(NUM_TOKENS) - 1
        settings = PlanSettings(
            **{**PLAIN, "packing": is_packed}, device="cpu", dtype=str(dtype).removeprefix("torch.")
        )
        activations = Activations(shape, settings, lora_rank)
        return num_tokens * num_layers * activations.layer + activations.constant

    assert is_packed
    assert planned(6) - planned(2) == pytest.approx(many - few, rel=0.02)


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
        patch.object(attention, "is_usable", lambda query, key, window: True),
        patch.object(
            attention, "attend_rows", lambda query, key, value, *rows, **options: Attention.apply(query, key, value)
        ),
    ):
        yield


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "lora_rank"), representatives(product(CONFIGS, [0, 8]), ("qwen3", 8), ("llama", 0)))
def test_a_fused_layer_keeps_the_bytes_that_are_planned(kind, lora_rank):
    (few, is_packed), (many, _) = (
        kept_bytes(model_of(kind, number, torch.bfloat16, lora_rank), fused_on_a_cpu) for number in (2, 6)
    )
    shape = Shape.from_config({"model_type": kind, **SIZES, **CONFIGS[kind], "num_hidden_layers": 4})
    num_tokens = sum(NUM_TOKENS) - 1
    activations = Activations(shape, PlanSettings(**{**PLAIN, "packing": is_packed}), lora_rank)
    planned = num_tokens * 4 * activations.layer + activations.constant
    assert planned == pytest.approx(many - few, rel=0.02)


def folder_of(kind: str, tmp_path: Path) -> str:
    config = {"model_type": kind, **SIZES, **CONFIGS[kind], "num_hidden_layers": 4, "vocab_size": 4000}
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    return str(tmp_path)


@pytest.mark.skipif(not STATUS.exists(), reason="measured under Linux")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("kind", "way"),
    [
        pytest.param(kind, way, marks=() if kind == "qwen3" and not way else pytest.mark.slow)
        for kind in CONFIGS
        for way in ("", "gradient_checkpointing=true", "lora_rank=8")
    ],
)
def test_the_planned_memory_of_an_iteration_is_what_a_learner_takes(kind, way, tmp_path):
    plan = memory_of("dtype=float32", way, f"model={folder_of(kind, tmp_path)}")
    assert planned_bytes(plan) == pytest.approx(take(plan).allocated, rel=0.1)
