"""Deletes transcripts from a memory with every trace in its folder: rows, vectors, indices, old versions, cached vectors,
and questions that are traces of them. Does not depend on an embedding model."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from midthought.atomic_files import atomic_path
from midthought.errors import MemoryStoreError, near_names
from midthought.memory.changes import stems_in, transcripts_in
from midthought.memory.chunks import Chunk
from midthought.memory.table import TableLocation
from midthought.memory.traces import Traces
from midthought.memory.vector_cache import forget
from midthought.regular_files import read_regular_text

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS_PER_BATCH = 16_384
_QUESTIONS = "questions"
_QUESTION_COLUMNS = ("episode_file", "evidence", "text", "question", "answer")


@dataclass(frozen=True, slots=True)
class DeletionReport:
    """What was deleted."""

    num_chunks: int
    """Chunks of the newest version. 0 if only older versions had the transcripts."""
    num_questions: int
    remaining: tuple[Path, ...]
    """Other files in the memory's folder that still have words of the transcripts, or questions about them (`traces`)."""
    unreadable: tuple[tuple[Path, str], ...]
    """Other files there that cannot be read, or only in part, with the reasons; some are in `remaining`, too."""
    seconds: float


def delete_transcripts(location: TableLocation, stems: Collection[str], cache_folder: Path) -> DeletionReport:
    """Deletes the transcripts with these stems. Raises MemoryStoreError, and deletes none, if one is in no version.

    The other rows are written to new files and indexed, then all old versions are removed. If that is interrupted, the
    memory is as before, or without the transcripts; deleting again removes what is left of them.
    """
    started = time.perf_counter()
    opened = location.open(even_incomplete=True)
    present = transcripts_in(opened.table, stems)
    old, are_readable = _in_old_versions(location, stems)
    everywhere = {*present, *old}
    if missing := set(stems) - {chunk.stem for chunk in everywhere}:
        # Files of versions that a killed deletion had removed may still be there.
        location.purge(location.keep_versions if are_readable else timedelta(0))
        raise MemoryStoreError(_unknown(location, opened.table, sorted(missing)))
    if present or not opened.is_indexed:
        location.write(_without(opened.table, stems), opened.table.schema)
    forget(cache_folder, {text for chunk in everywhere for text in (chunk.embedded_text, *chunk.embedded_sentences)})
    traces = Traces(everywhere, stems, location.newest())
    num_questions = _delete_questions(location, traces)
    if location.is_local:
        num_questions += sum(
            _delete_lines(path, traces) for path in sorted(Path(location.uri).glob("*.jsonl")) if path.is_file()
        )
        for path in Path(location.uri).glob("*.replies.sqlite*"):  # a cache of replies about whole episodes
            path.unlink()
    location.purge()  # last: the old versions name what is to be deleted, if this is interrupted
    remaining, unreadable = traces.in_files(_other_files(Path(location.uri)) if location.is_local else ())
    return DeletionReport(len(present), num_questions, remaining, unreadable, time.perf_counter() - started)


def _in_old_versions(location: TableLocation, stems: Collection[str]) -> tuple[list[Chunk], bool]:
    """Returns the transcripts' chunks in all versions, and whether all can be read: a killed deletion may have removed files."""
    found, are_readable = list[Chunk](), True
    for table in location.each_version():
        try:
            found += transcripts_in(table, stems)
        except (ValueError, RuntimeError, OSError):
            are_readable = False
    return found, are_readable


def _unknown(location: TableLocation, table: Any, missing: list[str]) -> str:
    near = near_names(missing[0], sorted(stems_in(table)))
    return f"{location.uri}: no transcript is named {missing[0]!r}, as its file without suffix. {near}"


def _without(table: Any, stems: Collection[str]) -> Iterator[pa.RecordBatch]:
    """Yields the other rows in batches."""
    import pyarrow as pa

    for batch in table.search().to_batches(batch_size=_ROWS_PER_BATCH):
        rows = zip(batch.column("id").to_pylist(), batch.column("chunk_id").to_pylist(), strict=True)
        keep = [chunk_id.removesuffix(f"_{number}") not in stems for chunk_id, number in rows]
        yield batch.select(table.schema.names).filter(pa.array(keep, pa.bool_()))


def _delete_questions(location: TableLocation, traces: Traces) -> int:
    """Deletes the transcripts' questions from the memory's table of questions; returns their number."""
    questions = TableLocation(location.uri, _QUESTIONS, location.storage_options, location.keep_versions)
    if not questions.exists():
        return 0
    table = questions.newest()
    if not {"episode_file", "evidence", "type"} <= set(table.schema.names):
        return 0
    rows = table.to_arrow()
    known = [name for name in _QUESTION_COLUMNS if name in table.schema.names]
    kept = [not traces.is_about(row) for row in rows.select(known).to_pylist()]
    if all(kept) and len(table.list_versions()) == 1:
        return 0
    asked = [kind == "qa_question" for kind in rows["type"].to_pylist()]
    questions.overwrite(rows.filter(kept))
    questions.purge()
    return sum(question and not keep for question, keep in zip(asked, kept, strict=True))


def _delete_lines(path: Path, traces: Traces) -> int:
    """Deletes questions and chunks of the transcripts from a file of JSON lines; returns the number of questions."""
    kept, num_questions = list[str](), 0
    try:
        lines = read_regular_text(path, max_bytes=None).split("\n")
        for line in lines:
            row = json.loads(line) if line.strip() else None
            if row is not None and traces.is_about(row):
                num_questions += "stem" not in row
            else:
                kept.append(line)
    except (ValueError, RecursionError):  # not ours
        return 0
    if len(kept) < len(lines):
        with atomic_path(path) as partial:
            partial.write_text("\n".join(kept), "utf-8")
    return num_questions


def _other_files(folder: Path) -> Iterator[Path]:
    """Yields the files outside of the tables."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not any(parent.suffix == ".lance" for parent in path.parents):
            yield path
