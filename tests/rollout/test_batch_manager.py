"""Many prompts through one engine: the same as one call, whatever the size of the batches."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from precision import logit_tolerance
from small_qwen import small_model
from transformers import Qwen3Config

from midthought.engines.inference_engines import LocalInferenceEngine, ScriptedInferenceEngine
from midthought.engines.scripted import byte_tokenizer
from midthought.errors import EngineError, SettingsError
from midthought.rollout.batch_manager import BatchInferenceManager
from midthought.tokenization import Renderer


def echo() -> ScriptedInferenceEngine:
    """Writes a prompt's bytes once again."""
    return ScriptedInferenceEngine(lambda episode, token_ids: [*token_ids, 258])


def same(one, other) -> None:
    assert (one.sequences, one.lengths, one.finishes) == (other.sequences, other.lengths, other.finishes)
    assert torch.equal(one.tokens, other.tokens) and torch.equal(one.log_probs, other.log_probs)


@settings(max_examples=25)
@given(prompts=st.lists(st.text("ab", min_size=1, max_size=6), max_size=9), batch_size=st.integers(1, 10))
def test_batches_of_any_size_give_what_one_call_gives(prompts, batch_size):
    same(
        BatchInferenceManager(echo(), batch_size).generate_batch(prompts=prompts, max_tokens=5),
        echo().generate(prompts, max_tokens=5),
    )


def test_a_models_samples_do_not_depend_on_the_batches_and_no_two_rows_share_their_draws():
    model = small_model(Qwen3Config, Renderer(byte_tokenizer()))
    with LocalInferenceEngine(model, byte_tokenizer(), temperature=1.0, top_p=1.0) as engine:
        whole = engine.generate(["Hello"] * 6, max_tokens=8)
        parted = BatchInferenceManager(engine, 2).generate_batch(prompts=["Hello"] * 6, max_tokens=8)
        other = BatchInferenceManager(engine, 4).generate_batch(prompts=["Hello"] * 6, max_tokens=8, seed=1)
    assert parted.sequences == whole.sequences and len(set(parted.sequences)) == 6
    assert set(other.sequences).isdisjoint(whole.sequences)
    torch.testing.assert_close(parted.log_probs, whole.log_probs, atol=logit_tolerance(model), rtol=0)


def test_one_prompt_and_one_conversation_are_batches_of_one():
    engine = ScriptedInferenceEngine(["a", "b"])
    manager = BatchInferenceManager(engine)
    assert manager.generate_batch("x").sequences == ["a"]
    assert manager.generate_batch([{"role": "user", "content": "x"}]).sequences == ["b"]


def test_a_failing_batch_names_its_first_prompt_and_keeps_the_cause():
    manager = BatchInferenceManager(echo(), batch_size=2)
    with pytest.raises(EngineError, match=r"from prompt 2 on \('the third'\) failed: prompt 3 is empty") as caught:
        manager.generate_batch(prompts=["a", "b", "the third", ""])
    assert isinstance(caught.value.__cause__, EngineError)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temprature": 1.0}, "unknown key 'temprature' in settings. Did you mean 'temperature'"),
        ({"top_p": 0.0}, "top_p=0.0"),
        ({"max_tokens": 0}, "max_tokens=0"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_generated(options, message):
    with pytest.raises(SettingsError, match=message):
        BatchInferenceManager(echo()).generate_batch(prompts=[], **options)
    with pytest.raises(SettingsError, match="batch_size=0"):
        BatchInferenceManager(echo(), batch_size=0)
