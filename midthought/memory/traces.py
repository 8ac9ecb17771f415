"""Traces of deleted transcripts: their words in files, and their titles and names in questions about other transcripts.

What a remaining transcript has as well is no trace. Deletes nothing.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from midthought.errors import TranscriptError
from midthought.memory.chunks import Chunk
from midthought.memory.duplicates import WordRun, plain_words
from midthought.memory.rows import chunk_columns, chunks_of
from midthought.memory.transcripts import read_transcript
from midthought.regular_files import open_regular

BYTES_AT_ONCE = 1 << 22
_TAIL_LETTERS = 1 << 10
_RUN_WORDS, _MIN_RUN_BYTES = 6, 24
_ROWS_PER_BATCH = 16_384
_NAME = re.compile(r"[^\W\d_][\w'’-]*\w")
_BEFORE_SENTENCE = re.compile(r"""(?:^|[.!?…:])["'“”‘’«»(\s]*$""")
Key = TypeVar("Key", str, WordRun)


class Traces:
    """What distinguishes the deleted chunks from the rows that remain in `table`."""

    def __init__(self, deleted: Collection[Chunk], stems: Collection[str], table: Any) -> None:
        self._deleted = deleted
        self._stems = stems
        self._table = table

    def is_about(self, row: Any) -> bool:
        """Whether a question or a chunk, as a JSON object, comes from a deleted transcript, or names what only such a one has."""
        if not isinstance(row, dict):
            return False
        labels, evidence = row.get("labels"), row.get("evidence")
        labels = labels if isinstance(labels, dict) else {}
        stems = [row.get("stem"), row.get("episode_file"), labels.get("episode")]
        stems += [str(chunk_id).rpartition("_")[0] for chunk_id in (evidence if isinstance(evidence, list) else ())]
        if any(name in self._stems for name in stems if isinstance(name, str)):
            return True
        texts = [labels.get("named"), *map(row.get, ("prompt", "question", "text", "answer"))]
        return "stem" not in row and any(self._names_deleted(text) for text in texts if isinstance(text, str))

    def _names_deleted(self, text: str) -> bool:
        titles = {title for title in self._titles if text == title or f'"{title}"' in text}
        names = (_names_in(text) | set(_NAME.findall(text)) & self._speaker_words) & self._names
        return bool(titles and titles & self._gone_titles) or bool(names and names & self._gone_names)

    @cached_property
    def _titles(self) -> frozenset[str]:
        return frozenset(chunk.episode for chunk in self._deleted)

    @cached_property
    def _gone_titles(self) -> set[str]:
        return self._only_deleted(self._titles, lambda chunk: (chunk.episode,))

    @cached_property
    def _speaker_words(self) -> frozenset[str]:
        speakers = {speaker for chunk in self._deleted for speaker in chunk.speakers}
        return frozenset(word for speaker in speakers for word in _NAME.findall(speaker))

    @cached_property
    def _names(self) -> frozenset[str]:
        texts = {text for chunk in self._deleted for text in (chunk.transcript, chunk.episode, *chunk.speakers)}
        return frozenset(name for text in texts for name in _NAME.findall(text) if name[0].isupper())

    @cached_property
    def _gone_names(self) -> set[str]:
        return self._only_deleted(
            self._names, lambda chunk: _NAME.findall(" ".join((chunk.transcript, chunk.episode, *chunk.speakers)))
        )

    def files_with_words(self, paths: Iterable[Path]) -> tuple[Path, ...]:
        """Returns the files that have six words in a row which only a deleted transcript has. A file with other signs between the
        words, or in another encoding, is read as a transcript."""
        runs = frozenset(run for chunk in self._deleted for run in _runs(plain_words(chunk.transcript)))
        found = {path: hits for path in paths if (hits := _hits(path, runs))}
        wanted = frozenset(run for hits in found.values() for run in hits)
        gone = self._only_deleted(wanted, lambda chunk: _runs(plain_words(chunk.transcript)))
        return tuple(path for path, hits in found.items() if hits & gone)

    def _only_deleted(self, keys: Collection[Key], keys_of: Callable[[Chunk], Iterable[Key]]) -> set[Key]:
        """Returns the keys that no remaining row has."""
        left = set(keys)
        if left:
            query = self._table.search().select(list(chunk_columns(self._table.schema.names)))
            for batch in query.to_batches(batch_size=_ROWS_PER_BATCH):
                for chunk in chunks_of(batch):
                    left.difference_update(keys_of(chunk))
        return left


def _names_in(text: str) -> set[str]:
    """Returns the words with a capital letter that do not begin a sentence."""
    found = (match for match in _NAME.finditer(text) if match[0][0].isupper())
    return {match[0] for match in found if not _BEFORE_SENTENCE.search(text[: match.start()])}


def _runs(words: list[str]) -> Iterator[WordRun]:
    """Yields the runs of six words that have enough letters to be nobody else's; of fewer words, all."""
    size = min(_RUN_WORDS, len(words))
    for run in zip(*(words[start:] for start in range(size)), strict=False):
        if len(" ".join(run).encode("utf-8", "replace")) >= _MIN_RUN_BYTES:
            yield run


def _hits(path: Path, runs: Collection[WordRun]) -> set[WordRun]:
    if not runs:
        return set()
    if found := _runs_among(_words_of_file(path), runs):
        return found
    try:
        return _runs_among((plain_words(turn.text) for turn in read_transcript(path).turns), runs)
    except TranscriptError:
        return set()


def _runs_among(texts: Iterable[list[str]], runs: Collection[WordRun]) -> set[WordRun]:
    sizes = {len(run) for run in runs}
    return {
        run
        for words in texts
        for size in sizes
        for run in zip(*(words[start:] for start in range(size)), strict=False)
        if run in runs
    }


def _words_of_file(path: Path) -> Iterator[list[str]]:
    """Yields the words of a file part by part; each part begins with the last words of the one before."""
    decoder, text = codecs.getincrementaldecoder("utf-8")("ignore"), ""
    with open_regular(path) as file:
        while part := file.read(BYTES_AT_ONCE):
            text += decoder.decode(part)
            yield plain_words(text)
            text = text[-_TAIL_LETTERS:]
