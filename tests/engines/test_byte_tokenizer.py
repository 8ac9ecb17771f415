"""A tokenizer made of nothing: one token a byte, and text comes back as it was."""

from hypothesis import given, settings
from hypothesis import strategies as st

from midthought.engines.scripted import MARKERS, byte_tokenizer
from midthought.tokenization import Renderer

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
