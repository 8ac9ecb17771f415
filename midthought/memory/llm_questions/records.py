"""Generated questions as training tasks, JSON lines, and rows of the table `questions` beside the transcripts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from midthought.config.references import optional
from midthought.data.abstention import as_unanswerable
from midthought.memory.chunks import words_digest
from midthought.memory.embedding import Embedder, embed_texts
from midthought.memory.llm_questions.episodes import EpisodeQuestions
from midthought.memory.rows import vector_column
from midthought.types import Task

if TYPE_CHECKING:
    import pyarrow as pa

TABLE = "questions"


def tasks_of(episode: EpisodeQuestions, model: str) -> list[Task]:
    """Returns all pairs of an episode, including rejected ones; `labels["verdict"]["accepted"]` distinguishes them."""
    return [
        as_unanswerable(
            Task(
                task_id=f"{episode.stem}:asked:{index}",
                prompt=pair.question,
                answer=pair.answer,
                labels={
                    "needs_memory": True,
                    "kind": pair.kind,
                    "episode": episode.stem,
                    "title": episode.episode,
                    "difficulty": pair.difficulty,
                    "requires_synthesis": pair.requires_synthesis,
                    "asked_by": model,
                    "evidence_digest": words_digest(pair.evidence),
                    "verdict": pair.verdict.to_dict(),
                },
                evidence=tuple(chunk.chunk_id for chunk in pair.evidence),
            )
        )
        for index, pair in enumerate(episode.pairs)
    ]


def is_accepted(task: Task) -> bool:
    """Whether the task passed every check."""
    return bool(task.labels["verdict"]["accepted"])


def question_rows(tasks: Sequence[Task], embedder: Embedder) -> pa.Table:
    """Returns two rows per task, `qa_question` and `qa_answer`, with the original's columns followed by ours.

    `text` is embedded: the question in one row, which has the answer in `answer`; the answer in the other, which has
    the question in `question`. `evidence` has the ids of chunks, `verdict` is JSON.
    """
    pa = optional("pyarrow", "memory")
    now = datetime.now(UTC).isoformat(timespec="seconds")
    rows: list[dict[str, Any]] = []
    for task in tasks:
        shared = _shared_columns(task, now, embedder.name)
        rows.append({"type": "qa_question", "text": task.prompt, "answer": task.answer, "question": None} | shared)
        rows.append({"type": "qa_answer", "text": task.answer, "answer": None, "question": task.prompt} | shared)
    vectors = embed_texts([row["text"] for row in rows], embedder)
    return pa.Table.from_pylist(rows, _schema(pa)).append_column("vector", vector_column(vectors))


def _shared_columns(task: Task, now: str, embedding_model: str) -> dict[str, Any]:
    labels: Mapping[str, Any] = task.labels
    return {
        "episode": labels["title"],
        "episode_file": labels["episode"],
        "qa_index": int(task.task_id.rpartition(":")[2]),
        "difficulty": labels["difficulty"],
        "requires_synthesis": labels["requires_synthesis"],
        "created_at": now,
        "id": task.task_id,
        "evidence": list(task.evidence),
        "asked_by": labels["asked_by"],
        "verdict": json.dumps(labels["verdict"], ensure_ascii=False),
        "embedding_model": embedding_model,
    }


def _schema(pa: Any) -> Any:
    names = (
        "type episode episode_file qa_index text answer question difficulty requires_synthesis created_at id evidence "
        "asked_by verdict embedding_model"
    )
    others = {"qa_index": pa.int64(), "requires_synthesis": pa.bool_(), "evidence": pa.list_(pa.string())}
    return pa.schema([(name, others.get(name, pa.string())) for name in names.split()])


def store_questions(rows: pa.Table, uri: str, table: str = TABLE) -> int:
    """Writes rows to the table beside the transcripts, replacing the rows of the same episodes; returns the table's number
    of rows."""
    database = optional("lancedb", "memory").connect(uri)
    pa, compute = optional("pyarrow", "memory"), optional("pyarrow.compute", "memory")
    if table in database.list_tables().tables:
        known = database.open_table(table).to_arrow()
        if (
            known.schema.names == rows.schema.names
            and known.schema.field("vector").type == rows.schema.field("vector").type
        ):
            others = compute.invert(
                compute.is_in(known["episode_file"], rows["episode_file"].combine_chunks().unique())
            )
            rows = pa.concat_tables([known.filter(others), rows])
    database.create_table(table, rows, mode="overwrite")
    return len(rows)
