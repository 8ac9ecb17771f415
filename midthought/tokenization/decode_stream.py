"""Decodes a stream of tokens piece by piece. Does not depend on chat templates."""

from __future__ import annotations

import codecs
from typing import Protocol

from tokenizers import Tokenizer

_MAX_CHARACTER_TOKENS = 4
"""A UTF-8 character has at most four bytes, so at most four tokens."""


class DecodeStream(Protocol):
    """Decodes a stream of tokens piece by piece.

    `tokenizers.decoders.DecodeStream` decodes all tokens since the last whole character again: if a model samples stray
    bytes, this takes quadratic time, and the result differs from `decode`.
    """

    def step(self, token_id: int) -> str:
        """Returns the text that this token completes; empty while a character is incomplete."""
        ...


class Spellings(dict[int, tuple[bytes, str | None]]):
    """Maps tokens of a byte-level tokenizer to their bytes, and to their text if the bytes are whole characters."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self._tokenizer = tokenizer

    def __missing__(self, token_id: int) -> tuple[bytes, str | None]:
        piece = self._tokenizer.id_to_token(token_id) or ""
        values = [_BYTES.get(character) for character in piece]
        spelling = piece.encode() if None in values else bytes(value or 0 for value in values)
        try:
            self[token_id] = (spelling, spelling.decode())
        except UnicodeDecodeError:
            self[token_id] = (spelling, None)
        return self[token_id]


class ByteStream:
    """For byte-level tokenizers, whose tokens are known bytes. The joined pieces equal `decode` of the ids, including stray
    bytes, except for an incomplete character at the end."""

    def __init__(self, spellings: Spellings) -> None:
        self._spellings = spellings
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._is_between_characters = True

    def step(self, token_id: int) -> str:
        spelling, text = self._spellings[token_id]
        if text is not None and self._is_between_characters:
            return text
        piece = self._decoder.decode(spelling)
        self._is_between_characters = not self._decoder.getstate()[0]
        return piece


class WindowStream:
    """For other tokenizers: decodes the tokens of the last piece and the later ones, eight at most. The joined pieces equal
    `decode` of the ids if these spell valid UTF-8 without U+FFFD."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._read_ids: list[int] = []
        self._read_text = ""
        self._pending_ids: list[int] = []

    def step(self, token_id: int) -> str:
        self._pending_ids.append(token_id)
        text = self._tokenizer.decode(self._read_ids + self._pending_ids, skip_special_tokens=False)
        if text.endswith("\ufffd") and len(self._pending_ids) < _MAX_CHARACTER_TOKENS:
            return ""
        piece = text[len(self._read_text) :]
        self._read_ids, self._pending_ids = self._pending_ids, []
        self._read_text = self._tokenizer.decode(self._read_ids, skip_special_tokens=False)
        return piece


def _byte_alphabet() -> dict[str, int]:
    """Returns the characters that represent bytes in byte-level tokenizers (GPT-2): printable Latin-1 itself, others from 256."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(256 + number): byte for number, byte in enumerate(others)}


_BYTES = _byte_alphabet()
