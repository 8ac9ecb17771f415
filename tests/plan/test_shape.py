"""Parameters are counted as transformers makes them, tensor by tensor, for the configurations of public models."""

from __future__ import annotations

import json
from typing import Any

import pytest

from midthought.errors import ModelPathError, SettingsError
from midthought.plan.model_configs import MODEL_CONFIGS
from midthought.plan.settings import PlanSettings
from midthought.plan.shape import Shape, find_shape


def config(
    kind: str, hidden: int, inner: int, layers: int, heads: int, kv: int, vocabulary: int, **more: Any
) -> dict[str, Any]:
    sizes = {"hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers, "vocab_size": vocabulary}
    return {"model_type": kind, **sizes, "num_attention_heads": heads, "num_key_value_heads": kv, **more}


CONFIGS: dict[str, tuple[dict[str, Any], int]] = {
    "Qwen3-0.6B": (config("qwen3", 1024, 3072, 28, 16, 8, 151936, head_dim=128, tie_word_embeddings=True), 596_049_920),
    "Qwen3-8B": (config("qwen3", 4096, 12288, 36, 32, 8, 151936, head_dim=128), 8_190_735_360),
    "Llama-3.1-70B": (config("llama", 8192, 28672, 80, 64, 8, 128256), 70_553_706_496),
    "Qwen2.5-32B": (config("qwen2", 5120, 27648, 64, 40, 8, 152064), 32_763_876_352),
    "Qwen3-30B-A3B": (
        config(
            "qwen3_moe",
            2048,
            6144,
            48,
            32,
            4,
            151936,
            moe_intermediate_size=768,
            head_dim=128,
            num_experts=128,
            num_experts_per_tok=8,
        ),
        30_532_122_624,
    ),
    "Mixtral-8x7B": (
        config("mixtral", 4096, 14336, 32, 32, 8, 32000, num_local_experts=8, num_experts_per_tok=2),
        46_702_792_704,
    ),
    "gemma-2-2b": (config("gemma2", 2304, 9216, 26, 8, 4, 256000, head_dim=256), 2_614_341_888),
    "gemma-3-1b": (config("gemma3_text", 1152, 6912, 26, 4, 1, 262144, head_dim=256), 999_885_952),
}
"""What their config.json say, and how many parameters their model cards and checkpoints have."""
SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
SHARED_EXPERT = {
    "model_type": "qwen2_moe",
    **SMALL,
    **EXPERTS,
    "num_key_value_heads": 2,
    "shared_expert_intermediate_size": 40,
}
MIXTRAL = {"model_type": "mixtral", **SMALL, "num_key_value_heads": 2, "num_local_experts": 6, "num_experts_per_tok": 2}


def on_the_meta_device(config: dict[str, Any]) -> Any:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    values = {key: value for key, value in config.items() if key != "model_type"}
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(config["model_type"], **values))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_public_model_has_as_many_parameters_as_transformers_makes(name):
    sizes, published = CONFIGS[name]
    shape = Shape.from_config(sizes)
    assert shape.parameters == sum(parameter.numel() for parameter in on_the_meta_device(sizes).parameters())
    assert shape.parameters == published


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "llama", **SMALL, "attention_bias": True, "mlp_bias": True},
        {"model_type": "llama", **SMALL, "num_key_value_heads": 2, "head_dim": 24},
        {"model_type": "mistral", **SMALL, "num_key_value_heads": 2},
        {"model_type": "qwen2", **SMALL, "num_key_value_heads": 2, "tie_word_embeddings": True},
        {"model_type": "qwen3", **SMALL, "num_key_value_heads": 2, "attention_bias": True},
        {"model_type": "gemma2", **SMALL, "num_key_value_heads": 2, "head_dim": 16},
        {"model_type": "gemma3_text", **SMALL, "num_key_value_heads": 2, "head_dim": 16, "attention_bias": True},
        MIXTRAL,
        {"model_type": "qwen3_moe", **SMALL, **EXPERTS, "head_dim": 16, "attention_bias": True},
        {"model_type": "qwen3_moe", **SMALL, **EXPERTS, "head_dim": 16, "mlp_only_layers": [0]},
        {"model_type": "qwen3_moe", **SMALL, **EXPERTS, "head_dim": 16, "decoder_sparse_step": 2},
        SHARED_EXPERT,
    ],
    ids=lambda config: "-".join([config["model_type"], *sorted(config.keys() - SMALL.keys() - {"model_type"})]),
)
def test_biases_ties_and_head_sizes_are_counted(config):
    model = on_the_meta_device(config)
    shape = Shape.from_config(config)
    assert shape.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert shape.trunk_parameters == sum(parameter.numel() for parameter in model.base_model.parameters())


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "qwen3", **SMALL, "num_key_value_heads": 2, "head_dim": 16},
        {"model_type": "gemma3_text", **SMALL, "num_key_value_heads": 2, "head_dim": 16},
        MIXTRAL,
        {"model_type": "qwen3_moe", **SMALL, **EXPERTS, "head_dim": 16, "mlp_only_layers": [0]},
        SHARED_EXPERT,
    ],
    ids=lambda config: config["model_type"],
)
def test_adapters_are_counted_as_peft_makes_them(config):
    pytest.importorskip("peft")
    from midthought.learning.adapters import add_adapters

    adapted = add_adapters(on_the_meta_device(config), 8, 16)
    learning = sum(parameter.numel() for parameter in adapted.parameters() if parameter.requires_grad)
    assert Shape.from_config(config).adapter_parameters(8) == learning


def test_a_token_computes_with_its_experts_and_a_batch_reads_those_that_a_token_chooses():
    """Qwen3-30B-A3B: 3.3 B parameters of 30.5 B are active, with the output layer."""
    shape = Shape.from_config(CONFIGS["Qwen3-30B-A3B"][0])
    one_layer = 3 * 2048 * 768
    assert shape.computing_parameters == shape.parameters - 151_936 * 2048 - 2048 - 48 * 120 * one_layer
    assert 3.0e9 < shape.computing_parameters < 3.4e9


def test_layers_with_a_window_keep_no_more_than_the_window():
    """Gemma 3 1B: 4 of 26 layers see everything, 22 a window of 512 tokens; 2 × 256 × 2 bytes per token and layer."""
    shape = Shape.from_config({**CONFIGS["gemma-3-1b"][0], "sliding_window": 512})
    assert (shape.num_sliding_layers, shape.sliding_window) == (22, 512)
    assert shape.kv_bytes_of_sequence(2048, 2) == 1024 * (4 * 2048 + 22 * 512)
    assert shape.kv_bytes_of_sequence(2048, 2, drops_old=False) == 1024 * 26 * 2048


def test_a_model_is_found_by_folder_by_name_by_its_adapters_or_by_sizes_in_words(tmp_path):
    qwen = Shape.from_config(CONFIGS["Qwen3-8B"][0])
    (tmp_path / "adapters").mkdir()
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["Qwen3-8B"][0]), "utf-8")
    (tmp_path / "adapters" / "adapter_config.json").write_text('{"base_model_name_or_path": "Qwen/Qwen3-8B"}', "utf-8")
    for model in ("Qwen/Qwen3-8B", str(tmp_path), str(tmp_path / "adapters")):
        assert find_shape(PlanSettings(model=model)) == qwen
    sizes = {"num_heads": 32, "num_kv_heads": 8, "head_dim": 128, "intermediate_size": 12288}
    assert find_shape(PlanSettings(hidden_size=4096, num_layers=36, **sizes)) == qwen
    assert all(Shape.from_config(config).parameters > 5e8 for config in MODEL_CONFIGS.values())


def test_a_size_that_is_missing_is_requested(tmp_path):
    for words, error, message in (
        ({}, SettingsError, "give model=FOLDER"),
        ({"model": "no/such/folder"}, ModelPathError, "neither a folder"),
        ({"model": "Qwen/Qwen3-8B", "num_layers": 2}, SettingsError, "say the size twice"),
        ({"model": str(tmp_path)}, ModelPathError, r"no config\.json"),
    ):
        with pytest.raises(error, match=message):
            find_shape(PlanSettings(**words))


def test_an_architecture_that_is_not_counted_is_refused_with_the_way_out():
    with pytest.raises(SettingsError, match=r"'deepseek_v3' is not counted here.*hidden_size="):
        Shape.from_config({"model_type": "deepseek_v3", **SMALL})
    with pytest.raises(SettingsError, match=r"'mixtral': its configuration lacks 'num_experts'"):
        Shape.from_config({"model_type": "mixtral", **SMALL})
