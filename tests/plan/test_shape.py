"""Parameters are counted as transformers makes them, tensor by tensor, for the configurations of public models."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from midthought.errors import ModelPathError, SettingsError
from midthought.learning.attention import can_share
from midthought.learning.model import add_adapters
from midthought.plan.shape import MODEL_CONFIGS, Shape, find_shape

PUBLISHED = {
    "Qwen/Qwen3-0.6B": 596_049_920,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "meta-llama/Llama-3.1-8B": 8_030_261_248,
    "Qwen/Qwen2.5-32B-Instruct": 32_763_876_352,
}
"""How many parameters their model cards and checkpoints have."""
SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
}


def on_the_meta_device(config: dict[str, Any]) -> Any:
    values = {key: value for key, value in config.items() if key != "model_type"}
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(config["model_type"], **values))


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_public_model_has_as_many_parameters_as_transformers_makes(name):
    model = on_the_meta_device(MODEL_CONFIGS[name])
    assert find_shape(name).parameters == sum(parameter.numel() for parameter in model.parameters()) == PUBLISHED[name]


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "llama", **SMALL, "attention_bias": True, "mlp_bias": True},
        {"model_type": "llama", **SMALL, "num_key_value_heads": 2, "head_dim": 24},
        {"model_type": "mistral", **SMALL, "num_key_value_heads": 2},
        {"model_type": "qwen2", **SMALL, "num_key_value_heads": 2, "tie_word_embeddings": True},
        {"model_type": "qwen3", **SMALL, "num_key_value_heads": 2, "attention_bias": True},
    ],
    ids=lambda config: "-".join([config["model_type"], *sorted(config.keys() - SMALL.keys() - {"model_type"})]),
)
def test_biases_ties_and_head_sizes_are_counted(config):
    model = on_the_meta_device(config)
    shape = Shape.from_config(config)
    assert shape.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert shape.trunk_parameters == sum(parameter.numel() for parameter in model.base_model.parameters())


def test_adapters_are_counted_as_peft_makes_them():
    pytest.importorskip("peft")
    config = {"model_type": "qwen3", **SMALL, "num_key_value_heads": 2, "head_dim": 16}
    adapted = add_adapters(on_the_meta_device(config), 8, 16)
    learning = sum(parameter.numel() for parameter in adapted.parameters() if parameter.requires_grad)
    assert Shape.from_config(config).adapter_parameters(8) == learning


def test_a_model_is_found_by_folder_by_name_or_by_its_adapters(tmp_path):
    qwen = Shape.from_config(MODEL_CONFIGS["Qwen/Qwen3-8B"])
    (tmp_path / "adapters").mkdir()
    (tmp_path / "config.json").write_text(json.dumps(MODEL_CONFIGS["Qwen/Qwen3-8B"]), "utf-8")
    (tmp_path / "adapters" / "adapter_config.json").write_text('{"base_model_name_or_path": "Qwen/Qwen3-8B"}', "utf-8")
    for model in ("Qwen/Qwen3-8B", str(tmp_path), str(tmp_path / "adapters")):
        assert find_shape(model) == qwen
    assert all(Shape.from_config(config).parameters > 5e8 for config in MODEL_CONFIGS.values())


def test_a_model_that_is_not_found_is_reported_with_the_remedy(tmp_path):
    for model, message in (("no/such/folder", "neither a folder"), (str(tmp_path), r"no config\.json")):
        with pytest.raises(ModelPathError, match=message):
            find_shape(model)


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("llama", {}),
        ("mistral", {}),
        ("mistral", {"sliding_window": None}),
        ("qwen2", {"sliding_window": 8, "max_window_layers": 1}),
        ("qwen3", {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 1}),
        ("qwen3", {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 2}),
    ],
)
def test_layers_that_see_a_window_are_found_as_the_learner_finds_them(kind, more):
    sizes = {**SMALL, "num_key_value_heads": 2, **more}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes)).eval()
    shape = Shape.from_config({"model_type": kind, **sizes})
    assert shape.has_window is not can_share(model)
    assert Shape.from_config(model.config.to_dict()).has_window is shape.has_window


def test_an_architecture_that_is_not_counted_is_refused_with_the_way_out():
    with pytest.raises(SettingsError, match=r"'deepseek_v3' is not counted here. Counted are llama"):
        Shape.from_config({"model_type": "deepseek_v3", **SMALL})
    with pytest.raises(SettingsError, match=r"'qwen3': its configuration lacks 'vocab_size'"):
        Shape.from_config({"model_type": "qwen3", **{key: SMALL[key] for key in SMALL if key != "vocab_size"}})
