"""Generates question/answer pairs from chunks by templates, without a language model: who said this, how does it
continue, which episode.

Every pair names the chunk that proves it. Some prompts include that proof, so they need no memory. Pairs from other
sources (a language model, a person) are read from JSON lines by `read_questions`.
"""

from __future__ import annotations

import itertools
import json
import random
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from midthought.data.final_answers import as_unanswerable
from midthought.errors import SettingsError, TranscriptError, near_names
from midthought.files.regular import atomic_path, read_regular_text
from midthought.memory.chunks import Chunk, each_word_once, words_digest
from midthought.memory.search import spaced_words
from midthought.memory.splitting import pieces_of, words_of
from midthought.memory.tool import format_chunk
from midthought.memory.turns import UNKNOWN_SPEAKER
from midthought.types import Task

WORDINGS: Mapping[str, str] = {
    "speaker": 'Which speaker said: "{quote}"?',
    "episode": 'Which episode has: "{quote}"?',
    "continuation": 'Which words follow: "{quote}"?',
}
"""Question kinds and their templates."""

MAX_CONTINUATION_WORDS = 6
"""The answer is the rest of the chunk after the quote, at most this many words."""

MAX_DISTRACTOR_DRAWS = 20

_EDGES = re.compile(r"^\W+|\W+$")


@dataclass(frozen=True, slots=True)
class QuestionPlan:
    """Number and kinds of the questions."""

    num_questions: int
    needless_share: float
    """Share of questions whose prompt contains the answer."""
    distractor_share: float = 0.5
    """Of the questions that need the memory: the share whose prompt has an unrelated note."""
    min_quote_words: int = 8
    max_quote_words: int = 10
    kinds: tuple[str, ...] = tuple(WORDINGS)

    def __post_init__(self) -> None:
        shares = {"needless_share (--no-memory-share)": self.needless_share, "distractor_share": self.distractor_share}
        for name, share in shares.items():
            if not 0 <= share <= 1:
                raise SettingsError(f"{name} must be from 0 to 1, not {share}")
        for kind in self.kinds:
            if kind not in WORDINGS:
                raise SettingsError(f"unknown kind of question {kind!r}. {near_names(kind, WORDINGS)}")


def make_questions(chunks: Sequence[Chunk], plan: QuestionPlan, seed: int, *, memory: Sequence[Chunk]) -> list[Task]:
    """Returns questions about `chunks`; every quote occurs once in `memory`; kinds and answers are balanced.

    Returns fewer than `plan.num_questions` if the chunks do not suffice: no quote is used twice.
    """
    rng = random.Random(f"questions-{seed}")
    index = _QuoteIndex(memory)
    taken: set[str] = set()
    tasks: list[Task] = []
    sources = {kind: _ByAnswer(chunks, kind, rng) for kind in plan.kinds}
    num_needless = round(plan.num_questions * plan.needless_share)
    while len(tasks) < plan.num_questions and sources:
        kind = plan.kinds[len(tasks) % len(plan.kinds)]
        if kind not in sources:
            kind = rng.choice(sorted(sources))
        chunk = sources[kind].next()
        if chunk is None:
            del sources[kind]
            continue
        question = quote_and_answer(chunk, kind, plan, rng)
        if question is None or _states(*question) or question[0] in taken or not index.is_unique(question[0]):
            continue
        taken.add(question[0])
        needless = (
            len(tasks) * num_needless // plan.num_questions != (len(tasks) + 1) * num_needless // plan.num_questions
        )
        note = chunk if needless else None
        if not needless and rng.random() < plan.distractor_share:
            note = _distractor(chunks, question[1], rng)
        tasks.append(as_task(chunk, kind, *question, note=note, needs_memory=not needless))
    return tasks


def quote_and_answer(chunk: Chunk, kind: str, plan: QuestionPlan, rng: random.Random) -> tuple[str, str] | None:
    """Returns a quote from the chunk and the answer to a question of this kind; None if the chunk is too short."""
    words = words_of(chunk.transcript)
    num_left = 2 if kind == "continuation" else 0  # at least, after the quote
    longest = max(plan.min_quote_words, min(plan.max_quote_words, len(words) - num_left))
    length = rng.randint(plan.min_quote_words, longest)
    if kind == "continuation":
        num_left = rng.randint(num_left, max(num_left, min(MAX_CONTINUATION_WORDS, len(words) - length)))
        start = len(words) - length - num_left
    else:
        start = rng.randint(0, max(0, len(words) - length))
    quote = _EDGES.sub("", "".join(words[start : start + length]))
    if start < 0 or '"' in quote or len(words_of(quote)) < plan.min_quote_words:
        return None
    rest = "".join(words[start + length :]).strip()
    answer = {"speaker": chunk.speaker, "episode": chunk.episode, "continuation": rest}[kind]
    return quote, answer


def _states(quote: str, answer: str) -> bool:
    """Whether the answer is in the quote, as it is written: a speaker `A` is not the word `a`."""
    return re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", quote) is not None


def as_task(chunk: Chunk, kind: str, quote: str, answer: str, *, note: Chunk | None, needs_memory: bool) -> Task:
    """Returns the task of one question; the note, if any, precedes it in the prompt."""
    question = WORDINGS[kind].format(quote=quote)
    prompt = f"Note: {format_chunk(note)}\n{question}" if note else question
    labels = {"needs_memory": needs_memory, "kind": kind, "episode": chunk.stem, "quote": quote}
    return Task(
        task_id=f"{chunk.chunk_id}:{kind}:{'memory' if needs_memory else 'note'}",
        prompt=prompt,
        answer=answer,
        labels={**labels, "evidence_digest": words_digest([chunk])},
        evidence=(chunk.chunk_id,),
    )


def with_windows(tasks: Sequence[Task], windows: Sequence[Chunk]) -> list[Task]:
    """Returns the questions about quotes with the windows that contain the quote as their evidence. A question whose quote is in
    no single window is left out; a question without a quote stays as it is."""
    by_stem: dict[str, list[Chunk]] = {}
    for window in windows:
        by_stem.setdefault(window.stem, []).append(window)
    found = []
    for task in tasks:
        quote = task.labels.get("quote")
        near = by_stem.get(str(task.labels.get("episode")), []) if quote else []
        if shown := [window for window in near if str(quote) in window.transcript]:
            labels = {**task.labels, "evidence_digest": words_digest(shown)}
            found.append(replace(task, evidence=tuple(window.chunk_id for window in shown), labels=labels))
        elif not quote:
            found.append(task)
    return found


def one_speaker_chunks(chunks: Sequence[Chunk], max_words: int = 18) -> list[Chunk]:
    """Returns the chunks; windows are replaced by chunks of one speaker and at most `max_words` words, each word once.

    Windows of an episode must be in order. No chunk of the memory has the ids of the new chunks.
    """
    pieces: list[Chunk] = []
    for chunk in each_word_once(chunks):
        said = chunk.transcript.split()
        ends = [start for start, _ in chunk.turns[1:]] + [len(said)]
        for (start, speaker), end in zip(chunk.turns, ends, strict=False):
            words = words_of(" ".join(said[start:end]))
            time = next((time for place, time in reversed(chunk.times) if place <= start), chunk.time)
            for first, last in pieces_of([word.strip() for word in words], max_words):
                text, number = "".join(words[first:last]).strip(), len(pieces)
                pieces.append(Chunk(f"{chunk.stem}:{number}", chunk.episode, chunk.stem, speaker, text, time, number))
        if not chunk.turns:
            pieces.append(chunk)
    return [piece for piece in pieces if piece.transcript]


def split_episodes(chunks: Iterable[Chunk], num_test: int, num_validation: int, seed: int) -> dict[str, list[Chunk]]:
    """Returns chunks by part (`train`, `validation`, `test`); an episode belongs to one part only.

    Raises SettingsError if there are too few episodes.
    """
    by_episode: dict[str, list[Chunk]] = defaultdict(list)
    for chunk in chunks:
        by_episode[chunk.stem].append(chunk)
    stems = sorted(by_episode)
    if len(stems) <= num_test + num_validation:
        least = num_test + num_validation + 1
        raise SettingsError(
            f"{len(stems)} episodes cannot be split into {num_test} for the test, {num_validation} for validation and some "
            f"for training; at least {least} transcripts are needed, so add {least - len(stems)}"
        )
    random.Random(f"split-{seed}").shuffle(stems)
    parts = {
        "test": stems[:num_test],
        "validation": stems[num_test : num_test + num_validation],
        "train": stems[num_test + num_validation :],
    }
    return {part: [chunk for stem in sorted(names) for chunk in by_episode[stem]] for part, names in parts.items()}


def write_questions(tasks: Iterable[Task], path: Path) -> None:
    """Writes one JSON object per line, atomically."""
    with atomic_path(path) as partial, partial.open("w", encoding="utf-8") as file:
        for task in tasks:
            file.write(json.dumps(task.to_dict(), ensure_ascii=False) + "\n")


def read_questions(path: Path) -> list[Task]:
    """Reads questions from JSON lines with at least `question` (or `prompt`) and `answer`.

    Raises TranscriptError with the file and line if one cannot be read.
    """
    tasks: list[Task] = []
    line_of: dict[str, int] = {}
    try:
        lines = read_regular_text(path).split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise TranscriptError(f"questions {path} cannot be read: {reason}; give a JSON-lines file") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            row.setdefault("prompt", row.pop("question", None))
            row.setdefault("task_id", f"{path.stem}:{number}")
            known = {
                key: row[key] for key in ("task_id", "prompt", "answer", "aliases", "labels", "evidence") if key in row
            }
            if not isinstance(known.get("prompt"), str) or not isinstance(known.get("answer"), str):
                raise ValueError("question and answer must be strings")
            if not isinstance(known.get("labels", {}), Mapping):
                raise ValueError("labels must be an object")
            for texts in (known.get("aliases", []), known.get("evidence", [])):
                if not isinstance(texts, list) or not all(isinstance(each, str) for each in texts):
                    raise ValueError("aliases and evidence must be lists of strings")
            tasks.append(as_unanswerable(Task.from_dict(known)))
            if (first := line_of.setdefault(tasks[-1].task_id, number)) != number:
                raise ValueError(f"the task_id {tasks[-1].task_id!r} is that of line {first}")
        except (ValueError, AttributeError, TypeError, RecursionError) as error:
            raise TranscriptError(
                f'{path}, line {number}: not a question ({error}); write {{"question": "…", "answer": "…"}} on each line'
            ) from None
    return tasks


class _QuoteIndex:
    """Decides whether a quote occurs once in the episodes, whose chunks are in order, also across the ends of chunks. Words are
    compared as full-text search does."""

    def __init__(self, chunks: Sequence[Chunk]) -> None:
        episodes = itertools.groupby(chunks, lambda chunk: chunk.stem)
        self._text = "\n".join(spaced_words(" ".join(each.transcript for each in episode)) for _, episode in episodes)

    def is_unique(self, quote: str) -> bool:
        words = spaced_words(quote)
        place = self._text.find(words) if words.strip() else -1
        return place >= 0 and self._text.find(words, place + 1) < 0


class _ByAnswer:
    """Draws chunks so that all answers of a kind are equally frequent while their chunks last."""

    def __init__(self, chunks: Sequence[Chunk], kind: str, rng: random.Random) -> None:
        by_answer: dict[str, list[Chunk]] = defaultdict(list)
        for chunk in chunks:
            if kind != "speaker" or chunk.speaker != UNKNOWN_SPEAKER:  # ask only if the source names the speaker
                by_answer[chunk.episode if kind == "episode" else chunk.speaker].append(chunk)
        self._piles = [by_answer[answer] for answer in sorted(by_answer)]
        for pile in self._piles:
            rng.shuffle(pile)
        rng.shuffle(self._piles)
        self._turn = 0

    def next(self) -> Chunk | None:
        self._piles = [pile for pile in self._piles if pile]
        if not self._piles:
            return None
        self._turn += 1
        return self._piles[self._turn % len(self._piles)].pop()


def _distractor(chunks: Sequence[Chunk], answer: str, rng: random.Random) -> Chunk | None:
    """Returns a chunk that does not contain the answer; None if none is found, as in a part of one episode."""
    drawn = (rng.choice(chunks) for _ in range(MAX_DISTRACTOR_DRAWS))
    return next((other for other in drawn if answer not in format_chunk(other)), None)
