"""What the service reads besides searches: numbers of chunks by episode and speaker, and questions."""

from __future__ import annotations

import random
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from midthought.memory.store import MemoryStore
from midthought.types import Task

_QUESTION_COLUMNS = ("id", "text", "answer", "episode", "episode_file", "qa_index", "difficulty", "evidence")


@dataclass(frozen=True, slots=True)
class FacetCounts:
    """Counts of one version of the memory. The chunks stay in the table."""

    episodes: Mapping[str, int]
    """Number of chunks by episode, ordered by name."""
    speakers: Mapping[str, int]
    num_chunks: int
    embedding: tuple[str, int] | None
    """Model and dimension; None if the memory is empty."""

    @classmethod
    def read(cls, store: MemoryStore) -> FacetCounts:
        """Raises MemoryStoreError if the memory is not built."""
        opened = store._open_table()
        speaker = "speakers" if opened.has_windows else "speaker"
        counts: dict[str, Counter[str]] = {"episode": Counter(), speaker: Counter()}
        for batch in opened.table.search().select(list(counts)).to_batches(65_536):
            for name, counter in counts.items():
                column = batch.column(name)
                for value in (column.flatten() if name == "speakers" else column).value_counts():
                    counter[value["values"].as_py()] += value["counts"].as_py()
        episodes, speakers = (dict(sorted(counter.items())) for counter in counts.values())
        return cls(episodes, speakers, sum(episodes.values()), opened.embedding)


def sample(tasks: Sequence[Task], size: int, *, shuffle: bool, seed: int | None) -> tuple[Sequence[Task], int | None]:
    """Returns questions, and the seed of the sample."""
    if not shuffle:
        return tasks[:size], None
    seed = secrets.randbelow(1_000_001) if seed is None else seed
    return random.Random(f"questions-{seed}").sample(tasks, len(tasks))[:size], seed


class QuestionTable:
    """The questions in the memory's own table, written by `midthought memory questions --from-model`."""

    def __init__(self, uri: str, table: str = "questions") -> None:
        import lancedb

        self._database = lancedb.connect(uri)
        self._table = table
        self._version: dict[str, Any] | None = None

    def changed(self) -> list[Task] | None:
        """Returns all questions if they changed since the last call, else None. Returns none if there is no such table,
        or it is not ours."""
        opened = self._open()
        version = opened.list_versions()[-1] if opened is not None else {}
        if version == self._version:
            return None
        tasks = _tasks_of(opened) if opened is not None else []
        self._version = version
        return tasks

    def _open(self) -> Any:
        if self._table not in self._database.list_tables().tables:
            return None
        opened = self._database.open_table(self._table)
        return opened if set(_QUESTION_COLUMNS) <= set(opened.schema.names) else None


def _tasks_of(table: Any) -> list[Task]:
    rows = table.search().where("type = 'qa_question'").select(list(_QUESTION_COLUMNS)).to_arrow().to_pylist()
    return [
        Task(
            task_id=row["id"],
            prompt=row["text"],
            answer=row["answer"],
            labels={"episode": row["episode"], "difficulty": row["difficulty"]},
            evidence=tuple(row["evidence"] or ()),
        )
        for row in sorted(rows, key=lambda row: (row["episode_file"], row["qa_index"]))
    ]
