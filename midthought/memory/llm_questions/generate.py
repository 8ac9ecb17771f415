"""`midthought memory questions --from-model`: generates questions about the episodes of a memory and keeps the verified ones."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from midthought.errors import NoReplyError, SettingsError
from midthought.memory.chunks import Chunk
from midthought.memory.embedding import Embedder
from midthought.memory.llm_questions.episodes import EpisodeQuestions, GenerationPlan, generate_for_episodes
from midthought.memory.llm_questions.records import is_accepted, question_rows, store_questions, tasks_of
from midthought.memory.llm_questions.structured_output import StructuredOutputModel
from midthought.memory.questions import write_questions
from midthought.memory.store import MemoryStore
from midthought.types import Task


@dataclass(frozen=True, slots=True)
class GenerationReport:
    """Result of generating questions."""

    accepted: tuple[Task, ...]
    refused: tuple[Task, ...]
    problems: tuple[tuple[str, str], ...]
    """(stem, reason) of the episodes for which the endpoint failed; another run tries them again."""
    num_asked: int
    """Requests of this run; cached replies of earlier runs are not counted."""
    num_retries: int
    num_rows: int
    """Rows of the table of questions, two per question."""


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

    Accepted questions are written to `out` (JSON lines), rejected ones to `NAME.refused.jsonl`, and accepted ones also
    to the memory's table `questions`. Raises SettingsError if no episode matches, NoReplyError if the endpoint returned
    nothing for any.
    """
    episodes = _episodes(store.chunks(), only)[:max_episodes]
    if not episodes:
        raise SettingsError(f"no episode of {store.uri} has {only!r} in its title or file name; give another text")

    async def search(query: str, k: int) -> Sequence[Any]:
        return await asyncio.to_thread(store.search, query, k)

    asked = asyncio.run(generate_for_episodes(episodes, model, search, embedder, plan, progress))
    tasks = [task for episode in asked for task in tasks_of(episode, model.name)]
    problems = [(episode.stem, episode.problem) for episode in asked if episode.problem is not None]
    if not tasks:
        raise NoReplyError(f"no question was generated; {_first(asked)}", is_passing=True)
    accepted = [task for task in tasks if is_accepted(task)]
    refused = [task for task in tasks if not is_accepted(task)]
    write_questions(accepted, out)
    write_questions(refused, out.with_suffix(".refused.jsonl"))
    num_rows = store_questions(question_rows(accepted, embedder), store.uri) if accepted else 0
    return GenerationReport(
        tuple(accepted), tuple(refused), tuple(problems), model.num_asked, model.num_retries, num_rows
    )


def _first(asked: Sequence[EpisodeQuestions]) -> str:
    return next((f"{each.stem}: {each.problem}" for each in asked if each.problem), "the episodes are too short")


def _episodes(chunks: Sequence[Chunk], only: str) -> list[list[Chunk]]:
    by_stem: dict[str, list[Chunk]] = defaultdict(list)
    for chunk in chunks:
        if only.lower() in f"{chunk.episode}\n{chunk.stem}".lower():
            by_stem[chunk.stem].append(chunk)
    return [sorted(by_stem[stem], key=lambda chunk: chunk.number) for stem in sorted(by_stem)]
