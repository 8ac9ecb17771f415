"""A small byte-level tokenizer with merges, control tokens and a chat template, for engines, episodes and verl."""

from collections.abc import Sequence
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

MESSAGES = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
ANSWER_BEGINS = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
CHATML = MESSAGES + ANSWER_BEGINS

_CORPUS = ['#call look {"word": "tide"}', "#look_result: the tide clock", "think and answer the user"] * 4


def small_backend() -> Tokenizer:
    """About 330 tokens, none of them added."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        _CORPUS, trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet, show_progress=False)
    )
    return backend


def small_tokenizer(template: str = CHATML, *, pad: str | None = None, tags: Sequence[str] = ()) -> Any:
    """About 330 tokens. `tags` are further unflagged added tokens besides the tags of the thought, as Qwen's `<tool_call>` is."""
    backend = small_backend()
    backend.add_special_tokens(["<|im_start|>", "<|im_end|>", *([pad] if pad else [])])
    unflagged = ("<think>", "</think>", *tags)
    backend.add_tokens([AddedToken(text, special=False, normalized=False) for text in unflagged])
    made = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", pad_token=pad)
    made.chat_template = template
    return made
