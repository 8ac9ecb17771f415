"""Content of a large memory: chunks of real word sequences, and an embedder that draws their vectors."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from benchmarks.memory_scale.vectors import Mixture
from midthought.memory.chunks import Chunk

CHUNKS_PER_EPISODE = 1_000
NUM_SPEAKERS = 500
RUN_LENGTHS = (3, 4, 5, 6)
WORDS_PER_CHUNK = 16


class DrawnEmbedder:
    """Draws a vector for each text, the same for the same part of texts; queries get the next of `queries` in turn."""

    name = "drawn"
    texts_per_call = 8_192

    def __init__(self, mixture: Mixture, queries: np.ndarray | None = None) -> None:
        self.dimension = mixture.dimension
        self._mixture = mixture
        self._queries = iter(queries if queries is not None else ())

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        return self._mixture.draw(len(texts), np.random.default_rng(zlib.crc32("\n".join(texts).encode())))

    def embed_queries(self, queries: Sequence[str]) -> np.ndarray:
        return np.stack([next(self._queries) for _ in queries])


def draw_chunks(words: Sequence[str], num_chunks: int, seed: int = 0) -> list[Chunk]:
    """Chunks of about 16 words, each of several runs of 3 to 6 words from the real text; no two have the same words."""
    rng = np.random.default_rng(seed)
    num_runs = num_chunks * WORDS_PER_CHUNK // min(RUN_LENGTHS)
    starts = iter(rng.integers(len(words) - max(RUN_LENGTHS), size=num_runs).tolist())
    lengths = iter(rng.choice(RUN_LENGTHS, size=num_runs).tolist())
    speakers = [f"Speaker {number}" for number in rng.permutation(NUM_SPEAKERS)]
    chunks = []
    for number in range(num_chunks):
        text: list[str] = []
        while len(text) < WORDS_PER_CHUNK:
            start = next(starts)
            text += words[start : start + next(lengths)]
        episode, place = divmod(number, CHUNKS_PER_EPISODE)
        stem, time = f"episode-{episode}", f"{place // 400:02}:{place * 9 // 60 % 60:02}:{place * 9 % 60:02}"
        line = " ".join([*text, str(number)])
        speaker = speakers[(episode * 7 + place % 3) % NUM_SPEAKERS]
        chunks.append(Chunk(f"{stem}_{place}", f"Episode {episode}", stem, speaker, line, time, place))
    return chunks
