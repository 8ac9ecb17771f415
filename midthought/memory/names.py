"""Names of transcripts in a memory: a transcript keeps the name that it has there. Writes nothing.

`transcripts` derives a name from the files that are read together, so other files of the same name change it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from midthought.errors import MemoryStoreError
from midthought.memory.duplicates import duplicate_groups, is_corrected
from midthought.memory.search import Hit, words_in_a_row
from midthought.memory.store import MemoryStore
from midthought.memory.transcripts import Transcript

_PROBE_WORDS, _NUM_PROBED, _NUM_COMPARED, _MIN_RUN = 16, 10, 2, 5
_PROBES = (0.5, 0.25, 0.75)
"""Where in a transcript the words are that are searched for."""


def with_stored_names(transcripts: Sequence[Transcript], store: MemoryStore) -> list[Transcript]:
    """Returns the transcripts, in order; one that the memory has under another name which its path allows, under that name.

    A path allows the file's name alone, after one or more of its folders (`a-tide`), or with its suffix. The memory has a
    transcript if `is_corrected` holds.
    """
    stored = store.stems() if store.is_built else frozenset()
    taken, named = {each.stem for each in transcripts}, list[Transcript]()
    for each in transcripts:
        others = [name for name in _allowed_names(each.path) if name in stored and name not in taken]
        if others:
            said, names = store.words_of([each.stem, *others]), [each.stem, *others]
            text = _text(each)
            name = next((name for name in names if name in said and is_corrected(said[name], text)), each.stem)
            each = each if name == each.stem else replace(each, stem=name)
            taken.add(name)
        named.append(each)
    return named


def same_words(transcripts: Sequence[Transcript], store: MemoryStore) -> Iterator[tuple[Transcript, str]]:
    """Yields new transcripts with the name of a stored one of nearly the same words that is not among the transcripts, as
    `duplicate_groups` compares them."""
    stored = store.stems() if store.is_built else frozenset()
    given = {each.stem for each in transcripts}
    for each in transcripts if stored - given else ():
        if each.stem not in stored and (name := _stored_copy(_text(each), store, given)):
            yield each, name


def _stored_copy(text: str, store: MemoryStore, given: Collection[str]) -> str | None:
    words, tried = text.split(), set(given)
    for place in _PROBES:
        start = int(place * max(0, len(words) - _PROBE_WORDS))
        probe, hits = " ".join(words[start : start + _PROBE_WORDS]), list[Hit]()
        with contextlib.suppress(MemoryStoreError):  # an interrupted build has no index of words
            hits = store.search(probe, _NUM_PROBED, "full_text")
        for name in _likely(probe, hits, tried):
            if duplicate_groups([text, store.words_of([name]).get(name, "")]):
                return name
            tried.add(name)
    return None


def _likely(probe: str, hits: Sequence[Hit], others: Collection[str]) -> list[str]:
    """Returns the names, without these others, of the transcripts whose hits have most words of the probe in a row, more than
    occur by chance. Reading the words of one takes as long as a search."""
    longest: dict[str, int] = {}
    for hit in hits:
        num_in_a_row, num_words = words_in_a_row(probe, hit.transcript)
        name = hit.chunk_id.rpartition("_")[0]
        if num_in_a_row >= min(_MIN_RUN, num_words) and name not in others:
            longest[name] = max(num_in_a_row, longest.get(name, 0))
    return sorted(longest, key=lambda name: -longest[name])[:_NUM_COMPARED]


def _allowed_names(path: Path) -> Iterator[str]:
    for parts in (path.absolute().with_suffix("").parts, path.absolute().parts):
        yield from ("-".join(parts[-number:]) for number in range(1, len(parts)))


def _text(transcript: Transcript) -> str:
    return " ".join(turn.text for turn in transcript.turns)
