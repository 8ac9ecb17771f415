"""PEFT models on disk: the merged folder computes what the model with adapters does, in shards; adapters find their base."""

import copy
import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("peft")

import peft
from safetensors import safe_open
from safetensors.torch import save
from tiny_config import tiny_config
from transformers import AutoModelForCausalLM

from midthought.errors import ModelPathError
from midthought.models import peft_folders
from midthought.models.peft_folders import base_digest, load_adapters, save_adapters, save_merged
from midthought.models.peft_weights import base_of, effective_tensors
from midthought.models.pretrained import load_model
from midthought.plan.shape import find_shape

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


IN_OUT = {"kind": "GPT2", "target_modules": ["c_attn"], "fan_in_fan_out": True}
KINDS = {
    "LoRA": {},
    "rsLoRA": {"use_rslora": True},
    "DoRA": {"use_dora": True},
    "several adapters": {"num_adapters": 3},
    "weights stored as [in, out]": {**IN_OUT, "target_modules": ["c_attn", "c_fc"]},
    "DoRA stored as [in, out]": {**IN_OUT, "use_dora": True},
    "a bias that learns": {**IN_OUT, "lora_bias": True},
    "embeddings": {"target_modules": ["embed_tokens", "q_proj"]},
    "a module to save": {"modules_to_save": ["lm_head"], "target_modules": ["q_proj"]},
    "trained tokens": {"target_modules": ["q_proj"], "trainable_token_indices": {"embed_tokens": [3, 4]}},
    "experts": {
        "kind": "Qwen3Moe",
        "target_modules": ["q_proj"],
        "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
        "lora_dropout": 0.0,
    },
}


@torch.no_grad()
def move_adapters(model: Any) -> None:
    for name, tensor in model.named_parameters():
        if "lora_" in name or "modules_to_save" in name or "trainable_tokens" in name:
            tensor.add_(1.0)


def assert_computes_as(model: Any, folder: Path) -> None:
    with torch.no_grad():
        found, expected = load_model(folder)(input_ids=IDS).logits, model(input_ids=IDS).logits
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("changes", KINDS.values(), ids=KINDS)
def test_the_merged_folder_computes_what_the_model_computes_and_adapters_come_back_bit_by_bit(
    changes, tmp_path, monkeypatch
):
    model = adapted(**changes)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    monkeypatch.setattr(peft_folders, "MAX_SHARD_BYTES", 20_000)
    save_merged(model, tmp_path / "merged")
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert len(list((tmp_path / "merged").glob("model-*-of-*.safetensors"))) > 1
    assert_computes_as(model, tmp_path / "merged")
    save_adapters(model, tmp_path / "adapters")
    move_adapters(model)
    load_adapters(model, tmp_path / "adapters")
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("kind", ["Qwen3", "Qwen3Moe"])
def test_the_merged_folder_has_the_names_that_transformers_writes(kind, tmp_path):
    model = adapted(kind, target_modules=["q_proj"])
    save_merged(model, tmp_path / "ours")
    model.merge_and_unload().save_pretrained(tmp_path / "theirs")
    names = []
    for folder in ("ours", "theirs"):
        with safe_open(tmp_path / folder / "model.safetensors", "pt") as file:
            names.append(set(file.keys()))
    assert names[0] == names[1]
    ours, theirs = (json.loads((tmp_path / folder / "config.json").read_text()) for folder in ("ours", "theirs"))
    assert ours == theirs


@pytest.mark.parametrize("target", [["q_proj"], ["q_proj", "embed_tokens"]])
def test_tied_embeddings_stay_tied_unless_adapters_make_them_differ(target, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = adapted(target_modules=target, tied=True)
    save_merged(model, tmp_path / "merged")
    assert load_model(tmp_path / "merged").config.tie_word_embeddings is (target == ["q_proj"])
    assert_computes_as(model, tmp_path / "merged")


def test_small_adapters_are_not_lost_in_bfloat16(tmp_path):
    model = adapted(r=8)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            tensor.mul_(0.02 if "lora_B" in name else 1.0)
    for layer in model.base_model.model.modules():
        if isinstance(layer, torch.nn.Linear) and layer.weight.shape[0] > 8 and layer.weight.shape[1] > 8:
            layer.weight.data = layer.weight.data.bfloat16()
    model.base_model.model.model.embed_tokens.to(torch.bfloat16)
    save_merged(model, tmp_path / "merged")
    layer = model.base_model.model.model.layers[0].self_attn.q_proj
    found = load_model(tmp_path / "merged", "bfloat16").model.layers[0].self_attn.q_proj.weight
    wanted = layer.get_delta_weight("default").flatten().detach()
    change = (found.float() - layer.base_layer.weight.float()).flatten().detach()
    assert torch.dot(change, wanted) / torch.dot(wanted, wanted) == pytest.approx(1.0, abs=0.15)


def saved_with_base(tmp_path):
    model = adapted()
    base = copy.deepcopy(model).unload()
    base.save_pretrained(tmp_path / "run/warmup")
    model.peft_config["default"].base_model_name_or_path = str(tmp_path / "run/warmup")
    save_adapters(model, tmp_path / "run/step/policy")
    return model


def test_a_folder_of_adapters_loads_with_its_base_also_if_the_run_was_moved(tmp_path):
    model = saved_with_base(tmp_path)
    shutil.move(tmp_path / "run", tmp_path / "elsewhere")
    assert_computes_as(model, tmp_path / "elsewhere/step/policy")


def test_adapters_without_a_base_s_name_belong_to_the_model_in_whose_folder_they_are(tmp_path):
    model = adapted()
    copy.deepcopy(model).unload().save_pretrained(tmp_path)
    save_adapters(model, tmp_path / "lora_adapter")
    assert not json.loads((tmp_path / "lora_adapter/adapter_config.json").read_text())["base_model_name_or_path"]
    assert find_shape(str(tmp_path / "lora_adapter")).num_layers == model.config.num_hidden_layers
    assert_computes_as(model, tmp_path / "lora_adapter")


def test_adapters_of_another_base_damaged_ones_and_those_without_a_base_are_named_with_the_remedy(tmp_path):
    model, policy = saved_with_base(tmp_path), tmp_path / "run/step/policy"
    with torch.no_grad():
        other = copy.deepcopy(model).unload()
        other.model.layers[0].mlp.up_proj.weight.mul_(1.1)
    other.save_pretrained(tmp_path / "run/warmup")
    with pytest.raises(ModelPathError, match="another base model"):
        load_model(policy)
    of_others = save({"base_model.model.model.tower.q_proj.lora_A.weight": torch.ones(3, 16)})
    for damage in (b"", b"\xff" * 100, of_others):
        (policy / "adapter_model.safetensors").write_bytes(damage)
        with pytest.raises(ModelPathError, match=r"run/step/policy.* adapters do not load .* save them anew"):
            load_model(policy)
    save_adapters(adapted(), tmp_path / "alone")
    with pytest.raises(ModelPathError, match="does not name their base model"):
        load_model(tmp_path / "alone")
    for text in ("", "[]", '{"base_model_name_or_path": 7}', "[" * 9999, '{"base_model_name_or_path": "a\\u0000"}'):
        (policy / "adapter_config.json").write_text(text)
        with pytest.raises(ModelPathError, match=str(policy)):
            load_model(policy)


def test_adapters_that_are_their_own_base_model_are_named(tmp_path):
    text = json.dumps({"peft_type": "LORA", "base_model_name_or_path": str(tmp_path)})
    (tmp_path / "adapter_config.json").write_text(text)
    for use in (load_model, lambda path: find_shape(str(path))):
        with pytest.raises(ModelPathError, match="give the model that they were trained on"):
            use(tmp_path)


def test_the_digest_is_of_the_base_alone_and_the_same_in_bfloat16():
    model = adapted(modules_to_save=["lm_head"])
    digest = base_digest(model.base_model.model)
    move_adapters(model)
    assert base_digest(model.base_model.model) == digest
    assert base_digest(model.base_model.model.to(torch.bfloat16)) == digest


def test_disabled_adapters_give_the_base_weight_whether_merged_or_not():
    model = adapted()
    layer = model.base_model.model.model.layers[0].self_attn.q_proj
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
    wrapper = adapted(modules_to_save=["lm_head"]).base_model.model.lm_head
    wrapper.enable_adapters(False)
    assert torch.equal(effective_tensors(wrapper)["weight"], wrapper.original_module.weight)


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
