"""The engine that writes what it is told to, and a tokenizer made of nothing: one token a byte, and text comes back as it was."""

import asyncio
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midthought.engines.engine import Sampling
from midthought.engines.scripted import MARKERS, ScriptedEngine, byte_tokenizer
from midthought.errors import EngineError
from midthought.tokenization import Renderer
from midthought.types import Finish


def test_it_stops_at_max_tokens_at_the_stopper_and_at_its_end_and_goes_on_after_each(renderer):
    ids = renderer.control("abcdef")
    engine = ScriptedEngine(["abcdef"], renderer)

    async def run() -> list[tuple[tuple[int, ...], Finish]]:
        engine.open(0)
        first = await engine.sample(0, [1], Sampling(max_tokens=2))
        second = await engine.sample(
            0, [1], Sampling(max_tokens=99), stopper=SimpleNamespace(feed=lambda token_id: token_id == ids[3])
        )
        third = await engine.sample(0, [1], Sampling(max_tokens=99))
        return [(completion.token_ids, completion.finish) for completion in (first, second, third)]

    assert asyncio.run(run()) == [
        (tuple(ids[:2]), Finish.LENGTH),
        (tuple(ids[2:4]), Finish.CALL),
        ((*ids[4:], engine.eos_token_id), Finish.END),
    ]


def test_a_function_sees_the_context_each_time_its_last_words_are_written(renderer):
    def script(episode: int, token_ids: object) -> str | None:
        text = renderer.decode(list(token_ids))  # type: ignore[call-overload]
        return None if text.endswith("b") else "b" if text.endswith("a") else "a"

    engine = ScriptedEngine(script, renderer)
    completion = asyncio.run(engine.sample(3, renderer.control("x"), Sampling(max_tokens=9)))
    assert renderer.decode(completion.token_ids) == "ab<|im_end|>"
    assert completion.sampled_logprobs == (-0.5,) * 3


def test_an_episode_without_a_script_or_with_a_list_of_texts_is_an_error(renderer):
    with pytest.raises(EngineError, match="'a' among an episode's token ids"):
        script = [["a", "b"]]
        asyncio.run(ScriptedEngine(script, renderer).sample(0, [1], Sampling(max_tokens=9)))  # type: ignore[arg-type]
    with pytest.raises(EngineError, match="1 episodes, episode 4"):
        asyncio.run(ScriptedEngine(["a"], renderer).sample(4, [1], Sampling(max_tokens=9)))


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


def test_markers_are_one_control_token_each_and_foreign_text_cannot_make_them():
    for marker in MARKERS:
        assert len(RENDERER.control(marker)) == 1
        assert len(RENDERER.foreign(marker)) == len(marker)
    assert len(TOKENIZER) == 256 + len(MARKERS) and byte_tokenizer().get_vocab() == TOKENIZER.get_vocab()


def test_it_writes_chats_and_ends_answers_with_its_end_of_sequence():
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}]
    assert TOKENIZER.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )
    assert RENDERER.eos_token_ids == {TOKENIZER.eos_token_id} == set(RENDERER.control("<|im_end|>"))
    assert RENDERER.only_appends
