"""Runs of recipes in this process embed the same short transcripts: each text is embedded once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest


@pytest.fixture(scope="session", autouse=True)
def _embed_each_text_once() -> Iterator[None]:
    from midthought.memory.minilm import MiniLMEmbedder

    embed, vectors = MiniLMEmbedder.embed, {}

    def embed_new(self: MiniLMEmbedder, texts: Sequence[str]) -> np.ndarray:
        model = self.name
        new = [text for text in dict.fromkeys(texts) if (model, text) not in vectors]
        if new:
            vectors.update(zip([(model, text) for text in new], embed(self, new), strict=True))
        return np.stack([vectors[model, text] for text in texts]) if texts else embed(self, texts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MiniLMEmbedder, "embed", embed_new)
        yield
