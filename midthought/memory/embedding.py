"""The embedding models that there are, by the words of the settings. Knows no chunks and no store."""

from __future__ import annotations

from pathlib import Path
from typing import cast, get_args

from midthought.errors import SettingsError
from midthought.memory.embedder import Embedder, Progress, embed_in_parts, embed_queries, embed_texts, in_order
from midthought.memory.endpoint_embedder import EndpointEmbedder, EndpointModel
from midthought.memory.minilm import Dtype, MiniLMEmbedder
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


_DTYPES = get_args(Dtype)


def load_embedder(name: str | Path = "minilm", *, measures: bool = True) -> Embedder:
    """`minilm`; the folder of a sentence-transformers model; the folder of another encoder, used like MiniLM; or a model
    behind an OpenAI-compatible endpoint, as `https://HOST/v1#MODEL`, with any settings of `EndpointModel` before the `#`:
    `https://api.openai.com/v1?api_key_env=OPENAI_API_KEY&dimension=512#text-embedding-3-small`.

    `minilm?dtype=float32` (or `bfloat16`, also behind a folder of an encoder) fixes the precision of texts; `auto`, the default,
    measures which one is faster, unless `measures` is False: then it is float32. Raises `SettingsError` for another value.
    """
    if "://" in str(name):
        return EndpointEmbedder(EndpointModel.of_url(str(name)))
    model, _, dtype = str(name).partition("?dtype=")
    if (Path(model) / "modules.json").is_file():
        if dtype:
            raise SettingsError(f"{name}: a sentence-transformers model has no dtype; leave out ?dtype={dtype}")
        return SentenceTransformerEmbedder(model)
    if (dtype or "auto") not in _DTYPES:
        raise SettingsError(f"{name}: dtype={dtype} is not known; give one of {', '.join(_DTYPES)}")
    embedder = MiniLMEmbedder(None if model == "minilm" else model, dtype=cast(Dtype, dtype or "auto"))
    return embedder if measures or embedder.precision else embedder.in_precision("float32")
