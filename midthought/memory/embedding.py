"""The embedding models that there are, by the words of the settings. Knows no chunks and no store."""

from __future__ import annotations

from pathlib import Path

from midthought.memory.embedder import Embedder, Progress, embed_in_parts, embed_queries, embed_texts, in_order
from midthought.memory.endpoint_embedder import EndpointEmbedder, EndpointModel
from midthought.memory.minilm import MiniLMEmbedder
from midthought.memory.sentence_transformer import SentenceTransformerEmbedder

__all__ = [
    "Embedder",
    "EndpointEmbedder",
    "EndpointModel",
    "MiniLMEmbedder",
    "Progress",
    "SentenceTransformerEmbedder",
    "embed_in_parts",
    "embed_queries",
    "embed_texts",
    "in_order",
    "load_embedder",
]


def load_embedder(name: str | Path = "minilm") -> Embedder:
    """`minilm`; the folder of a sentence-transformers model; the folder of another encoder, used like MiniLM; or a model
    behind an OpenAI-compatible endpoint, as `https://HOST/v1#MODEL`, with any settings of `EndpointModel` before the `#`:
    `https://api.openai.com/v1?api_key_env=OPENAI_API_KEY&dimension=512#text-embedding-3-small`.
    """
    if "://" in str(name):
        return EndpointEmbedder(EndpointModel.of_url(str(name)))
    if str(name) == "minilm":
        return MiniLMEmbedder()
    if (Path(name) / "modules.json").is_file():
        return SentenceTransformerEmbedder(name)
    return MiniLMEmbedder(name)
