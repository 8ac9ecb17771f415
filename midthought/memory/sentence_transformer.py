"""A sentence-transformers model folder, with its own pooling, normalization and prompts. Does not depend on the store."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from midthought.config.references import optional
from midthought.memory.minilm import does_not_load, fingerprint


class SentenceTransformerEmbedder:
    """Computes the same as `sentence_transformers.SentenceTransformer` for a folder with `modules.json`.

    Texts get the folder's document prompt and queries its query prompt, if it has any. Vectors are always normalized,
    because the memory compares by cosine. Only safetensors are loaded, and no code from the folder is run.
    """

    def __init__(self, path: str | Path, *, batch_size: int = 64) -> None:
        """Loads the model, to know its dimension. Raises MissingExtraError and ModelPathError."""
        self._path = Path(path)
        self.name = f"{self._path.resolve().name}-{fingerprint(self._path)}"
        self._batch_size = batch_size
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
                list(texts), batch_size=self._batch_size, show_progress_bar=False, normalize_embeddings=True
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
