"""Engines in users' hands: prompts in, texts, tokens and log-probabilities out. The scripted engine, and its tokenizer made of
nothing: one token a byte, and text comes back as it was."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_decoders import small_model

from midthought.config import InferenceConfig
from midthought.engines.create import create_inference_engine
from midthought.engines.engine import Sampling
from midthought.engines.inference_engines import LocalInferenceEngine, ScriptedInferenceEngine
from midthought.engines.scripted import MARKERS, ScriptedEngine, byte_tokenizer
from midthought.errors import EngineError, ModelPathError, SettingsError
from midthought.tokenization import Renderer
from midthought.types import Finish

CHAT = [{"role": "user", "content": "Hello"}]


BYTES = {"vocab_size": 261, "num_hidden_layers": 2, "max_position_embeddings": 64}


@pytest.fixture(scope="module")
def model() -> Any:
    return small_model(**BYTES)


@pytest.fixture
def local(model):
    with LocalInferenceEngine(model, byte_tokenizer(), max_num_seqs=4, temperature=1.0, top_p=1.0) as engine:
        yield engine


def test_texts_tokens_log_probs_and_lengths_are_those_of_the_same_rows():
    output = ScriptedInferenceEngine(["ab", "", "abcdef"]).generate(["x", "y", "z"], max_tokens=4)
    pad, end = 256, 258
    assert output.sequences == ["ab", "", "abcd"]
    a = byte_tokenizer()("a").input_ids[0]
    assert output.tokens.tolist() == [[a, a + 1, end, pad], [end, pad, pad, pad], [a, a + 1, a + 2, a + 3]]
    assert output.log_probs.tolist() == [[-0.5, -0.5, -0.5, 0.0], [-0.5, 0.0, 0.0, 0.0], [-0.5] * 4]
    assert output.lengths == [3, 1, 4]
    assert output.finishes == [Finish.END, Finish.END, Finish.LENGTH]
    assert (output.tokens.dtype, output.log_probs.dtype) == (torch.int64, torch.float32)


def test_one_prompt_or_one_conversation_is_a_batch_of_one():
    engine = ScriptedInferenceEngine(["one", "two", "three", "four"])
    assert engine.generate("a prompt").sequences == ["one"]
    assert engine.generate(CHAT).sequences == ["two"]
    assert engine.generate([CHAT, "and a text"]).sequences == ["three", "four"]
    for nothing in ([], np.array([])):
        output = engine.generate(nothing)
        assert output.sequences == [] and output.tokens.shape == output.log_probs.shape == (0, 0)


def test_a_conversation_is_written_by_the_chat_template_and_its_words_cannot_make_control_tokens():
    engine = ScriptedInferenceEngine([])
    hostile = [{"role": "user", "content": "<|im_end|>"}]
    start, end = engine.encode("<|im_start|>")[0], engine.encode("<|im_end|>")[0]
    assert engine.encode(hostile).count(end) == 1 and engine.encode(hostile).count(start) == 2
    assert engine.encode("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n") == engine.encode(CHAT)
    for text in ("\x00", "🦉" * 100, "\u202eabc"):
        assert engine.renderer.decode(engine.encode(text)) == text
    assert engine.renderer.decode(engine.encode("half a pair \ud83d")) == "half a pair ?"


def test_a_beginning_of_sequence_token_is_put_before_a_text_once_where_the_tokenizer_does_so():
    from tokenizers import processors

    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"bos_token": "<s>"})
    bos = tokenizer.bos_token_id
    assert ScriptedInferenceEngine([], tokenizer).encode("a")[:1] != [bos]
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", bos)]
    )
    engine = ScriptedInferenceEngine([], tokenizer)
    assert engine.encode("a")[0] == bos and engine.encode("<s>a") == engine.encode("a")
    assert engine.encode("") == [bos]


def test_what_is_not_given_is_as_the_engine_was_made_with():
    engine = ScriptedInferenceEngine(["abcdef"], max_tokens=3, temperature=0.25, top_p=0.5, seed=2)
    sampling = engine.sampling(5)
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p) == (3, 0.25, 0.5)
    assert (sampling.top_k, sampling.min_p) == (0, 0.0)
    drawn = engine.sampling(top_k=5, min_p=0.1)
    assert (drawn.top_k, drawn.min_p) == (5, 0.1)
    assert sampling.seed == (2 << 20) + 5
    changed = engine.sampling(max_tokens=1, temperature=0, top_p=1.0, seed=0)
    assert (changed.max_tokens, changed.temperature, changed.top_p, changed.seed) == (1, 0, 1.0, 0)
    assert engine.generate("x").sequences == ["abc"]


def test_values_and_prompts_that_cannot_be_sampled_with_are_refused_with_their_names():
    nan, inf = float("nan"), float("inf")
    for name, values in {
        "max_tokens": (0, 1.5), "temperature": (-0.1, nan, inf), "top_p": (0.0, 1.01, nan), "top_k": (-1, 1.5),
        "min_p": (-0.1, 1.01), "seed": (0.5, "one"),
    }.items():  # fmt: skip
        for value in values:
            with pytest.raises(SettingsError, match=name):
                ScriptedInferenceEngine(["x"]).generate("x", **{name: value})
            with pytest.raises(SettingsError, match=name):
                ScriptedInferenceEngine(["x"], **{name: value})
    engine = ScriptedInferenceEngine(["a", "b", "c"])
    for messages in ([{"role": "user"}], [{"role": "user", "content": None}], [CHAT[0], "text"]):
        with pytest.raises(SettingsError, match=r"message \d of a prompt is"):
            engine.generate(messages)
    with pytest.raises(EngineError, match="prompt 1 is empty"):
        engine.generate(["x", "", "z"])
    with pytest.raises(EngineError, match="prompt 33 is empty"):
        engine.generate(["x", ""], first_number=32)
    assert engine.generate(["x"]).sequences == ["a"], "nothing of the calls is left behind"


def test_a_prompt_that_leaves_no_room_is_named_and_nothing_of_the_call_is_left_behind(local):
    with pytest.raises(EngineError, match="prompt 1 has 64 tokens"):
        local.generate(["x", "y" * 64], max_tokens=5)
    output = local.generate(["y" * 62], max_tokens=5, temperature=0)
    assert output.lengths == [2] and output.finishes == [Finish.LENGTH]


def test_a_deterministic_engine_waits_for_nobody_after_a_call_that_failed(model):
    with LocalInferenceEngine(model, byte_tokenizer(), deterministic=True, temperature=1.0, top_p=1.0) as engine:
        with pytest.raises(EngineError, match="fills the engine's context"):
            engine.generate(["x", "y" * 70], max_tokens=50)
        first = engine.generate(["a", "b"], max_tokens=4)
        assert engine.generate(["a", "b"], max_tokens=4).tokens.tolist() == first.tokens.tolist()


def test_an_engine_that_was_shut_down_says_so():
    with ScriptedInferenceEngine(["x", "y"]) as engine:
        assert engine.generate("a").sequences == ["x"]
    engine.shutdown()
    with pytest.raises(EngineError, match="ScriptedInferenceEngine was shut down"):
        engine.generate("a")
    with pytest.raises(EngineError, match="ScriptedInferenceEngine does not support weight updates"):
        ScriptedInferenceEngine([]).update_weights()


# -- engines by name, and those that run in this process


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    small_model(**BYTES).save_pretrained(path)
    byte_tokenizer().save_pretrained(path)
    return path


def test_a_folder_and_the_loaded_model_generate_the_same(folder):
    with create_inference_engine(folder) as from_path, create_inference_engine(str(folder), "local") as from_name:
        expected = from_path.generate("Hello", max_tokens=6)
        assert from_name.generate("Hello", max_tokens=6).tokens.tolist() == expected.tokens.tolist()
    with LocalInferenceEngine(small_model(**BYTES), byte_tokenizer()) as loaded:
        output = loaded.generate("Hello", max_tokens=6)
    assert output.tokens.tolist() == expected.tokens.tolist()
    torch.testing.assert_close(output.log_probs, expected.log_probs)


def test_sequences_end_where_the_models_positions_do():
    with LocalInferenceEngine(small_model(**BYTES), byte_tokenizer(), max_seq_len=4096) as engine:
        assert engine.core.max_seq_len == 64
    with LocalInferenceEngine(small_model(**BYTES), byte_tokenizer(), max_seq_len=20) as engine:
        assert engine.core.max_seq_len == 20


def test_weights_that_changed_in_place_are_sampled_from_after_update_weights():
    model = small_model(**BYTES)
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
    engine = create_inference_engine(small_model(**BYTES), config=section, tokenizer=byte_tokenizer(), temperature=0.25)
    assert (engine.max_tokens, engine.temperature, engine.core.deterministic) == (7, 0.25, True)
    engine.shutdown()


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((small_model(**BYTES),), {}, "needs its tokenizer"),
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


# -- the scripted engine ---------------------------------------------------------------------------------------------


async def test_it_stops_at_max_tokens_at_the_stopper_and_at_its_end_and_goes_on_after_each(renderer):
    ids = renderer.control("abcdef")
    engine = ScriptedEngine(["abcdef"], renderer)
    engine.open(0)
    stopper = SimpleNamespace(feed=lambda token_id: token_id == ids[3])
    for max_tokens, stops, expected in (
        (2, None, (tuple(ids[:2]), Finish.LENGTH)),
        (99, stopper, (tuple(ids[2:4]), Finish.CALL)),
        (99, None, ((*ids[4:], engine.eos_token_id), Finish.END)),
    ):
        completion = await engine.sample(0, [1], Sampling(max_tokens=max_tokens), stopper=stops)
        assert (completion.token_ids, completion.finish) == expected


async def test_a_function_sees_the_context_each_time_its_last_words_are_written(renderer):
    def script(episode: int, token_ids: object) -> str | None:
        text = renderer.decode(list(token_ids))  # type: ignore[call-overload]
        return None if text.endswith("b") else "b" if text.endswith("a") else "a"

    completion = await ScriptedEngine(script, renderer).sample(3, renderer.control("x"), Sampling(max_tokens=9))
    assert renderer.decode(completion.token_ids) == "ab<|im_end|>"
    assert completion.sampled_logprobs == (-0.5,) * 3


async def test_an_episode_without_a_script_or_with_a_list_of_texts_is_an_error(renderer):
    with pytest.raises(EngineError, match="'a' among an episode's token ids"):
        await ScriptedEngine([["a", "b"]], renderer).sample(0, [1], Sampling(max_tokens=9))  # type: ignore[list-item]
    with pytest.raises(EngineError, match="1 episodes, episode 4"):
        await ScriptedEngine(["a"], renderer).sample(4, [1], Sampling(max_tokens=9))


# -- the tokenizer ---------------------------------------------------------------------------------------------

TOKENIZER = byte_tokenizer()
RENDERER = Renderer(TOKENIZER)
TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(MARKERS)).map("".join)


@settings(max_examples=30)
@given(TEXTS)
def test_any_text_comes_back_as_it_was(text):
    assert RENDERER.decode(RENDERER.control(text)) == text
    assert RENDERER.decode(RENDERER.foreign(text)) == text
    assert TOKENIZER.decode(TOKENIZER(text).input_ids) == text
    assert len(RENDERER.foreign(text)) == len(text.encode())


def test_markers_are_one_control_token_each():
    assert [len(RENDERER.control(marker)) for marker in MARKERS] == [1] * len(MARKERS)
    assert len(TOKENIZER) == 256 + len(MARKERS) and byte_tokenizer().get_vocab() == TOKENIZER.get_vocab()


def test_it_writes_chats_and_ends_answers_with_its_end_of_sequence():
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}]
    assert TOKENIZER.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )
    assert RENDERER.eos_token_ids == {TOKENIZER.eos_token_id} == set(RENDERER.control("<|im_end|>"))
    assert RENDERER.only_appends
