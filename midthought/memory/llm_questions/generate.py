"""`midthought memory questions --from-model`: generates questions about the episodes of a memory and keeps the verified ones."""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from midthought.errors import NoReplyError, SettingsError
from midthought.files.atomic import atomic_path
from midthought.memory.chunks import Chunk
from midthought.memory.embedding import Embedder
from midthought.memory.llm_questions.episode_pairs import pair_sources
from midthought.memory.llm_questions.episodes import (
    EpisodeQuestions,
    GenerationPlan,
    episode_sources,
    generate_for_sources,
)
from midthought.memory.llm_questions.prompts import RUBRIC
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
    bad_replies: Mapping[str, int]
    """Replies without a valid object, by reason; each was requested again."""

    def to_dict(self) -> dict[str, Any]:
        """Counts, means of the measured difficulty by kind, the rubric, and why pairs were refused."""
        kinds = sorted({str(task.labels["kind"]) for task in self.accepted})
        return {
            "questions": {
                kind: _measured([task for task in self.accepted if task.labels["kind"] == kind]) for kind in kinds
            },
            "refused": dict(self.refusals.most_common()),
            "bad_replies": dict(self.bad_replies),
            "problems": dict(self.problems),
            "rubric": dict(RUBRIC),
            "judged": {name: self.share_passed(name) for name in RUBRIC},
        }

    @property
    def refusals(self) -> Counter[str]:
        """Number of refused pairs by reason."""
        return Counter(str(task.labels["verdict"]["problem"]).partition(" (")[0] for task in self.refused)

    def share_passed(self, criterion: str) -> float | None:
        """Share of the judged pairs that pass a criterion of the rubric; None if none was judged."""
        judged = [task.labels["verdict"]["rubric"] for task in (*self.accepted, *self.refused)]
        passed = [rubric[criterion] for rubric in judged if rubric is not None]
        return sum(passed) / len(passed) if passed else None


def _measured(tasks: Sequence[Task]) -> dict[str, float | None]:
    """Number of questions, and means of the shares of right answers with and without the memory."""
    result: dict[str, float | None] = {"num_questions": len(tasks)}
    for name in ("right_with_memory", "right_without_memory"):
        shares = [task.labels["verdict"][name] for task in tasks]
        known = [share for share in shares if share is not None]
        result[name] = sum(known) / len(known) if known else None
    return result


def generate_questions(
    store: MemoryStore,
    model: StructuredOutputModel,
    embedder: Embedder,
    out: Path,
    plan: GenerationPlan,
    *,
    only: str = "",
    max_episodes: int | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> GenerationReport:
    """Generates questions about the memory's episodes whose title or file name contains `only`, at most `max_episodes`, and
    `plan.num_across` that need two of them. `seed` chooses the passages of those.

    Accepted questions are written to `out` (JSON lines), rejected ones to `NAME.refused.jsonl`, the report to
    `NAME.report.json`, and accepted ones also to the memory's table `questions`. Raises SettingsError if no episode
    matches, NoReplyError if the endpoint returned nothing for any.
    """
    episodes = _episodes(store.chunks(), only)[:max_episodes]
    if not episodes:
        raise SettingsError(f"no episode of {store.uri} has {only!r} in its title or file name; give another text")

    async def search(query: str, k: int) -> Sequence[Any]:
        return await asyncio.to_thread(store.search, query, k)

    sources = [*episode_sources(episodes, plan), *pair_sources(episodes, store.search, plan, seed)]
    asked = asyncio.run(generate_for_sources(sources, model, search, embedder, plan, progress))
    tasks = [task for episode in asked for task in tasks_of(episode, model.name)]
    problems = [(episode.stem, episode.problem) for episode in asked if episode.problem is not None]
    if not tasks:
        raise NoReplyError(f"no question was generated; {_first(asked)}", is_passing=True)
    accepted = [task for task in tasks if is_accepted(task)]
    refused = [task for task in tasks if not is_accepted(task)]
    write_questions(accepted, out)
    write_questions(refused, out.with_suffix(".refused.jsonl"))
    num_rows = store_questions(question_rows(accepted, embedder), store.uri) if accepted else 0
    report = GenerationReport(
        tuple(accepted),
        tuple(refused),
        tuple(problems),
        model.num_asked,
        model.num_retries,
        num_rows,
        dict(model.bad_replies),
    )
    with atomic_path(out.with_suffix(".report.json")) as partial:
        partial.write_text(json.dumps({"model": model.name, **report.to_dict()}, indent=1, ensure_ascii=False), "utf-8")
    return report


def _first(asked: Sequence[EpisodeQuestions]) -> str:
    return next((f"{each.stem}: {each.problem}" for each in asked if each.problem), "the episodes are too short")


def _episodes(chunks: Sequence[Chunk], only: str) -> list[list[Chunk]]:
    by_stem: dict[str, list[Chunk]] = defaultdict(list)
    for chunk in chunks:
        if only.lower() in f"{chunk.episode}\n{chunk.stem}".lower():
            by_stem[chunk.stem].append(chunk)
    return [sorted(by_stem[stem], key=lambda chunk: chunk.number) for stem in sorted(by_stem)]
