"""Generates and verifies the questions of episodes, several at once. Cached replies of an interrupted run are not requested
again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from midthought.errors import NoReplyError, SettingsError, near_names
from midthought.memory.chunks import Chunk, each_word_once, with_speakers
from midthought.memory.embedding import Embedder
from midthought.memory.llm_questions.structured_output import StructuredOutputModel
from midthought.memory.llm_questions.verification import (
    KINDS,
    WRITE,
    Pair,
    Search,
    Verdict,
    find_duplicate,
    pairs_schema,
    static_problem,
    verify,
)

MIN_CHUNKS = 2
TEMPERATURE = 0.7


@dataclass(frozen=True, slots=True)
class GenerationPlan:
    """Number of questions and limits of the requests."""

    num_pairs: int
    """Wanted number of accepted questions per episode."""
    kinds: tuple[str, ...] = tuple(KINDS)
    """Which kinds, in equal numbers."""
    num_rounds: int = 3
    """Maximum number of rounds; each requests the pairs that are still missing."""
    max_transcript_letters: int = 400_000
    """Characters per request, about four per token; a longer episode is processed in windows, each with a share of the pairs."""
    num_episodes_at_once: int = 4

    def __post_init__(self) -> None:
        if self.num_pairs < 1:
            raise SettingsError(f"num_pairs must be at least 1, not {self.num_pairs}")
        for kind in self.kinds:
            if kind not in KINDS:
                raise SettingsError(f"unknown kind of question {kind!r}. {near_names(kind, KINDS)}")


@dataclass(frozen=True, slots=True)
class EpisodeQuestions:
    """The pairs of one episode in the order of generation, including rejected ones."""

    episode: str
    stem: str
    pairs: tuple[Pair, ...]
    problem: str | None = None
    """Why there are not more; None if no request failed."""

    @property
    def accepted(self) -> list[Pair]:
        """The pairs that passed every check."""
        return [pair for pair in self.pairs if pair.verdict.is_accepted]


async def generate_for_episodes(
    episodes: Sequence[Sequence[Chunk]],
    model: StructuredOutputModel,
    search: Search,
    embedder: Embedder,
    plan: GenerationPlan,
    progress: Callable[[int, int], None] | None = None,
) -> list[EpisodeQuestions]:
    """Generates questions for each episode (its chunks, in order). A lasting endpoint error skips only its episode.

    The same replies give the same pairs, whatever their order of arrival.
    """
    slots = asyncio.Semaphore(plan.num_episodes_at_once)
    num_done = 0

    async def ask(place: int, chunks: Sequence[Chunk]) -> EpisodeQuestions:
        nonlocal num_done
        shift = place % len(plan.kinds)  # so that rests of a division do not fall on one kind
        kinds = [*plan.kinds[shift:], *plan.kinds[:shift]]
        async with slots:
            asked = await _generate(chunks, kinds, model, search, embedder, plan)
        num_done += 1
        if progress:
            progress(num_done, len(episodes))
        return asked

    return _without_repeats(await asyncio.gather(*(ask(place, chunks) for place, chunks in enumerate(episodes))))


async def _generate(
    chunks: Sequence[Chunk],
    kinds: Sequence[str],
    model: StructuredOutputModel,
    search: Search,
    embedder: Embedder,
    plan: GenerationPlan,
) -> EpisodeQuestions:
    pairs: list[Pair] = []
    problem: str | None = None
    stretches = _stretches(chunks, plan.max_transcript_letters)
    try:
        for place, stretch in enumerate(stretches):
            wanted = plan.num_pairs * (place + 1) // len(stretches)
            for _ in range(plan.num_rounds if len(stretch) >= MIN_CHUNKS else 0):
                missing = _missing_kinds(kinds, wanted, pairs)
                if not missing:
                    break
                written = await _write(stretch, missing, [pair.question for pair in pairs], model)
                vectors = await asyncio.to_thread(embedder.embed, [pair.question for pair in written])
                written = [replace(pair, vector=vector) for pair, vector in zip(written, vectors, strict=True)]
                pairs += await _verified(written, pairs, model, search)
    except NoReplyError as error:
        problem = str(error)
    return EpisodeQuestions(chunks[0].episode, chunks[0].stem, tuple(pairs), problem)


def _missing_kinds(kinds: Sequence[str], wanted: int, pairs: Sequence[Pair]) -> Counter[str]:
    """Returns how many questions of each kind to request, so that the accepted ones become equally many."""
    accepted = Counter(pair.kind for pair in pairs if pair.verdict.is_accepted)
    missing: Counter[str] = Counter()
    for _ in range(wanted - accepted.total()):
        missing[min(kinds, key=lambda kind: accepted[kind] + missing[kind])] += 1
    return missing


async def _write(
    chunks: Sequence[Chunk], kinds: Counter[str], asked: Sequence[str], model: StructuredOutputModel
) -> list[Pair]:
    """Generates at most the requested number of pairs; evidence with unknown part numbers is dropped. A pair without a kind
    has the next requested one."""
    num_pairs = kinds.total()
    material = {
        "episode": chunks[0].episode,
        "num_pairs": num_pairs,
        "kinds": {kind: {"num_pairs": number, "description": KINDS[kind]} for kind, number in kinds.items()},
        "already_asked": list(asked),
        "transcript": [_numbered(number, chunk) for number, chunk in enumerate(each_word_once(chunks))],
    }
    reply = await model.ask(WRITE, material, pairs_schema(num_pairs), temperature=TEMPERATURE)
    return [
        Pair(
            " ".join(pair["question"].split()),
            " ".join(pair["answer"].split()),
            tuple(chunks[number] for number in dict.fromkeys(pair["evidence"]) if 0 <= number < len(chunks)),
            kind if (kind := pair.get("kind") or next_kind) in kinds else "",
            pair.get("difficulty") or "hard",
            pair.get("requires_synthesis", True),
        )
        for pair, next_kind in zip(reply["qa_pairs"], kinds.elements(), strict=False)
        if pair["question"].strip() and pair["answer"].strip()
    ]


async def _verified(
    written: Sequence[Pair], before: Sequence[Pair], model: StructuredOutputModel, search: Search
) -> list[Pair]:
    """Returns the pairs with their verdicts. Pairs that fail a static check cost no request."""
    judged: list[Pair] = []
    for pair in written:
        problem = static_problem(pair)
        other = find_duplicate(pair, [*before, *judged]) if problem is None else None
        problem = "it was asked before" if other else problem
        verdict = Verdict(problem=problem, duplicate_of=other.question if other else None)
        judged.append(replace(pair, verdict=verdict))
    passing = [place for place, pair in enumerate(judged) if pair.verdict.is_accepted]
    verdicts = await asyncio.gather(*(_checked(judged[place], model, search) for place in passing))
    for place, verdict in zip(passing, verdicts, strict=True):
        judged[place] = replace(judged[place], verdict=verdict)
    return judged


async def _checked(pair: Pair, model: StructuredOutputModel, search: Search) -> Verdict:
    try:
        return await verify(pair, model, search)
    except NoReplyError as error:
        return Verdict(problem=f"it could not be checked ({error})")


def _without_repeats(episodes: list[EpisodeQuestions]) -> list[EpisodeQuestions]:
    """Rejects pairs that an earlier episode has, too."""
    kept: list[Pair] = []
    result: list[EpisodeQuestions] = []
    for episode in episodes:
        pairs: list[Pair] = []
        for pair in episode.pairs:
            other = find_duplicate(pair, kept) if pair.verdict.is_accepted else None
            if other:
                verdict = replace(pair.verdict, problem="another episode asks it", duplicate_of=other.question)
                pair = replace(pair, verdict=verdict)
            pairs.append(pair)
        result.append(replace(episode, pairs=tuple(pairs)))
        kept += result[-1].accepted
    return result


def _numbered(number: int, chunk: Chunk) -> str:
    return f"{number}. {chunk.speaker} ({chunk.time}): {with_speakers(chunk)}"


def _stretches(chunks: Sequence[Chunk], max_letters: int) -> list[list[Chunk]]:
    """Splits the episode into as few parts of similar size as fit into `max_letters`."""
    sizes = [len(_numbered(chunk.number, chunk)) + 4 for chunk in chunks]
    num = -(-sum(sizes) // max_letters)
    stretches: list[list[Chunk]] = [[] for _ in range(num)]
    position = 0
    for chunk, size in zip(chunks, sizes, strict=True):
        stretches[min(position * num // sum(sizes), num - 1)].append(chunk)
        position += size
    return [stretch for stretch in stretches if stretch]
