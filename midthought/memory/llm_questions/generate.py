"""`midthought memory questions --from-model`: generates questions about the episodes of a memory and keeps the verified ones."""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from midthought.config.references import optional
from midthought.data.final_answers import as_unanswerable
from midthought.errors import NoReplyError, SettingsError
from midthought.files.output_folder import not_ours, require_our_lines
from midthought.files.regular import atomic_path, read_json_object
from midthought.memory.chunks import Chunk, words_digest
from midthought.memory.embedding import Embedder, embed_texts
from midthought.memory.llm_questions.episodes import EpisodeQuestions, GenerationPlan, generate_for_episodes
from midthought.memory.llm_questions.structured_output import StructuredOutputModel
from midthought.memory.questions import write_questions
from midthought.memory.rows import vector_column
from midthought.memory.store import MemoryStore
from midthought.memory.table import TableLocation
from midthought.types import Task

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class GenerationReport:
    """Result of generating questions."""

    accepted: tuple[Task, ...]
    refused: tuple[Task, ...]
    problems: tuple[tuple[str, str], ...]
    """(stem, reason) of the episodes for which the endpoint failed; another run tries them again."""
    bad_replies: Mapping[str, int]
    """Replies without a valid object, by reason; each was requested again."""

    def to_dict(self) -> dict[str, Any]:
        """Number of questions by kind, and why pairs were refused."""
        return {
            "questions": dict(sorted(Counter(str(task.labels["kind"]) for task in self.accepted).items())),
            "refused": dict(self.refusals.most_common()),
            "bad_replies": dict(self.bad_replies),
            "problems": dict(self.problems),
        }

    @property
    def refusals(self) -> Counter[str]:
        """Number of refused pairs by reason."""
        return Counter(str(task.labels["verdict"]["problem"]).partition(" (")[0] for task in self.refused)


def generate_questions(
    store: MemoryStore,
    model: StructuredOutputModel,
    embedder: Embedder,
    out: Path,
    plan: GenerationPlan,
    *,
    only: str = "",
    max_episodes: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> GenerationReport:
    """Generates questions about the memory's episodes whose title or file name contains `only`, at most `max_episodes`.

    Accepted questions are written to `out` (JSON lines), rejected ones to `NAME.refused.jsonl`, the report to
    `NAME.report.json`, and accepted ones also to the memory's table `questions`. Raises SettingsError if no episode
    matches, NoReplyError if the endpoint returned nothing for any.
    """
    if max_episodes is not None and max_episodes < 1:
        raise SettingsError(f"max_episodes must be at least 1, not {max_episodes}")
    episodes = _episodes(store.chunks(), only)[:max_episodes]
    if not episodes:
        raise SettingsError(f"no episode of {store.uri} has {only!r} in its title or file name; give another text")

    async def search(query: str, k: int) -> Sequence[Any]:
        return await asyncio.to_thread(store.search, query, k)

    asked = asyncio.run(generate_for_episodes(episodes, model, search, embedder, plan, progress))
    tasks = [task for episode in asked for task in _tasks_of(episode, model.name)]
    problems = [(episode.stem, episode.problem) for episode in asked if episode.problem is not None]
    if not tasks:
        raise NoReplyError(f"no question was generated; {_first(asked)}", is_passing=True)
    accepted = [task for task in tasks if task.labels["verdict"]["accepted"]]
    refused = [task for task in tasks if not task.labels["verdict"]["accepted"]]
    write_questions(accepted, out)
    write_questions(refused, out.with_suffix(".refused.jsonl"))
    if accepted:
        _store_questions(_question_rows(accepted, embedder), store.uri)
    report = GenerationReport(tuple(accepted), tuple(refused), tuple(problems), dict(model.bad_replies))
    with atomic_path(out.with_suffix(".report.json")) as partial:
        partial.write_text(json.dumps({"model": model.name, **report.to_dict()}, indent=1, ensure_ascii=False), "utf-8")
    return report


def require_our_files(out: Path) -> None:
    """Raises `OutputPathError` if one of the files that `generate_questions` writes beside `out` would replace another file."""
    require_our_lines(out.with_suffix(".refused.jsonl"), ("task_id", "prompt", "answer"))
    report = out.with_suffix(".report.json")
    with suppress(OSError, ValueError):
        if read_json_object(report).keys() >= {"model", "questions"}:
            return
    if report.exists():
        raise not_ours(report)


def _first(asked: Sequence[EpisodeQuestions]) -> str:
    return next((f"{each.stem}: {each.problem}" for each in asked if each.problem), "the episodes are too short")


def _episodes(chunks: Sequence[Chunk], only: str) -> list[list[Chunk]]:
    by_stem: dict[str, list[Chunk]] = defaultdict(list)
    for chunk in chunks:
        if only.lower() in f"{chunk.episode}\n{chunk.stem}".lower():
            by_stem[chunk.stem].append(chunk)
    return [sorted(by_stem[stem], key=lambda chunk: chunk.number) for stem in sorted(by_stem)]


# -- tasks, and rows of the table `questions` beside the transcripts


def _tasks_of(episode: EpisodeQuestions, model: str) -> list[Task]:
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


def _question_rows(tasks: Sequence[Task], embedder: Embedder) -> pa.Table:
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


def _store_questions(rows: pa.Table, uri: str) -> None:
    """Writes rows to the table `questions` beside the transcripts, replacing the rows of the same episodes."""
    pa, compute = optional("pyarrow", "memory"), optional("pyarrow.compute", "memory")
    location = TableLocation(uri, "questions")
    with location.errors(), location.only_writer():
        known = location.newest().to_arrow() if location.exists() else None
        if known is not None and known.schema.equals(rows.schema):
            again = compute.is_in(known["episode_file"], rows["episode_file"].combine_chunks().unique())
            rows = pa.concat_tables([known.filter(compute.invert(again)), rows])
        location.connect().create_table(location.name, rows, mode="overwrite")
