"""Tokenizer without training: one token per byte, plus chat and thought markers. For tests and tiny models."""

from __future__ import annotations

from typing import Any

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MARKERS = ("<|pad|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>")


def byte_tokenizer() -> Any:
    """Returns a fast tokenizer of 256 bytes and five control tokens with a ChatML template; decoding restores any text."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = Tokenizer(models.BPE(vocab={piece: number for number, piece in enumerate(alphabet)}, merges=[]))
    pieces.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    pieces.decoder = decoders.ByteLevel()
    pieces.add_special_tokens([AddedToken(marker, special=True, normalized=False) for marker in MARKERS])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=pieces, pad_token="<|pad|>", eos_token="<|im_end|>")
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer
