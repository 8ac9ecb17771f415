"""A cross-encoder that orders search results again. Does not depend on the store."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from midthought.errors import ModelPathError
from midthought.memory.search import Hit

NUM_CANDIDATES = 20
"""Number of results of a search that are ordered again."""


class CrossEncoderReranker:
    """A sequence classifier with one output, which reads query and text together (Nogueira and Cho, "Passage re-ranking with
    BERT", 2019); any model or folder that `AutoModelForSequenceClassification` loads from safetensors, without its own code.
    """

    def __init__(self, path: str, *, max_tokens: int = 512, batch_size: int = 32) -> None:
        """The model at `path` is loaded on first use. Pairs are truncated to `max_tokens`."""
        self.path = path
        self._max_tokens = max_tokens
        self._batch_size = batch_size
        self._model: Any = None
        self._tokenizer: Any = None
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        """For another process, which loads the model itself."""
        return {**vars(self), "_model": None, "_tokenizer": None, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.Lock())

    def rerank(self, query: str, hits: Sequence[Hit]) -> list[Hit]:
        """Returns the hits by decreasing score of the model, which becomes their `score`; equal scores keep their order.

        Raises ModelPathError if the model does not load or has another number of outputs.
        """
        import torch

        scores: list[float] = []
        with self._lock, torch.inference_mode():
            self._load()
            for start in range(0, len(hits), self._batch_size):
                texts = [hit.transcript for hit in hits[start : start + self._batch_size]]
                tokens = self._tokenizer(
                    [query] * len(texts),
                    texts,
                    padding=True,
                    truncation="longest_first",
                    max_length=self._max_tokens,
                    return_tensors="pt",
                )
                scores += self._model(**tokens).logits.float().squeeze(-1).tolist()
        scored = [replace(hit, score=score) for hit, score in zip(hits, scores, strict=True)]
        return sorted(scored, key=lambda hit: -hit.score)

    def _load(self) -> None:
        if self._model is not None:
            return
        import transformers

        from midthought.pretrained import quiet_transformers, why_not_loaded

        try:
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(self.path, trust_remote_code=False)
            with quiet_transformers():
                model = transformers.AutoModelForSequenceClassification.from_pretrained(
                    self.path, trust_remote_code=False, use_safetensors=True
                )
        except (OSError, ValueError) as error:
            reason = why_not_loaded(error)
            raise ModelPathError(f"{self.path}: the reranker does not load ({reason}); give a cross-encoder") from None
        if model.config.num_labels != 1:
            raise ModelPathError(
                f"{self.path}: it has {model.config.num_labels} outputs, a reranker has 1; give a cross-encoder, such as "
                "cross-encoder/ms-marco-MiniLM-L6-v2"
            )
        self._max_tokens = min(self._max_tokens, getattr(model.config, "max_position_embeddings", self._max_tokens))
        self._model = model.eval()
