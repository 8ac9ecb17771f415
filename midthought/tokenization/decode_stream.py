"""How a tokenizer spells text: decodes a stream of tokens piece by piece, and changes a tokenizer.json so that it prepends no
blank and has no token that foreign text must not become. Does not depend on chat templates.
"""

from __future__ import annotations

import codecs
import uuid
from typing import Any, Protocol

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


def without_prefix(node: Any) -> Any:
    """Returns a normalizer, pre-tokenizer or decoder (tokenizer.json) that neither adds nor removes a blank before a text."""
    if not isinstance(node, dict):
        return node
    if node["type"] == "Prepend" or (node["type"] == "Strip" and "start" in node):
        return None
    node = dict(node)
    for key in ("normalizers", "pretokenizers", "decoders"):
        if key in node:
            node[key] = [part for part in map(without_prefix, node[key]) if part is not None]
    if node["type"] == "Metaspace":
        node["prepend_scheme"] = "never"
    if node["type"] == "ByteLevel":
        node["add_prefix_space"] = False
    return node


def without_tokens(model: dict[str, Any], token_ids: frozenset[int]) -> dict[str, Any]:
    """Returns a model (tokenizer.json) that cannot produce these tokens; the ids of the others are unchanged.

    A vocabulary may contain added tokens as ordinary pieces, which Unigram, WordLevel and merged words would find.
    They get names that occur in no text. Single characters keep their names: otherwise the character would be lost.
    """
    vocab = model["vocab"]
    pieces = enumerate(piece for piece, _ in vocab) if isinstance(vocab, list) else ((i, p) for p, i in vocab.items())
    hidden = {p: f"{uuid.uuid4().hex}{i}" for i, p in pieces if i in token_ids and len(p) > 1}
    model = dict(model)
    if isinstance(vocab, list):
        model["vocab"] = [[hidden.get(piece, piece), score] for piece, score in vocab]
    else:
        model["vocab"] = {hidden.get(piece, piece): token_id for piece, token_id in vocab.items()}
    if model.get("unk_token") is not None:
        model["unk_token"] = hidden.get(model["unk_token"], model["unk_token"])
    if "merges" in model:
        pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
        model["merges"] = [
            [left, right] for left, right in pairs if hidden.keys().isdisjoint((left, right, left + right))
        ]
    return model
