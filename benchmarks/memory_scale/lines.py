"""Content of a large memory: chunks or windows of real word sequences, and an embedder that draws their vectors."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence

import numpy as np

from benchmarks.memory_scale.vectors import Mixture
from midthought.memory.chunks import Chunk

CHUNKS_PER_EPISODE = 1_000
NUM_SPEAKERS = 500
RUN_LENGTHS = (3, 4, 5, 6)
WORDS_PER_CHUNK = 16
WORDS_PER_SENTENCE, SENTENCES_PER_WINDOW, SENTENCES_PER_STEP = 18, 11, 3
"""Of the windows of `changelog_md`: words per sentence, sentences displayed, sentences between the starts of two windows."""


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
    chunks = []
    for number, text in enumerate(_draw_texts(words, num_chunks, WORDS_PER_CHUNK, seed)):
        stem, time, place = _place_of(number)
        chunks.append(
            Chunk(f"{stem}_{place}", _episode_of(stem), stem, _speaker_of(stem, place % 3), text, time, place)
        )
    return chunks


def draw_windows(words: Sequence[str], num_windows: int, seed: int = 0) -> list[Chunk]:
    """Windows of two speakers, about 200 displayed words in 11 sentences, of which the next window has the last 8."""
    num_sentences = (num_windows - 1) * SENTENCES_PER_STEP + SENTENCES_PER_WINDOW
    said = [f"{text.capitalize()}." for text in _draw_texts(words, num_sentences, WORDS_PER_SENTENCE, seed)]
    windows = []
    for number in range(num_windows):
        stem, time, place = _place_of(number)
        first = number * SENTENCES_PER_STEP
        sentences = said[first : first + SENTENCES_PER_WINDOW]
        speakers = [_speaker_of(stem, place % 3), _speaker_of(stem, place % 3 + 1)]
        turns = ((0, speakers[0]), (sum(len(each.split()) for each in sentences[:5]), speakers[1]))
        embedded = f"{_episode_of(stem)}. {', '.join(speakers)}.\n{' '.join(sentences[3:8])}"
        names, text = ", ".join(speakers), " ".join(sentences)
        windows.append(Chunk(f"{stem}_{place}", _episode_of(stem), stem, names, text, time, place, turns, embedded))
    return windows


def _draw_texts(words: Sequence[str], num_texts: int, num_words: int, seed: int) -> Iterator[str]:
    rng = np.random.default_rng(seed)
    num_runs = num_texts * (num_words // min(RUN_LENGTHS) + 1)
    starts = iter(rng.integers(len(words) - max(RUN_LENGTHS), size=num_runs).tolist())
    lengths = iter(rng.choice(RUN_LENGTHS, size=num_runs).tolist())
    for number in range(num_texts):
        text: list[str] = []
        while len(text) < num_words:
            start = next(starts)
            text += words[start : start + next(lengths)]
        yield " ".join([*text, str(number)])


def _place_of(number: int) -> tuple[str, str, int]:
    """Stem, time and place in the episode of the memory's chunk of this number."""
    episode, place = divmod(number, CHUNKS_PER_EPISODE)
    return f"episode-{episode}", f"{place // 400:02}:{place * 9 // 60 % 60:02}:{place * 9 % 60:02}", place


def _episode_of(stem: str) -> str:
    return f"Episode {stem.rpartition('-')[2]}"


def _speaker_of(stem: str, voice: int) -> str:
    return f"Speaker {(int(stem.rpartition('-')[2]) * 7 + voice) * 317 % NUM_SPEAKERS}"
