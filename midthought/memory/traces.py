"""Traces of deleted transcripts: their words in files, and their titles and names in questions about other transcripts.

What a remaining transcript has as well is no trace. Deletes nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from midthought.memory.chunks import Chunk
from midthought.memory.duplicates import WordRun, plain_words
from midthought.memory.llm_questions.content_runs import FUNCTION_WORDS
from midthought.memory.rows import chunk_columns, chunks_of
from midthought.memory.texts_in_files import is_parquet, texts_in_file

_MAX_SIGNS = 20
_RUN_WORDS, _MIN_RUN_BYTES = 6, 24
_ROWS_PER_BATCH = 16_384
_ENDING = re.compile(r"['’]\w{1,2}$")
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
        texts = map(row.get, ("prompt", "question", "text", "answer"))
        return "stem" not in row and any(self._names_deleted(text) for text in texts if isinstance(text, str))

    def _names_deleted(self, text: str) -> bool:
        titles = {title for title in self._titles if text == title or f'"{title}"' in text}
        named = {word for word, begins in _capitalized(text) if not begins or word in self._speaker_words}
        names = named & self._names.keys()
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
        return frozenset(word for speaker in speakers for word in _words(speaker))

    @cached_property
    def _names(self) -> dict[str, bool]:
        """Words with a capital letter, and whether each occurs only at the beginning of sentences: then it is no name if it is
        written small elsewhere. Function words are no names, except in a speaker's."""
        names = dict.fromkeys(self._speaker_words, False)
        small = set[str]()
        for chunk in self._deleted:
            small.update(word for word in _words(chunk.transcript) if word[0].islower())
            names.update((word, False) for word in _words(chunk.episode) if word[0].isupper())
            for word, begins in _capitalized(chunk.transcript):
                names[word] = names.get(word, True) and begins
        return {
            word: begins
            for word, begins in names.items()
            if word in self._speaker_words or not (word.lower() in FUNCTION_WORDS or (begins and word.lower() in small))
        }

    @cached_property
    def _gone_names(self) -> set[str]:
        uncertain = {word.lower(): word for word, begins in self._names.items() if begins}

        def names_in(chunk: Chunk) -> Iterator[str]:
            for word in _words(" ".join((chunk.transcript, chunk.episode, *chunk.speakers))):
                yield word
                if word in uncertain:
                    yield uncertain[word]

        return self._only_deleted(self._names, names_in)

    def in_files(self, paths: Iterable[Path]) -> tuple[tuple[Path, ...], tuple[tuple[Path, str], ...]]:
        """Returns the files that have six words in a row which only a deleted transcript has, or, in Parquet, a question about
        one; and the files that cannot be read, or only in part, with the reason. A file may be among both."""
        runs = frozenset(run for chunk in self._deleted for run in _runs(plain_words(chunk.transcript)))
        found, unreadable = dict[Path, set[WordRun]](), list[tuple[Path, str]]()
        about = set[Path]()

        def words_of(path: Path) -> Iterator[list[str]]:
            has_questions = is_parquet(path)
            for text in texts_in_file(path):
                if has_questions and self.is_about(_json_object(text)):
                    about.add(path)
                yield plain_words(text)

        for path in paths:
            try:
                found[path] = set()
                found[path].update(_runs_among(words_of(path), runs))  # those before an error stay
            except OSError as error:
                unreadable.append((path, error.strerror or str(error).removeprefix(f"{path}: ")))
        gone = self._gone_runs(frozenset(run for hits in found.values() for run in hits))
        return tuple(path for path, hits in found.items() if path in about or hits & gone), tuple(unreadable)

    def _gone_runs(self, runs: Collection[WordRun]) -> set[WordRun]:
        """Returns the runs that no remaining transcript has, in one chunk or in neighbouring ones."""
        edges = ChunkEdges(frozenset(word for run in runs for word in run), _RUN_WORDS - 1)

        def runs_in(chunk: Chunk) -> Iterator[WordRun]:
            words = plain_words(chunk.transcript)
            edges.add(chunk, words)
            return _runs_among([words], runs)

        return self._only_deleted(runs, runs_in) - set(_runs_among(edges.joined(), runs))

    def _only_deleted(self, keys: Collection[Key], keys_of: Callable[[Chunk], Iterable[Key]]) -> set[Key]:
        """Returns the keys that no remaining row has."""
        left = set(keys)
        if left:
            query = self._table.search().select(list(chunk_columns(self._table.schema.names)))
            for batch in query.to_batches(batch_size=_ROWS_PER_BATCH):
                for chunk in chunks_of(batch):
                    left.difference_update(keys_of(chunk))
        return left


class ChunkEdges:
    """First and last words of chunks, if one of the given words begins or ends the chunk, to find runs that several
    neighbouring chunks have together."""

    def __init__(self, words: Collection[str], num_words: int) -> None:
        self._wanted = words
        self._num_words = num_words
        self._edges: dict[tuple[str, int], tuple[list[str], list[str]]] = {}

    def add(self, chunk: Chunk, words: list[str]) -> None:
        """Adds a chunk with its words."""
        if words and (words[0] in self._wanted or words[-1] in self._wanted):
            edge = words[: self._num_words], words[-self._num_words :]
            self._edges[chunk.stem, chunk.number] = edge

    def joined(self) -> Iterator[list[str]]:
        """Yields the last words of each chunk with the first words after it."""
        for (stem, number), (_, last) in self._edges.items():
            words, num_after = list(last), 0
            while num_after < self._num_words and (edge := self._edges.get((stem, number := number + 1))):
                words += edge[0]
                num_after += len(edge[0])
            yield words


def _words(text: str) -> Iterator[str]:
    """Yields the words of two letters or more, without endings such as `'s` and `'ll`."""
    words = (_ENDING.sub("", word) for word in _NAME.findall(text))
    return (word for word in words if len(word) > 1)


def _capitalized(text: str) -> Iterator[tuple[str, bool]]:
    """Yields the words of `_words` with a capital letter, and whether they begin a sentence."""
    for match in _NAME.finditer(text):
        word = _ENDING.sub("", match[0])
        if len(word) > 1 and word[0].isupper():
            yield word, bool(_BEFORE_SENTENCE.search(text, max(0, match.start() - _MAX_SIGNS), match.start()))


def _runs(words: list[str]) -> Iterator[WordRun]:
    """Yields the runs of six words that have enough letters to be nobody else's; of fewer words, all."""
    size = min(_RUN_WORDS, len(words))
    for run in zip(*(words[start:] for start in range(size)), strict=False):
        if len(" ".join(run).encode("utf-8", "replace")) >= _MIN_RUN_BYTES:
            yield run


def _json_object(text: str) -> Any:
    try:
        return json.loads(text) if text.startswith("{") else None
    except (ValueError, RecursionError):
        return None


def _runs_among(texts: Iterable[list[str]], runs: Collection[WordRun]) -> Iterator[WordRun]:
    sizes = {len(run) for run in runs}
    return (
        run
        for words in texts
        for size in sizes
        for run in zip(*(words[start:] for start in range(size)), strict=False)
        if run in runs
    )
