"""Effective weights of PEFT layers equal what PEFT's own `merge_and_unload` gives in float32, and change no layer."""

import copy
from typing import Any

import pytest
import torch

pytest.importorskip("peft")

import peft
from peft.tuners.tuners_utils import BaseTunerLayer
from tiny_config import tiny_config
from transformers import AutoModelForCausalLM

from midthought.models.peft_weights import base_of, effective_tensors

IDS = torch.tensor([[3, 4, 5, 6, 7]])


def plain_model(kind: str = "Qwen3", seed: int = 0, **changes: Any) -> Any:
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(tiny_config(kind, **changes)).eval()


def adapted(kind: str = "Qwen3", num_adapters: int = 1, tied: bool = False, **changes: Any) -> Any:
    """A small PEFT model whose adapters are all random, so that each has an effect."""
    options = {"r": 3, "lora_alpha": 7, "target_modules": "all-linear", "task_type": "CAUSAL_LM"}
    config = peft.LoraConfig(**{**options, **changes})
    model = peft.get_peft_model(plain_model(kind, tie_word_embeddings=tied), config)
    for number in range(1, num_adapters):
        model.add_adapter(f"more{number}", copy.deepcopy(config))
    model.base_model.set_adapter(["default", *(f"more{number}" for number in range(1, num_adapters))])
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad or "lora_" in name:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()


def layers_of(model: Any) -> dict[str, Any]:
    layers = {n: m for n, m in model.base_model.model.named_modules() if isinstance(m, BaseTunerLayer)}
    return {name: layer for name, layer in layers.items() if name.rpartition(".base_layer")[0] not in layers}


KINDS = {
    "LoRA": {},
    "rsLoRA": {"use_rslora": True},
    "DoRA": {"use_dora": True},
    "several adapters": {"num_adapters": 3},
    "weights stored as [in, out]": {"kind": "GPT2", "target_modules": ["c_attn", "c_fc"], "fan_in_fan_out": True},
    "DoRA stored as [in, out]": {
        "kind": "GPT2",
        "target_modules": ["c_attn"],
        "fan_in_fan_out": True,
        "use_dora": True,
    },
    "a bias that learns": {"kind": "GPT2", "target_modules": ["c_attn"], "fan_in_fan_out": True, "lora_bias": True},
    "embeddings": {"target_modules": ["embed_tokens", "q_proj"]},
}


@pytest.mark.parametrize("changes", KINDS.values(), ids=KINDS.keys())
def test_effective_tensors_are_those_of_the_merged_model(changes):
    model = adapted(**changes)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    found = {name: effective_tensors(layer) for name, layer in layers_of(model).items()}
    assert found and all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    merged = model.merge_and_unload()
    for name, tensors in found.items():
        expected = dict(merged.get_submodule(name).named_parameters())
        assert tensors.keys() == expected.keys()
        for key, tensor in tensors.items():
            torch.testing.assert_close(tensor, expected[key], rtol=0, atol=1e-6)


def test_bfloat16_weights_are_computed_in_float32_and_rounded_once():
    model = adapted(use_dora=True)
    exact = {name: effective_tensors(layer)["weight"] for name, layer in layers_of(model).items()}
    for layer in layers_of(model).values():
        base = layer.get_base_layer()
        base.weight.data = base.weight.data.bfloat16()  # adapters stay float32, as PEFT makes them
    for name, layer in layers_of(model).items():
        rounded = effective_tensors(layer)["weight"]
        assert rounded.dtype == torch.bfloat16
        torch.testing.assert_close(rounded.float(), exact[name], rtol=2**-7, atol=2e-4)


def test_disabled_adapters_give_the_base_weight_whether_merged_or_not():
    model = adapted()
    layer = next(iter(layers_of(model).values()))
    base = layer.get_base_layer().weight.detach().clone()
    with model.disable_adapter():
        assert torch.equal(effective_tensors(layer)["weight"], base)
    effective = effective_tensors(layer)["weight"]
    assert not torch.equal(effective, base)
    model.merge_adapter()
    assert torch.equal(effective_tensors(layer)["weight"], layer.get_base_layer().weight)
    torch.testing.assert_close(effective_tensors(layer)["weight"], effective, rtol=0, atol=1e-6)
    with model.disable_adapter():
        torch.testing.assert_close(effective_tensors(layer)["weight"], base, rtol=0, atol=1e-6)
    assert layer.merged


def test_a_module_to_save_gives_its_active_copy_and_trained_tokens_stand_in_their_embedding():
    model = adapted(modules_to_save=["lm_head"], target_modules=["q_proj"])
    wrapper = model.base_model.model.lm_head
    assert torch.equal(effective_tensors(wrapper)["weight"], wrapper.modules_to_save["default"].weight)
    with model.disable_adapter():
        assert torch.equal(effective_tensors(wrapper)["weight"], wrapper.original_module.weight)
    model = adapted(target_modules=["q_proj"], trainable_token_indices={"embed_tokens": [3, 4]})
    wrapper = model.base_model.model.model.embed_tokens
    torch.testing.assert_close(effective_tensors(wrapper)["weight"][IDS[0]], wrapper(IDS)[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ["quantized", "prompt"])
def test_what_cannot_be_merged_into_floating_point_weights_is_refused_with_the_remedy(kind):
    if kind == "prompt":
        model = peft.get_peft_model(plain_model(), peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2))
    else:
        model = adapted()
        layer = model.base_model.model.model.layers[0].self_attn.q_proj.base_layer
        layer.weight = torch.nn.Parameter(layer.weight.detach().to(torch.uint8), requires_grad=False)
    with pytest.raises(ValueError, match=r"quantized weights.*bfloat16|learns a prompt .*use adapters"):
        base_of(model)
