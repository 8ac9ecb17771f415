"""The engines by name, and those that run in this process."""

from __future__ import annotations

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from midthought.config import InferenceConfig
from midthought.engines.byte_tokenizer import byte_tokenizer
from midthought.engines.create import LocalInferenceEngine, ScriptedInferenceEngine, create_inference_engine
from midthought.errors import EngineError, ModelPathError, SettingsError


def make_model():
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=261,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        initializer_range=0.3,
        max_position_embeddings=50,
    )
    return Qwen3ForCausalLM(config).eval()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    make_model().save_pretrained(path)
    byte_tokenizer().save_pretrained(path)
    return path


def test_a_folder_and_the_loaded_model_generate_the_same(folder):
    with create_inference_engine(folder) as from_path, create_inference_engine(str(folder), "local") as from_name:
        expected = from_path.generate("Hello", max_tokens=6)
        assert from_name.generate("Hello", max_tokens=6).tokens.tolist() == expected.tokens.tolist()
    with LocalInferenceEngine(make_model(), byte_tokenizer()) as loaded:
        output = loaded.generate("Hello", max_tokens=6)
    assert output.tokens.tolist() == expected.tokens.tolist()
    torch.testing.assert_close(output.log_probs, expected.log_probs)


def test_sequences_end_where_the_models_positions_do():
    with LocalInferenceEngine(make_model(), byte_tokenizer(), max_seq_len=4096) as engine:
        assert engine.core.max_seq_len == 50
    with LocalInferenceEngine(make_model(), byte_tokenizer(), max_seq_len=20) as engine:
        assert engine.core.max_seq_len == 20


def test_weights_that_changed_in_place_are_sampled_from_after_update_weights():
    model = make_model()
    with LocalInferenceEngine(model, byte_tokenizer(), temperature=0) as engine:
        engine.generate("Hello", max_tokens=3)
        with torch.no_grad():
            model.lm_head.weight.zero_()
        engine.update_weights()
        output = engine.generate("Hello", max_tokens=3)
        assert engine.core.policy_version == 1
    assert engine.model is None, "a closed engine lets go of its model"
    with pytest.raises(EngineError, match="was shut down"):
        engine.update_weights()
    assert output.log_probs[0, 0].item() == pytest.approx(-torch.tensor(261.0).log().item())


def test_a_script_is_given_as_an_option_or_in_the_config():
    assert create_inference_engine("", "scripted", script=["one"]).generate("x").sequences == ["one"]
    engine = create_inference_engine(backend="scripted", config={"script": ["a", "b"], "max_tokens": 1}, max_tokens=9)
    assert isinstance(engine, ScriptedInferenceEngine) and engine.max_tokens == 9
    assert engine.generate(["x", "y"]).sequences == ["a", "b"]
    with pytest.raises(EngineError, match="the script has 2 episodes"):
        engine.generate("x")
    engine = ScriptedInferenceEngine(lambda episode, token_ids: f"{len(token_ids)} bytes<|im_end|>")
    assert engine.generate(["abc", "de"]).sequences == ["3 bytes", "2 bytes"]


def test_the_inference_section_gives_what_the_engine_takes_and_options_win():
    section = InferenceConfig(max_tokens=7, temperature=0.5, max_num_seqs=3, deterministic=True)
    engine = create_inference_engine(make_model(), config=section, tokenizer=byte_tokenizer(), temperature=0.25)
    assert (engine.max_tokens, engine.temperature, engine.core.deterministic) == (7, 0.25, True)
    engine.shutdown()


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((make_model(),), {}, "needs its tokenizer"),
        (("nowhere",), {}, "nowhere"),
        (("m", "vlm"), {}, "unknown backend 'vlm'"),
        (("m", "local"), {"temprature": 1.0}, "unknown option 'temprature' of backend 'local'. Did you mean 'temp"),
        (("m", "local", {"model": "other"}), {}, "unknown option 'model'"),
        (("m", "vllm", {"model_path": "other"}), {}, "unknown option 'model_path'"),
        (("m", "sglang", {"base_ur": "x"}), {}, "Did you mean 'base_url'"),
        (("m", "scripted"), {"sampling": 1}, "unknown option 'sampling'"),
        (("", "scripted"), {}, "script"),
    ],
)
def test_what_is_unknown_or_missing_is_named(arguments, options, message):
    with pytest.raises((SettingsError, ModelPathError), match=message):
        create_inference_engine(*arguments, **options)
