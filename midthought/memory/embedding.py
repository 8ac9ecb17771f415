"""Embedding models: the interface, loading by name (sentence-transformers), embedding in batches. Also vectors of the sentences
of a window, by which a vector search orders the windows it has found. Does not depend on chunks or the store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from midthought.config.references import optional
from midthought.memory.endpoint_embedder import EndpointEmbedder, EndpointModel
from midthought.memory.minilm import MiniLMEmbedder, does_not_load, fingerprint

Progress = Callable[[int, int], None]
"""Called with (texts embedded so far, texts to embed)."""

_TEXTS_PER_CALL = 512
_TEXTS_PER_STEP = 64


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


def load_embedder(name: str | Path = "minilm") -> Embedder:
    """Returns the embedder of this name:

    - `minilm`
    - the folder of a sentence-transformers model
    - the folder of another encoder, used like MiniLM
    - `https://HOST/v1#MODEL`: a model behind an OpenAI-compatible endpoint. Settings of `EndpointModel` may precede the `#`:
      `https://api.openai.com/v1?api_key_env=OPENAI_API_KEY&dimension=512#text-embedding-3-small`
    """
    if "://" in str(name):
        return EndpointEmbedder(EndpointModel.of_url(str(name)))
    if (Path(name) / "modules.json").is_file():
        return SentenceTransformerEmbedder(name)
    return MiniLMEmbedder(None if name == "minilm" else name)


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
    for start in range(0, len(texts), size):
        if progress:
            progress(start, len(texts))
        part = texts[start : start + size]
        yield part, embedder.embed(part)
    if progress and texts:
        progress(len(texts), len(texts))


class SentenceTransformerEmbedder:
    """Computes the same as `sentence_transformers.SentenceTransformer` for a folder with `modules.json`.

    Texts get the folder's document prompt and queries its query prompt, if it has any. Vectors are always normalized,
    because the memory compares by cosine. Only safetensors are loaded, and no code from the folder is run.
    """

    def __init__(self, path: str | Path) -> None:
        """Loads the model, to know its dimension. Raises MissingExtraError and ModelPathError."""
        self._path = Path(path)
        self.name = f"{self._path.resolve().name}-{fingerprint(self._path)}"
        self._load()
        self.dimension = len(self._encode(["a"], "encode_document")[0])

    def __getstate__(self) -> dict[str, Any]:
        """For another process, which loads the model itself."""
        return {**vars(self), "_model": None, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._load()

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Returns unit vectors of documents, float32 [N, D]."""
        return self._encode(texts, "encode_document")

    def embed_queries(self, queries: Sequence[str]) -> np.ndarray:
        """Returns unit vectors of queries, float32 [N, D]."""
        return self._encode(queries, "encode_query")

    def _encode(self, texts: Sequence[str], kind: str) -> np.ndarray:
        if not texts:
            return np.zeros((0, self.dimension), dtype=np.float32)
        with self._lock:  # a tokenizer keeps its padding as state
            vectors = getattr(self._model, kind)(
                list(texts), batch_size=_TEXTS_PER_STEP, show_progress_bar=False, normalize_embeddings=True
            )
        return np.asarray(vectors, dtype=np.float32)

    def _load(self) -> None:
        package = optional("sentence_transformers", "memory")
        self._lock = threading.Lock()
        options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False, "device": "cpu"}
        try:
            self._model: Any = package.SentenceTransformer(
                str(self._path), **options, model_kwargs={"use_safetensors": True}
            ).eval()
        except Exception as error:  # a folder's settings can cause any error in that library
            raise does_not_load(self._path, error) from None


_WEIGHT = 0.8
_NUM_SENTENCES = 2
_LARGEST = 127


def packed(vectors: np.ndarray) -> bytes:
    """Returns unit vectors, float32 [N, D], as N · D signed bytes: a cosine changes by less than 0.01."""
    largest = np.abs(vectors).max(axis=1, keepdims=True, initial=np.finfo(np.float32).tiny)
    return np.rint(vectors * (_LARGEST / largest)).astype(np.int8).tobytes()


def window_scores(cosines: Sequence[float], query: np.ndarray, sentences: Sequence[bytes]) -> list[float]:
    """Returns the scores of windows with these cosines to the query, float32 [D]; the cosine of a window
    without sentences, or with bytes that are not whole vectors.

    A window's own vector stands for all that is said in it, but a question asks about one or two of its sentences. The score is

        (cos(query, window) + 0.8 · mean of the two largest cos(query, sentence)) / 1.8

    Weight and number were chosen on the questions for tuning (`python -m benchmarks paraphrases`).
    """
    of_windows = [content if len(content) % len(query) == 0 else b"" for content in sentences]
    vectors = np.frombuffer(b"".join(of_windows), dtype=np.int8).reshape(-1, len(query)).astype(np.float32)
    of_sentences = iter((vectors @ query / np.maximum(np.linalg.norm(vectors, axis=1), 1)).tolist())
    return [
        _score(cosine, list(islice(of_sentences, len(content) // len(query))))
        for cosine, content in zip(cosines, of_windows, strict=True)
    ]


def _score(cosine: float, of_sentences: list[float]) -> float:
    largest = sorted(of_sentences)[-_NUM_SENTENCES:]
    return (cosine + _WEIGHT * sum(largest) / len(largest)) / (1 + _WEIGHT) if largest else cosine
