"""Embedding models: their interface, loading one by name, and embedding in batches. Does not depend on chunks or the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol, cast, get_args, runtime_checkable

import numpy as np

from midthought.errors import SettingsError
from midthought.memory.endpoint_embedder import EndpointEmbedder, EndpointModel
from midthought.memory.minilm import Dtype, MiniLMEmbedder
from midthought.memory.sentence_transformer import SentenceTransformerEmbedder
from midthought.models.precision import Precision, PrecisionChoice

Progress = Callable[[int, int], None]
"""Called with (texts embedded so far, texts to embed)."""

_TEXTS_PER_CALL = 512
_DTYPES = get_args(Dtype)


class Embedder(Protocol):
    """Interface of an embedding model. `embed` may be called from several threads.

    Optional members: `embed_queries`, if the model encodes queries differently from documents; `texts_per_call`, the batch
    size of one call.
    """

    @property
    def name(self) -> str:
        """Stored with the vectors to identify the model; another model has another name."""
        ...

    @property
    def dimension(self) -> int:
        """D, the length of a vector."""
        ...

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Returns unit vectors, float32 [N, D], in the order of `texts`."""
        ...


@runtime_checkable
class MeasuredEmbedder(Embedder, Protocol):
    """An embedder that computes texts in float32 or bfloat16. All vectors of a table have one precision."""

    dtype: str
    """The user's setting: `auto`, `float32` or `bfloat16`."""
    precision: Precision | None
    """Precision of texts; None: not chosen yet."""
    choice: PrecisionChoice | None
    """The measurement that chose the precision, if there was one."""

    def in_precision(self, precision: Precision | None) -> MeasuredEmbedder:
        """Returns the same model with texts in this precision; None: not chosen."""
        ...

    def settle(self, texts: Sequence[str]) -> Precision:
        """Chooses the precision of these and all later texts, if it is not chosen yet, and returns it."""
        ...


def load_embedder(name: str | Path = "minilm", *, measures: bool = True) -> Embedder:
    """Returns the embedder of this name:

    - `minilm`
    - the folder of a sentence-transformers model
    - the folder of another encoder, used like MiniLM
    - `https://HOST/v1#MODEL`: a model behind an OpenAI-compatible endpoint. Settings of `EndpointModel` may precede the `#`:
      `https://api.openai.com/v1?api_key_env=OPENAI_API_KEY&dimension=512#text-embedding-3-small`

    `minilm?dtype=float32` (or `bfloat16`; also after the folder of an encoder) fixes the precision of texts. The
    default `auto` measures which one is faster; if `measures` is False it is float32. Raises `SettingsError` for
    another value.
    """
    if "://" in str(name):
        return EndpointEmbedder(EndpointModel.of_url(str(name)))
    model, _, dtype = str(name).partition("?dtype=")
    if (Path(model) / "modules.json").is_file():
        if dtype:
            raise SettingsError(f"{name}: a sentence-transformers model has no dtype; leave out ?dtype={dtype}")
        return SentenceTransformerEmbedder(model)
    if (dtype or "auto") not in _DTYPES:
        raise SettingsError(f"{name}: unknown dtype={dtype}; give one of {', '.join(_DTYPES)}")
    embedder = MiniLMEmbedder(None if model == "minilm" else model, dtype=cast(Dtype, dtype or "auto"))
    return embedder if measures or embedder.precision else embedder.in_precision("float32")


def embed_queries(queries: Sequence[str], embedder: Embedder) -> np.ndarray:
    """Returns unit vectors of search queries, float32 [N, D], in order."""
    own: Callable[[Sequence[str]], np.ndarray] = getattr(embedder, "embed_queries", embedder.embed)
    return own(queries)


def embed_texts(texts: Sequence[str], embedder: Embedder, progress: Progress | None = None) -> np.ndarray:
    """Returns unit vectors, float32 [N, D], in the order of `texts`; equal texts are embedded once."""
    unique = in_order(set(texts))
    row_of = {text: row for row, text in enumerate(unique)}
    vectors = np.zeros((len(unique), embedder.dimension), dtype=np.float32)
    for part, found in embed_in_parts(unique, embedder, progress):
        vectors[[row_of[text] for text in part]] = found
    return vectors[[row_of[text] for text in texts]] if texts else vectors


def in_order(texts: set[str]) -> list[str]:
    """Sorts texts by length, in a reproducible order."""
    return sorted(texts, key=lambda text: (len(text), text))


def embed_in_parts(
    texts: Sequence[str], embedder: Embedder, progress: Progress | None = None
) -> Iterator[tuple[Sequence[str], np.ndarray]]:
    """Yields batches of `texts` with their vectors, each as soon as it is computed.

    Batch boundaries are multiples of `texts_per_call`, so a resumed job has the same batches as an uninterrupted one.
    """
    size = getattr(embedder, "texts_per_call", _TEXTS_PER_CALL)
    parts = [texts[start : start + size] for start in range(0, len(texts), size)]
    num_done = 0
    if isinstance(embedder, MeasuredEmbedder) and parts:
        embedder.settle(texts)
    if progress and parts:
        progress(0, len(texts))
    for part in parts:
        yield part, embedder.embed(part)
        num_done += len(part)
        if progress:
            progress(num_done, len(texts))
