"""One function per kind of question: yields every question of the kind that the memory allows, in order. English.

A question that could have two answers, that contains words of its answer, or that has little content is left out.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from midthought.memory.chunks import UNKNOWN_TIME
from midthought.memory.rule_questions import wordings
from midthought.memory.rule_questions.english import ADDRESSED, CALENDAR, FUNCTION_WORDS, word_set
from midthought.memory.rule_questions.gaps import Gap, blank_of, gaps_of
from midthought.memory.rule_questions.index import StatementIndex
from midthought.memory.rule_questions.speech import Sentence, SpokenTurn, plain_words
from midthought.memory.rule_questions.statements import (
    Statement,
    clauses_of,
    english_stems,
    stands_alone,
    statements_of,
    without_openers,
)
from midthought.memory.rule_questions.vocabulary import Vocabulary, bare_token
from midthought.memory.turns import UNKNOWN_SPEAKER

MIN_INFORMATION_SHARE = 0.6
"""A statement has at least this share of the information of three words that occur once."""
MIN_REPLY_WORDS, MAX_REPLY_WORDS = 4, 24
MAX_QUESTION_WORDS = 30
MIN_MENTIONS = 2
MIN_CONTENT_WORDS = 4


@dataclass(frozen=True, slots=True)
class Draft:
    """A question before it is chosen."""

    kind: str
    form: str
    question: str
    answer: str
    aliases: tuple[str, ...]
    chunk_ids: tuple[str, ...]
    stem: str
    subject: str
    """What it is about; a statement is used once per kind."""
    information: float = 0.0
    labels: dict[str, str] = field(default_factory=dict)


class Listener:
    """What the forms read: turns, statements, and what else the memory says."""

    def __init__(self, turns: Sequence[SpokenTurn], memory: Sequence[SpokenTurn], rng: random.Random) -> None:
        """`turns` are asked about; answers are unique in `memory`, which contains them."""
        self.turns, self.rng = turns, rng
        self.vocabulary = Vocabulary(memory)
        self.index = StatementIndex(memory, self.vocabulary)
        self.memory = memory
        self.english = english_stems(turns)
        least = MIN_INFORMATION_SHARE * 3 * self.vocabulary.idf("")
        self.statements = [
            each
            for each in statements_of(turns, self.vocabulary)
            if each.information >= least and self._has_content(each.text) and _is_open(each)
        ]
        self.gaps = [
            gap
            for statement in statements_of(turns, self.vocabulary, whole=False)
            for gap in gaps_of(statement, self.vocabulary)
            if self.has_one_answer(gap)
        ]
        self.blanks = [
            gap
            for statement in statements_of(turns, self.vocabulary)
            for gap in blank_of(statement, self.vocabulary)
            if self.has_one_answer(gap) and self._has_content(gap.clause) and not _reveals(gap.clause, gap.answer)
        ]
        self.speakers: dict[str, list[str]] = defaultdict(list)
        for turn in memory:
            if turn.speaker != UNKNOWN_SPEAKER and turn.speaker not in self.speakers[turn.stem]:
                self.speakers[turn.stem].append(turn.speaker)

    def _has_content(self, text: str) -> bool:
        return len(set(self.vocabulary.content_words(text))) >= MIN_CONTENT_WORDS

    def has_one_answer(self, gap: Gap) -> bool:
        """Whether nothing else that the speaker says may answer it."""
        places = self.index.similar(f"{gap.wh} {gap.clause}", gap.statement.sentence)
        return all(place.speaker != gap.statement.speaker for place in places)

    def choose(self, frames: Sequence[str], **values: str) -> str:
        """Returns one of the wordings, filled, with a capital letter."""
        text = self.rng.choice(frames).format(**values)
        return text[0].upper() + text[1:]


def _is_open(statement: Statement) -> bool:
    """Whether the statement does not name its speaker."""
    names = {word for word in plain_words(statement.speaker) if len(word) > 2}
    return not names & set(plain_words(statement.text))


def _reveals(question: str, answer: str) -> bool:
    words = {word for word in plain_words(answer) if word not in FUNCTION_WORDS}
    return bool(words & set(plain_words(question)))


def speaker_drafts(asked: Listener) -> Iterator[Draft]:
    """Who says that …?"""
    for each in asked.statements:
        if any(place.speaker != each.speaker for place in asked.index.similar(each.text, each.sentence)):
            continue
        question = asked.choose(wordings.SPEAKER, said=each.reported)
        yield draft_of("speaker", "statement", question, each.speaker, (), each)


def episode_drafts(asked: Listener) -> Iterator[Draft]:
    """In which episode does … say that …?"""
    for each in asked.statements:
        if any(place.stem != each.stem for place in asked.index.similar(each.text, each.sentence)):
            continue
        who = each.speaker if asked.rng.random() < 0.5 else "somebody"
        question = asked.choose(wordings.EPISODE, who=who, said=each.reported)
        if not _reveals(each.reported, each.episode):
            yield draft_of("episode", "statement", question, each.episode, (), each)


def when_drafts(asked: Listener) -> Iterator[Draft]:
    """At what time does … say that …? In which year …?"""
    for gap in asked.gaps:
        if gap.kind == "when":
            yield draft_of_gap(asked, gap)
    for each in asked.statements:
        time = each.sentence.time
        if time == UNKNOWN_TIME or any(
            place.stem == each.stem for place in asked.index.similar(each.text, each.sentence)
        ):
            continue
        question = asked.choose(wordings.WHEN, episode=each.episode, who=each.speaker, said=each.reported)
        short = time.removeprefix("00:")
        yield draft_of("when", "time", question, time, (short, short.lstrip("0")), each)


def number_drafts(asked: Listener) -> Iterator[Draft]:
    """How many … does … say …?"""
    yield from _stated(asked, "number")


def name_drafts(asked: Listener) -> Iterator[Draft]:
    """What does … say …, if the answer is a name."""
    yield from _stated(asked, "name")


def _stated(asked: Listener, kind: str) -> Iterator[Draft]:
    yield from (draft_of_gap(asked, gap) for gap in asked.gaps if gap.kind == kind)
    for gap in asked.blanks:
        if gap.kind == kind:
            text = asked.choose(wordings.BLANK, who=gap.statement.speaker, said=gap.clause, wh=gap.wh)
            yield draft_of(kind, "blank", text, gap.answer, gap.aliases, gap.statement)


def next_drafts(asked: Listener) -> Iterator[Draft]:
    """What did … answer when … asked …?"""
    for question, first, second, reply in _exchanges(asked):
        clean = " ".join(without_openers(reply.text.replace("’", "'").rstrip(".!").split()))
        text = asked.choose(wordings.NEXT, first=first.speaker, second=second.speaker, asked=question.text)
        yield Draft(
            "next",
            "reply",
            text,
            reply.text,
            (clean,) if clean else (),
            (*question.chunk_ids, *reply.chunk_ids),
            first.stem,
            question.text,
            asked.vocabulary.information(question.text) + asked.vocabulary.information(reply.text),
            {"first": first.speaker, "second": second.speaker},
        )


def compare_drafts(asked: Listener) -> Iterator[Draft]:
    """Who mentions … first, or more often: … or …?"""
    for stem, names in mentions_of(asked).items():
        for topic, (turn, _) in ((name, places[0]) for name, places in names.items()):
            places = [place for place in asked.index.mentions(topic) if place.stem == stem]
            counts = Counter(place.speaker for place in places)
            first = places[0]
            others = sorted(set(counts) - {first.speaker})
            if not others or UNKNOWN_SPEAKER in counts or _reveals(" ".join([*counts, turn.episode]), topic):
                continue
            other = asked.rng.choice(others)
            second = next(place for place in places if place.speaker == other)
            if set(first.sentence.chunk_ids) & set(second.sentence.chunk_ids):
                continue
            pair = [first.speaker, other]
            often, seldom = sorted(pair, key=lambda name: -counts[name])
            frames: Sequence[str] = wordings.FIRST_TO_SAY
            form, answer, proof = "first", first.speaker, [first, second]
            if counts[often] >= 3 * counts[seldom] and asked.rng.random() < 0.5:
                frames, form, answer = wordings.MORE_OFTEN, "more", often
                proof = [place for place in places if place.speaker in pair]
            asked.rng.shuffle(pair)
            text = asked.choose(frames, topic=topic, episode=turn.episode, a=pair[0], b=pair[1])
            information = sum(asked.vocabulary.idf(word) for word in plain_words(topic))
            loser = next(name for name in pair if name != answer)
            chunk_ids = tuple(dict.fromkeys(chunk_id for place in proof for chunk_id in place.sentence.chunk_ids))
            yield Draft("compare", form, text, answer, (), chunk_ids, stem, topic, information, {"loser": loser})


def two_drafts(asked: Listener) -> Iterator[Draft]:
    """Questions that need two chunks: what else does the speaker of … say; which episode has both … and …"""
    by_speaker: dict[tuple[str, str], list[Statement]] = defaultdict(list)
    for each in asked.statements:
        if all(place.speaker == each.speaker for place in asked.index.similar(each.text, each.sentence)):
            by_speaker[each.stem, each.speaker].append(each)
    for gap in asked.gaps:
        own = gap.statement
        others = [
            each
            for each in by_speaker[own.stem, own.speaker]
            if not set(each.sentence.chunk_ids) & set(own.sentence.chunk_ids)
            and not _reveals(each.reported, gap.answer)
        ]
        if others:
            each = asked.rng.choice(others)
            inner = gap.question("the same person", wordings.FRAMES[asked.rng.choice((0, 1))])
            text = asked.choose(wordings.BRIDGE, said=each.reported, gap=inner)
            evidence = (*each.sentence.chunk_ids, *own.sentence.chunk_ids)
            yield replace(draft_of_gap(asked, gap), kind="two", form="bridge", question=text, chunk_ids=evidence)
    for question, first, second, reply in _exchanges(asked):
        if _reveals(question.text, second.speaker):
            continue
        text = asked.choose(wordings.REPLIER, first=first.speaker, asked=question.text)
        yield Draft(
            "two",
            "replier",
            text,
            second.speaker,
            (),
            (*question.chunk_ids, *reply.chunk_ids),
            first.stem,
            question.text,
            asked.vocabulary.information(question.text),
        )
    yield from _topic_pairs(asked)


def _topic_pairs(asked: Listener) -> Iterator[Draft]:
    mentions = mentions_of(asked)
    names = sorted({name for topics in mentions.values() for name in topics})
    stems_of = {name: {place.stem for place in asked.index.mentions(name)} for name in names}
    for stem, topics in mentions.items():
        shared = sorted(topic for topic in topics if len(stems_of[topic]) > 1 and len(topics[topic]) >= MIN_MENTIONS)
        asked.rng.shuffle(shared)
        for a, b in zip(shared[::2], shared[1::2], strict=False):
            places = (topics[a][0], topics[b][0])
            title = places[0][0].episode
            evidence = (*places[0][1].chunk_ids, *places[1][1].chunk_ids)
            if stems_of[a] & stems_of[b] == {stem} and not _reveals(f"{a} {b}", title) and len(set(evidence)) > 1:
                text = asked.choose(wordings.BOTH_TOPICS, a=a, b=b)
                yield Draft("two", "topics", text, title, (), tuple(dict.fromkeys(evidence)), stem, f"{a} {b}")


def _exchanges(asked: Listener) -> Iterator[tuple[Sentence, SpokenTurn, SpokenTurn, Sentence]]:
    """Yields (question, turn that ends with it, next turn, its first informative sentence)."""
    for first, second in pairwise(asked.turns):
        if (
            first.stem != second.stem
            or first.stem not in asked.english
            or UNKNOWN_SPEAKER in (first.speaker, second.speaker)
        ):
            continue
        question = first.sentences[-1]
        tokens = without_openers(question.text.replace("’", "'").split())
        if not question.text.endswith("?") or not 5 <= len(tokens) <= MAX_QUESTION_WORDS or '"' in question.text:
            continue
        people = {word for name in asked.speakers[first.stem] for word in plain_words(name)}
        others = asked.index.similar(question.text, question)
        if any(place.stem == first.stem and place.sentence.text.endswith("?") for place in others):
            continue  # asked twice: each time it has another answer
        nameless = [token for token in tokens if bare_token(token).lower() not in people]
        if not tokens[0].lower().startswith(_QUESTION_WORDS) or not _is_clear(nameless, asked.vocabulary):
            continue
        is_short = len(second.sentences[0].text.split()) < MIN_REPLY_WORDS  # "Well, yes."
        for reply in second.sentences[is_short : is_short + 1]:
            words = without_openers(reply.text.split())
            if _is_reply(reply.text, words, asked.vocabulary):
                yield question, first, second, reply
                break


def _is_reply(text: str, words: Sequence[str], vocabulary: Vocabulary) -> bool:
    """Whether a sentence, whose words without openers are given, answers a question by itself."""
    said = plain_words(text)
    is_whole = bool(said and clauses_of(text)) and "--" not in text
    continues = said[:1] in (["but"], ["and"]) or bool(ADDRESSED & set(said))
    has_content = vocabulary.information(" ".join(words)) >= vocabulary.idf("")
    has_length = MIN_REPLY_WORDS <= len(words) <= MAX_REPLY_WORDS
    return is_whole and not continues and has_content and has_length and not _is_praise(words)


_QUESTION_WORDS = ("what", "how", "why", "where", "when", "who", "which")
_YOU = frozenset(("you", "your", "you're", "you've", "yours", "yourself"))
_SMALL_TALK = word_set("doing today guys folks feeling answer talk")
_PRAISE = word_set("question hear thank thanks welcome glad happy sorry wonderful")


def _is_clear(tokens: Sequence[str], vocabulary: Vocabulary) -> bool:
    """Whether a question is understood without what was said before; "you" is the person who answers."""
    named = [token for token in tokens if bare_token(token).lower() not in _YOU]
    content = [word for word in vocabulary.content_words(" ".join(tokens)) if word not in _SMALL_TALK]
    return stands_alone(named, vocabulary) and len(content) >= 2 and "..." not in " ".join(tokens)


def _is_praise(words: Sequence[str]) -> bool:
    return bool({bare_token(word).lower() for word in words} & _PRAISE)


def mentions_of(asked: Listener) -> dict[str, dict[str, list[tuple[SpokenTurn, Sentence]]]]:
    """Returns where each name is mentioned, by episode and name, in order. Names of speakers are left out."""
    found: dict[str, dict[str, list[tuple[SpokenTurn, Sentence]]]] = defaultdict(lambda: defaultdict(list))
    people = {word for names in asked.speakers.values() for name in names for word in plain_words(name)}
    for turn in asked.turns:
        if turn.stem not in asked.english or turn.speaker == UNKNOWN_SPEAKER:
            continue
        for sentence in turn.sentences:
            for name in names_in(sentence.text, asked.vocabulary):
                if not people & set(plain_words(name)) and not _reveals(name, turn.episode):
                    found[turn.stem][name].append((turn, sentence))
    return found


def names_in(text: str, vocabulary: Vocabulary) -> list[str]:
    """Returns the names within a sentence, without its first word; neighbouring name words are one name."""
    names: list[list[str]] = []
    is_open = False
    tokens = text.replace("’", "'").split()
    for place, token in enumerate(tokens[1:], 1):
        following = tokens[place + 1] if place + 1 < len(tokens) and token[-1].isalnum() else ""
        starts = token[:1].isupper() and len(token) > 2 and token.isalpha() and vocabulary.is_name(following)
        is_part = (vocabulary.is_name(token) or starts) and token[:1].isalnum()
        if is_part and is_open:
            names[-1].append(bare_token(token))
        elif is_part:
            names.append([bare_token(token)])
        is_open = is_part and token[-1].isalnum()
    joined = [" ".join(name).removesuffix("'s") for name in names]
    return list(dict.fromkeys(name for name in joined if len(name) > 2 and not set(plain_words(name)) & CALENDAR))


def draft_of_gap(asked: Listener, gap: Gap) -> Draft:
    question = gap.question(gap.statement.speaker, asked.rng.choice(wordings.FRAMES))
    return draft_of(gap.kind, "gap", question, gap.answer, gap.aliases, gap.statement)


def draft_of(kind: str, form: str, question: str, answer: str, aliases: tuple[str, ...], each: Statement) -> Draft:
    return Draft(
        kind, form, question, answer, aliases, each.sentence.chunk_ids, each.stem, each.text, each.information,
        {"speaker": each.speaker},
    )  # fmt: skip


KINDS: dict[str, Callable[[Listener], Iterator[Draft]]] = {
    "speaker": speaker_drafts,
    "episode": episode_drafts,
    "next": next_drafts,
    "number": number_drafts,
    "name": name_drafts,
    "compare": compare_drafts,
    "when": when_drafts,
    "two": two_drafts,
}
"""The kinds of question that have an answer."""
