"""What the service's routes use: the memory with its counts and questions. Does not depend on HTTP."""

from __future__ import annotations

import random
import secrets
from collections import Counter
from collections.abc import Sequence
from typing import Any

from midthought.memory.embedding import Embedder
from midthought.memory.service.searcher import Searcher, SearchLimits
from midthought.memory.store import MemoryStore
from midthought.types import Task

_QUESTION_COLUMNS = ("id", "text", "answer", "episode", "episode_file", "qa_index", "difficulty", "evidence")


class ServiceState:
    """A memory, as it is now, and its questions. `store` must have been opened with this embedder."""

    def __init__(
        self,
        store: MemoryStore,
        embedder: Embedder,
        questions: Sequence[Task] = (),
        limits: SearchLimits | None = None,
    ) -> None:
        """Counts the chunks, which stay in the table. Raises MemoryStoreError if the memory is not built."""
        self.store = store
        self.questions = questions
        self.searcher = Searcher(store, embedder, limits)
        opened = store._open_table()
        self.embedding = opened.embedding
        """Model and dimension; None if the memory is empty."""
        speaker = "speakers" if opened.has_windows else "speaker"
        counts: dict[str, Counter[str]] = {"episode": Counter(), speaker: Counter()}
        for batch in opened.table.search().select(list(counts)).to_batches(65_536):
            for name, counter in counts.items():
                column = batch.column(name)
                for value in (column.flatten() if name == "speakers" else column).value_counts():
                    counter[value["values"].as_py()] += value["counts"].as_py()
        self.episodes, self.speakers = (dict(sorted(counter.items())) for counter in counts.values())
        """Number of chunks by episode and by speaker, ordered by name."""
        self.num_chunks = sum(self.episodes.values())

    def sample(self, size: int, *, shuffle: bool, seed: int | None) -> tuple[Sequence[Task], int | None]:
        """Returns questions, and the seed of the sample."""
        if not shuffle:
            return self.questions[:size], None
        seed = secrets.randbelow(1_000_001) if seed is None else seed
        return random.Random(f"questions-{seed}").sample(self.questions, len(self.questions))[:size], seed


def stored_questions(uri: str, table: str = "questions") -> list[Task]:
    """Returns the questions in the memory's own table, written by `midthought memory questions --from-model`; none if there is
    no such table, or it is not ours."""
    import lancedb

    database = lancedb.connect(uri)
    opened: Any = database.open_table(table) if table in database.list_tables().tables else None
    if opened is None or not set(_QUESTION_COLUMNS) <= set(opened.schema.names):
        return []
    rows = opened.search().where("type = 'qa_question'").select(list(_QUESTION_COLUMNS)).to_arrow().to_pylist()
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
