"""Passages of two episodes about the same subject, for questions that need both."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from midthought.errors import SettingsError
from midthought.memory.chunks import Chunk
from midthought.memory.llm_questions.episodes import GenerationPlan, Source, rotated
from midthought.memory.llm_questions.prompts import ACROSS_KINDS

WINDOW_WORDS = 250
"""Each episode's passage has at least this many words, if the episode has."""
NUM_HITS = 50
MAX_TRIES = 4
"""Anchors are drawn up to this many times the number of pairs."""


def pair_sources(
    episodes: Sequence[Sequence[Chunk]], search: Callable[[str, int], Sequence[Any]], plan: GenerationPlan, seed: int
) -> list[Source]:
    """Returns the sources of questions that need two episodes.

    A passage is drawn from each episode in turn; the other is around the best hit of a search for it in another episode.
    `search` returns the best hits for a text, at most this many. Each pair of episodes is one source. Raises SettingsError if
    there is one episode only.
    """
    if not plan.num_across:
        return []
    if len(episodes) < 2:
        raise SettingsError(f"questions across episodes need two episodes, not {len(episodes)}; leave num_across at 0")
    kinds = plan.kinds_of(ACROSS_KINDS)
    num_stretches = -(-plan.num_across // len(kinds))
    by_stem = {chunks[0].stem: chunks for chunks in episodes}
    places = {chunk.chunk_id: (stem, place) for stem, own in by_stem.items() for place, chunk in enumerate(own)}
    rng = random.Random(f"episode-pairs-{seed}")
    stretches: dict[tuple[str, str], list[list[Chunk]]] = defaultdict(list)
    num_found = 0
    for turn in range(MAX_TRIES * num_stretches):
        stem, chunks = list(by_stem.items())[turn % len(by_stem)]
        first = window(chunks, rng.randrange(len(chunks)))
        hits = search(" ".join(chunk.transcript for chunk in first), NUM_HITS)
        other = next((places[hit.chunk_id] for hit in hits if places.get(hit.chunk_id, (stem,))[0] != stem), None)
        if other is not None:
            second = window(by_stem[other[0]], other[1])
            stretches[min(stem, other[0]), max(stem, other[0])].append([*first, *second])
            num_found += 1
        if num_found == num_stretches:
            break
    return _sources(stretches, by_stem, plan.num_across, kinds)


def _sources(
    stretches: Mapping[tuple[str, str], Sequence[Sequence[Chunk]]],
    by_stem: Mapping[str, Sequence[Chunk]],
    num_pairs: int,
    kinds: Sequence[str],
) -> list[Source]:
    num_stretches = sum(map(len, stretches.values()))
    sources: list[Source] = []
    num_before = 0
    for place, (stems, own) in enumerate(stretches.items()):
        num_until = num_before + len(own)
        share = num_pairs * num_until // num_stretches - num_pairs * num_before // num_stretches
        title = " and ".join(f'"{by_stem[stem][0].episode}"' for stem in stems)
        sources.append(Source("+".join(stems), title, tuple(own), share, rotated(kinds, place), is_across=True))
        num_before = num_until
    return sources


def window(chunks: Sequence[Chunk], place: int) -> list[Chunk]:
    """Returns the chunks around a place that have at least `WINDOW_WORDS` words together, or all."""
    first = last = place
    num_words = len(chunks[place].transcript.split())
    while num_words < WINDOW_WORDS and (first > 0 or last < len(chunks) - 1):
        if first > 0:
            first -= 1
            num_words += len(chunks[first].transcript.split())
        if last < len(chunks) - 1 and num_words < WINDOW_WORDS:
            last += 1
            num_words += len(chunks[last].transcript.split())
    return list(chunks[first : last + 1])
