"""Chooses questions of all kinds, balanced by kind, answer and episode, as tasks."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

from midthought.data.abstention import UNANSWERABLE
from midthought.errors import SettingsError, near_names
from midthought.memory.chunks import Chunk, words_digest
from midthought.memory.rule_questions.forms import KINDS
from midthought.memory.rule_questions.listener import Draft, Listener
from midthought.memory.rule_questions.speech import spoken_turns
from midthought.memory.rule_questions.unanswerable import unanswerable_drafts
from midthought.types import Task

ALL_KINDS: dict[str, Callable[[Listener], Iterator[Draft]]] = {**KINDS, UNANSWERABLE: unanswerable_drafts}
NEEDS = {
    "speaker": "an English sentence of a named speaker that is understood alone, and that nobody else says",
    "episode": "an English sentence of a named speaker that is understood alone, and that no other episode has",
    "next": "a question that another named speaker answers, or a statement followed by its reason or an example",
    "number": "a number in a sentence that is understood alone",
    "name": "a name in a sentence that is understood alone",
    "compare": "a name that two named speakers of one episode mention, in two chunks",
    "when": "transcripts with times, or a stated year",
    "two": "two statements of one speaker in two chunks, an answer in another chunk than its question, or several episodes",
    UNANSWERABLE: "enough questions of other kinds (--num-questions), whose forms it has, and another speaker or episode",
}
"""What the transcripts must have for a question of a kind, for messages."""
MAX_ANSWER_SHARE = 0.1
"""Of the questions of a kind with names as answers, at most this share, or three, have the same answer."""
MAX_SKEW = 0.02
"""Balanced accuracy above 0.5 with which the form of a question may show whether it has an answer. Forms that no unanswerable
question has are not counted."""


def listener_questions(
    chunks: Sequence[Chunk],
    num_questions: int,
    seed: int = 0,
    *,
    kinds: Sequence[str] = tuple(ALL_KINDS),
    memory: Sequence[Chunk] | None = None,
) -> list[Task]:
    """Returns up to `num_questions` questions about `chunks`, equally many of each kind while they last.

    Every answer is the only one in `memory` (default: `chunks`) as far as its words show. Needs English transcripts: other
    episodes give no question. Raises SettingsError for an unknown kind.
    """
    for kind in kinds:
        if kind not in ALL_KINDS:
            raise SettingsError(f"unknown kind of question {kind!r}. {near_names(kind, ALL_KINDS)}")
    turns = spoken_turns(chunks)
    asked = Listener(
        turns,
        turns if memory is None else spoken_turns(memory),
        f"listener-{seed}",
        has_premises=UNANSWERABLE in kinds,
    )
    wanted = -(-num_questions // len(kinds))
    chosen = {kind: _chosen(asked, KINDS[kind](asked), wanted) for kind in kinds if kind != UNANSWERABLE}
    if UNANSWERABLE in kinds:
        answered = [draft for drafts in chosen.values() for draft in drafts]
        drafts = list(unanswerable_drafts(asked))
        most = max(map(len, chosen.values()), default=wanted)  # not more than of another kind
        chosen[UNANSWERABLE] = _like(asked, drafts, answered, most) if chosen else _chosen(asked, drafts, wanted)
    longest = max(map(len, chosen.values()), default=0)
    mixed = [drafts[place] for place in range(longest) for drafts in chosen.values() if place < len(drafts)]
    by_id = {chunk.chunk_id: chunk for chunk in (*(memory or ()), *chunks)}
    return [_task(draft, words_digest(by_id[each] for each in draft.chunk_ids)) for draft in mixed[:num_questions]]


def _like(asked: Listener, drafts: list[Draft], answered: list[Draft], wanted: int) -> list[Draft]:
    """Returns unanswerable drafts that look like those with answers: the same forms, and the same names within a form, in the
    same proportions.

    If a form is scarce, there are fewer of all: only so many that knowing the form gives a guesser at most `MAX_SKEW`.
    """
    likes = Counter(f"{draft.kind}/{draft.form}" for draft in answered)
    names = Counter((f"{draft.kind}/{draft.form}", draft.named) for draft in answered)
    found = {form: _drawn(asked, [draft for draft in drafts if draft.form == form], names) for form in likes}
    missing = sum(number for form, number in likes.items() if not found[form]) / max(1, likes.total())
    for total in range(min(wanted, likes.total()), 0, -1):
        counts = _apportioned(total, likes, {form: len(own) for form, own in found.items()})
        if counts.total() and _distance(counts, likes) <= missing + 2 * MAX_SKEW:
            chosen = [draft for form, own in found.items() for draft in own[: counts[form]]]
            return sorted(chosen, key=lambda draft: asked.drawn("mixed", draft.question))
    return []


def _apportioned(total: int, likes: Counter[str], most: dict[str, int]) -> Counter[str]:
    """Divides `total` in the proportions of `likes`, at most so many per form (largest remainder method)."""
    shares = {form: total * number / likes.total() for form, number in likes.items()}
    counts = Counter({form: min(most[form], int(share)) for form, share in shares.items()})
    for form in sorted(shares, key=lambda form: int(shares[form]) - shares[form]):
        counts[form] += counts.total() < total and counts[form] < most[form]
    return counts


def _drawn(asked: Listener, drafts: list[Draft], likes: Counter[tuple[str, str]]) -> list[Draft]:
    """Returns drafts in random order, each question once: specific ones first, and those that name what many questions with
    answers name.

    Weighted sampling without replacement (Efraimidis and Spirakis, 2006): ordered by `u ** (1 / weight)`.
    """
    have = Counter((draft.form, draft.named) for draft in drafts)
    own = {draft.question: draft for draft in drafts if likes[draft.form, draft.named]}
    keys = {
        draft.question: asked.drawn(draft.question) ** (have[draft.form, draft.named] / likes[draft.form, draft.named])
        for draft in own.values()
    }
    return sorted(own.values(), key=lambda draft: (not draft.is_specific, -keys[draft.question]))


def _distance(a: Counter[str], b: Counter[str]) -> float:
    """Total variation distance of two distributions. Who knows which of them a case is from has a balanced accuracy of at most
    half of it above 0.5."""
    return sum(abs(a[key] / a.total() - b[key] / b.total()) for key in sorted(a | b)) / 2


def _chosen(asked: Listener, drafts: Iterable[Draft], wanted: int) -> list[Draft]:
    """Returns drafts with different subjects: specific ones first, then forms and episodes in turn, no answer too often,
    informative ones first."""
    ordered = sorted(drafts, key=lambda draft: (draft.information, asked.drawn(draft.question)))
    balance = _Balance(max(3, round(wanted * MAX_ANSWER_SHARE)))
    chosen: list[Draft] = []
    for is_specific in (True, False):
        piles: dict[str, dict[str, list[Draft]]] = defaultdict(lambda: defaultdict(list))
        for draft in ordered:
            if draft.is_specific == is_specific:
                piles[draft.form][draft.stem].append(draft)
        while piles and len(chosen) < wanted:
            for form in list(piles):
                best = _next(piles[form])
                if best is None:
                    del piles[form]
                elif len(chosen) < wanted and balance.takes(best):
                    chosen.append(best)
    return chosen


class _Balance:
    """Refuses a subject that was used, an answer that is frequent, and a comparison that one speaker wins too often."""

    def __init__(self, max_equal_answers: int) -> None:
        self._max_equal_answers = max_equal_answers
        self._subjects: set[str] = set()
        self._answers: Counter[str] = Counter()
        self._wins: Counter[str] = Counter()

    def takes(self, draft: Draft) -> bool:
        """Whether the draft is taken; if so it is counted."""
        loser = draft.labels.get("loser", "")
        is_frequent = draft.kind != UNANSWERABLE and self._answers[draft.answer] >= self._max_equal_answers
        is_one_sided = bool(loser) and (self._wins[draft.answer] > 0 or self._wins[loser] < 0)
        if draft.subject in self._subjects or is_frequent or is_one_sided:
            return False
        self._subjects.add(draft.subject)
        self._answers[draft.answer] += 1
        if loser:
            self._wins[draft.answer] += 1
            self._wins[loser] -= 1
        return True


def _next(by_episode: dict[str, list[Draft]]) -> Draft | None:
    """Takes the last draft of the first episode, which becomes the last episode; None if there are no more."""
    for stem in list(by_episode):
        drafts = by_episode.pop(stem)
        if drafts:
            by_episode[stem] = drafts
            return drafts.pop()
    return None


def _task(draft: Draft, evidence_digest: str) -> Task:
    digest = hashlib.sha256(draft.question.encode()).hexdigest()[:10]
    return Task(
        task_id=f"{draft.stem}:{draft.kind}:{digest}",
        prompt=draft.question,
        answer=draft.answer,
        aliases=tuple(alias for alias in draft.aliases if alias and alias != draft.answer),
        labels={
            "needs_memory": True,
            "kind": draft.kind,
            "form": draft.form,
            "episode": draft.stem,
            "named": draft.named,
            "evidence_digest": evidence_digest,
        },
        evidence=draft.chunk_ids,
    )
