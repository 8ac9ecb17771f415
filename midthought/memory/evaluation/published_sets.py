"""Reads the published files of LoCoMo, LongMemEval and BrowseComp-Plus, if the user has them. Nothing is downloaded.

A file's own texts become transcripts, so that a memory can be built from them. `level` decides what a transcript is in
conversations, as in the papers: a session or a turn.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from midthought.data.rows import rows_of
from midthought.errors import DataError, SettingsError, near_names
from midthought.memory.evaluation.question_files import FORM, QuestionSet, RetrievalQuestion, own_questions
from midthought.memory.transcripts import Transcript
from midthought.memory.turns import Segment, turns_of, without_unusable_characters

Level = Literal["session", "turn"]

ADVERSARIAL = "adversarial"
"""LoCoMo's questions without an answer."""
LOCOMO_KINDS = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop", 5: ADVERSARIAL}
"""Names of LoCoMo's categories, in the order of the paper's section 4.1 as its repository numbers them."""
_DIALOG = re.compile(r"D:?(\d+):(\d+)")
_SESSION = re.compile(r"session_(\d+)")
_ENCRYPTED = re.compile(r"[A-Za-z0-9+/]{24,}={0,2}")


def read_question_set(path: str | Path, level: Level = "session", max_questions: int | None = None) -> QuestionSet:
    """Reads a published set, recognized by its keys, or a file of one's own (`question_files`).

    Raises DataError, with the row, if the file is of another form, and SettingsError for an unknown level.
    """
    if level not in get_args(Level):
        raise SettingsError(f"level {level!r} is not known. {near_names(level, get_args(Level))}")
    rows = rows_of(str(path))
    first = next(rows, None)
    if first is None:
        raise DataError(f"{path}: it has no questions; {FORM}")
    keys = set(first.value) if isinstance(first.value, Mapping) else set()
    every_row = itertools.chain([first], rows)
    name = next((name for name, (wanted, _) in _SETS.items() if wanted <= keys), None)
    if name is None:
        return own_questions(itertools.islice(every_row, max_questions), Path(path).name)
    corpus, questions = _Corpus(name, Path(path)), list[RetrievalQuestion]()
    for row in every_row:
        try:
            questions += _SETS[name][1](corpus, row.value, level)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, DataError):
                raise
            reason = row.problem or f"{type(error).__name__}: {error}"
            raise DataError(
                f"{row.where}: it is not a row of {name} ({reason}); give the published file, unchanged"
            ) from None
        if max_questions is not None and len(questions) >= max_questions:
            break
    return QuestionSet(name, tuple(questions[:max_questions]), tuple(corpus.transcripts.values()))


class _Corpus:
    """The texts of a set, each once."""

    def __init__(self, name: str, path: Path) -> None:
        self.transcripts: dict[str, Transcript] = {}
        """By stem."""
        self._name = name
        self.path = path
        self._contents: dict[str, list[object]] = {}

    def add(self, stem: str, episode: str, spoken: Iterable[tuple[str | None, str]]) -> None:
        """Adds a transcript of (speaker, words); not if there are no words."""
        segments = (Segment(who, " ".join(without_unusable_characters(words).split())) for who, words in spoken)
        if turns := turns_of(segments):
            self.transcripts[stem] = Transcript(episode, stem, tuple(turns), self.path, self._name)

    def session_name(self, session_id: str, content: object) -> str:
        """Returns the id of a session; with a number if another one has the same id and other words."""
        known = self._contents.setdefault(session_id, [])
        if content not in known:
            known.append(content)
        number = known.index(content)
        return f"{session_id}~{number}" if number else session_id


def _locomo(corpus: _Corpus, sample: Mapping[str, Any], level: Level) -> Iterator[RetrievalQuestion]:
    """A conversation with its questions: `locomo10.json` of github.com/snap-research/locomo at e76cdff.

    A question searches the sessions of its own conversation. `evidence` has ids of turns, `D1:3` in session 1.
    """
    sample_id, conversation = str(sample["sample_id"]), sample["conversation"]
    episodes = []
    for key, turns in conversation.items():
        if not (session := _SESSION.fullmatch(key)) or not isinstance(turns, list):
            continue
        episodes.append(f"{sample_id}, session {session[1]}, {conversation.get(f'{key}_date_time', '')}".rstrip(", "))
        spoken = [(turn["dia_id"], (turn["speaker"], _with_caption(turn))) for turn in turns]
        if level == "session":
            corpus.add(f"{sample_id}:D{session[1]}", episodes[-1], [words for _, words in spoken])
        else:
            for dialog_id, words in spoken:
                corpus.add(f"{sample_id}:{dialog_id}", episodes[-1], [words])
    for asked in sample["qa"]:
        named = _DIALOG.findall(" ".join(asked.get("evidence") or ()))
        stems = (f"{sample_id}:D{one}" if level == "session" else f"{sample_id}:D{one}:{turn}" for one, turn in named)
        relevant = tuple(stem for stem in dict.fromkeys(stems) if stem in corpus.transcripts)
        kind = LOCOMO_KINDS[asked["category"]]
        found = () if kind == ADVERSARIAL else relevant  # its evidence is what the wrong answer comes from
        yield RetrievalQuestion(asked["question"], found, "transcript", kind, tuple(episodes))


def _with_caption(turn: Mapping[str, Any]) -> str:
    """The words of a turn, with the caption of a shared image, as LoCoMo's own evaluation has them."""
    caption = turn.get("blip_caption")
    return f"{turn['text']} [shares {caption}]" if caption else str(turn["text"])


def _longmemeval(corpus: _Corpus, row: Mapping[str, Any], level: Level) -> Iterator[RetrievalQuestion]:
    """A question with its history: `longmemeval_s.json`, `_m`, `_oracle` of github.com/xiaowu0162/LongMemEval at 982fbd7.

    Relevant are the sessions of `answer_session_ids`, or the turns with `has_answer`. Questions whose id ends in `_abs` have
    no answer there and are not measured, as in its own script.
    """
    relevant, episodes = list[str](), list[str]()
    for session_id, turns in zip(row["haystack_session_ids"], row["haystack_sessions"], strict=True):
        spoken = [(turn["role"], turn["content"]) for turn in turns]
        episodes.append(episode := corpus.session_name(session_id, spoken))
        if level == "session":
            corpus.add(episode, episode, spoken)
            relevant += [episode] if session_id in row["answer_session_ids"] else []
            continue
        for number, (turn, words) in enumerate(zip(turns, spoken, strict=True), 1):
            corpus.add(f"{episode}_{number}", episode, [words])
            relevant += [f"{episode}_{number}"] if turn.get("has_answer") else []
    found = () if row["question_id"].endswith("_abs") else tuple(dict.fromkeys(relevant))
    yield RetrievalQuestion(row["question"], found, "transcript", row["question_type"], tuple(dict.fromkeys(episodes)))


def _browsecomp_plus(corpus: _Corpus, row: Mapping[str, Any], level: Level) -> Iterator[RetrievalQuestion]:
    """A question with its documents: the decrypted JSON lines of github.com/texttron/BrowseComp-Plus at b90a68c.

    Relevant are the evidence documents (its `qrel_evidence.txt`). All documents of the file are searched: evidence, gold and
    negative ones of all questions, not the rest of the corpus of 100,000.
    """
    if _ENCRYPTED.fullmatch(row["query"]):
        raise DataError(
            f"{corpus.path}: its questions are encrypted; decrypt it with decrypt_dataset.py of BrowseComp-Plus, and give "
            "the JSON lines that it writes"
        )
    for name in ("gold_docs", "evidence_docs", "negative_docs"):
        for document in row.get(name) or ():
            docid = str(document["docid"])
            if docid not in corpus.transcripts:
                corpus.add(docid, str(document.get("url") or docid), [(None, document["text"])])
    relevant = tuple(dict.fromkeys(str(document["docid"]) for document in row["evidence_docs"]))
    yield RetrievalQuestion(row["query"], relevant, "transcript")


Reader = Callable[[_Corpus, Mapping[str, Any], Level], Iterator[RetrievalQuestion]]
_SETS: Mapping[str, tuple[frozenset[str], Reader]] = {
    "LoCoMo": (frozenset({"conversation", "qa"}), _locomo),
    "LongMemEval": (frozenset({"question", "haystack_sessions"}), _longmemeval),
    "BrowseComp-Plus": (frozenset({"query", "evidence_docs"}), _browsecomp_plus),
}
"""The keys of a row by which a set is recognized, and its reader."""
