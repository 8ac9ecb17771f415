"""Hugging Face folders: what loads loads whole, what does not is one message, nobody's code runs, writing is all or nothing."""

import json
import os

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from midthought.errors import ModelPathError, SettingsError, StorageError
from midthought.models.pretrained import load_model, load_tokenizer, placed, policy_folder, save_model


def small_model() -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    sizes = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 24}
    return Qwen3ForCausalLM(Qwen3Config(**sizes, num_attention_heads=2, num_key_value_heads=1, head_dim=8))


def small_tokenizer() -> PreTrainedTokenizerFast:
    pieces = Tokenizer(models.WordLevel({"tide": 0, "<end>": 1}, unk_token="<end>"))
    return PreTrainedTokenizerFast(tokenizer_object=pieces, eos_token="<end>")


def test_a_saved_model_loads_with_the_same_weights_and_shows_nothing_on_the_terminal(tmp_path, capfd):
    policy = small_model()
    policy.save_pretrained(tmp_path / "model")
    capfd.readouterr()
    loaded = load_model(tmp_path / "model")
    assert capfd.readouterr() == ("", "")
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(loaded.parameters(), policy.parameters(), strict=True))
    assert not loaded.training
    assert next(load_model(tmp_path / "model", "bfloat16").parameters()).dtype == torch.bfloat16


TEXT = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 40}
TEXT |= {"num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 64, "bos_token_id": 0, "eos_token_id": 1}
CLIP = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28}
PATCHES = {"depth": 1, "hidden_size": 16, "num_heads": 2}
MLLAMA = {"hidden_size": 16, "image_size": 28, "attention_heads": 2, "num_hidden_layers": 1, "num_global_layers": 1}
MLLAMA |= {"intermediate_size": 24, "intermediate_layers_indices": [0], "vision_output_dim": 32}
ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}}
IMAGE_TEXT = {
    "Qwen3_5": ({"layer_types": ["full_attention"]}, {**PATCHES, "intermediate_size": 24, "out_hidden_size": 16}),
    "Mllama": ({"cross_attention_layers": [], "pad_token_id": 0, "rope_parameters": {"rope_type": "default"}}, MLLAMA),
    "Gemma3": ({}, {**CLIP, "patch_size": 14}),
    "Qwen2VL": (ROPE, {**PATCHES, "embed_dim": 16}),
}


@pytest.mark.parametrize("name", IMAGE_TEXT)
def test_of_an_image_text_model_the_text_part_is_loaded_if_what_is_saved_of_it_can_be_loaded(name, tmp_path):
    text, vision = IMAGE_TEXT[name]
    config = getattr(transformers, f"{name}Config")(text_config={**TEXT, **text}, vision_config=vision)
    getattr(transformers, f"{name}ForConditionalGeneration")(config).save_pretrained(tmp_path / "whole")
    if name in ("Qwen2VL", "Mllama"):
        with pytest.raises(ModelPathError, match="does not load as a causal language model"):
            load_model(tmp_path / "whole")
        return
    policy = load_model(tmp_path / "whole")
    save_model(policy, small_tokenizer(), tmp_path / "saved")
    token_ids = torch.arange(2, 8)[None]
    assert torch.equal(load_model(tmp_path / "saved")(token_ids).logits, policy(token_ids).logits)


def test_a_model_class_that_the_user_registered_is_loaded(tmp_path):
    class OwnConfig(transformers.Qwen3Config):
        model_type = "midthought_test_own"

    class OwnModel(transformers.Qwen3ForCausalLM):
        config_class = OwnConfig

    transformers.AutoConfig.register("midthought_test_own", OwnConfig)
    transformers.AutoModelForCausalLM.register(OwnConfig, OwnModel)
    OwnModel(OwnConfig(**TEXT)).save_pretrained(tmp_path)
    assert isinstance(load_model(tmp_path), OwnModel)


def test_a_saved_model_keeps_the_generation_config_of_the_one_that_was_loaded(tmp_path):
    small_model().save_pretrained(tmp_path / "base")
    given = {"do_sample": True, "temperature": 0.6, "top_k": 20, "repetition_penalty": 1.05, "eos_token_id": 1}
    for change in ({}, {"do_sample": False}):  # transformers refuses to write the second
        (tmp_path / "base/generation_config.json").write_text(json.dumps(given | change))
        save_model(load_model(tmp_path / "base"), small_tokenizer(), tmp_path / "saved")
        saved = json.loads((tmp_path / "saved/generation_config.json").read_text())
        assert {key: saved[key] for key in given} == given and "max_new_tokens" not in saved


def test_a_damaged_policy_of_a_run_is_not_replaced_by_the_one_before(tmp_path):
    for name in ("warmup", "policy"):
        small_model().save_pretrained(tmp_path / name)
    assert policy_folder(tmp_path) == tmp_path / "policy"
    assert policy_folder(tmp_path, ("warmup", "policy")) == tmp_path / "warmup"
    (tmp_path / "policy/config.json").unlink()
    with pytest.raises(ModelPathError, match=r"policy is not whole: config\.json .*is missing; restore it"):
        policy_folder(tmp_path)
    (tmp_path / "warmup/config.json").unlink()
    with pytest.raises(ModelPathError, match=r"warmup is not whole"):
        policy_folder(tmp_path, ("warmup", "policy"))


def test_a_folder_without_a_whole_model_is_named_with_the_remedy(tmp_path, monkeypatch):
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path)
    for where in ("nowhere", "./a/b", "/no/such/model", "models/qwen"):
        with pytest.raises(ModelPathError, match=f"'{where}' is not a folder"):
            load_model(where)
        with pytest.raises(ModelPathError, match=f"'{where}' is not a folder"):
            load_tokenizer(where)
    (tmp_path / "run/policy").mkdir(parents=True)
    with pytest.raises(ModelPathError, match=r"has no config\.json; give what is in it: .*run/policy"):
        load_tokenizer(tmp_path / "run")
    with pytest.raises(ModelPathError, match=r"has no config\.json; give a folder that `save_pretrained` wrote"):
        load_model(tmp_path)
    small_model().save_pretrained(tmp_path)
    with pytest.raises(ModelPathError, match="holds a model but no tokenizer"):
        load_tokenizer(tmp_path)
    weights, name = tmp_path / "model.safetensors", "model.layers.1.mlp.up_proj.weight"
    tensors = load_file(weights)
    del tensors[name]
    save_file(tensors, weights, metadata={"format": "pt"})
    with pytest.raises(ModelPathError, match=f"lacks 1 of the model's weights, first '{name}'"):
        load_model(tmp_path)
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(ModelPathError, match="does not load as a causal language model from safetensors"):
        load_model(tmp_path)
    weights.unlink()
    with pytest.raises(ModelPathError) as caught:
        load_model(tmp_path)
    assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_pipe_in_a_models_folder_is_named_and_not_waited_for(tmp_path):
    for name in ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "vocab.json"):
        folder = tmp_path / name.partition(".")[0]
        small_model().save_pretrained(folder)
        small_tokenizer().save_pretrained(folder)
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)
        for load in (load_model, load_tokenizer):
            with pytest.raises((ModelPathError, StorageError), match=str(folder)):
                load(folder)


def test_code_in_a_models_folder_is_never_run(tmp_path):
    small_model().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["model_type"] = "made_up"
    config["auto_map"] = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    witness = tmp_path / "ran"
    (tmp_path / "evil.py").write_text(f"open({str(witness)!r}, 'w')")
    with pytest.raises(
        ModelPathError, match=r"needs code from its own folder .trust_remote_code., which is never run here"
    ):
        load_model(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelPathError, match="no tokenizer that loads"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"auto_map": {"AutoTokenizer": ["evil.Tokenizer", None]}})
    )
    with pytest.raises(ModelPathError, match=r"no tokenizer that loads .it needs code from its own folder"):
        load_tokenizer(tmp_path)
    assert not witness.exists()


def test_a_policy_is_written_whole_with_its_tokenizer_and_read_back(tmp_path, monkeypatch):
    policy, target = small_model(), tmp_path / "policy"
    save_model(policy, small_tokenizer(), target)
    assert [entry.name for entry in tmp_path.iterdir()] == ["policy"]
    assert torch.equal(load_model(target).lm_head.weight, policy.lm_head.weight)
    tokenizer = load_tokenizer(target)
    assert tokenizer("tide").input_ids == [0] and tokenizer.pad_token == "<end>"
    broken = small_tokenizer()
    monkeypatch.setattr(broken, "save_pretrained", lambda path: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        save_model(small_model(), broken, target)
    assert load_tokenizer(target)("tide").input_ids == [0], "the older one stays"


def test_a_model_is_put_where_it_is_wanted():
    policy = small_model()
    assert placed(policy, "meta").device.type == "meta"
    policy = small_model()
    assert placed(policy, "auto") is policy
    assert policy.device.type == ("cuda" if torch.cuda.is_available() else "cpu")
    for device in ("cuda:99", "abacus"):
        with pytest.raises(SettingsError, match=rf"no device '{device}'.*auto, cpu"):
            placed(policy, device)
