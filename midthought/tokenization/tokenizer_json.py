"""Changes to a tokenizer.json: without prepended blanks, without tokens that foreign text must not become."""

from __future__ import annotations

import uuid
from typing import Any


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
