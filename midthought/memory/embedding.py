"""The embedding models that there are, by the words of the settings. Knows no chunks and no store."""

from __future__ import annotations

from pathlib import Path

from midthought.errors import SettingsError
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


def load_embedder(
    name_or_path: str | Path = "minilm", base_url: str = "", api_key_env: str = "", dimension: int | None = None
) -> Embedder:
    """`minilm`; the folder of a sentence-transformers model; the folder of another encoder, used like MiniLM.

    With a `base_url`, the model of that name behind an OpenAI-compatible endpoint; `api_key_env` is the environment
    variable that holds the key. `EndpointEmbedder(EndpointModel(...))` takes more settings.
    """
    if base_url:
        model = EndpointModel(
            model=str(name_or_path), base_url=base_url, api_key_env=api_key_env or None, dimension=dimension
        )
        return EndpointEmbedder(model)
    if api_key_env or dimension:
        raise SettingsError(
            "a key and a dimension are for an endpoint; give its address (embedding_url), or leave them out"
        )
    if str(name_or_path) == "minilm":
        return MiniLMEmbedder()
    if (Path(name_or_path) / "modules.json").is_file():
        return SentenceTransformerEmbedder(name_or_path)
    return MiniLMEmbedder(name_or_path)
