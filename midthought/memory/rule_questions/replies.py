"""The kind `next`: what a speaker answers to a question, and what one adds to a statement. English."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from midthought.memory.rule_questions import wordings
from midthought.memory.rule_questions.english import ADDRESSED, word_set
from midthought.memory.rule_questions.listener import Draft, Listener, draft_of
from midthought.memory.rule_questions.speech import Sentence, SpokenTurn, plain_words
from midthought.memory.rule_questions.statements import Statement, clauses_of, is_fluent, stands_alone, without_openers
from midthought.memory.rule_questions.vocabulary import Vocabulary, bare_token
from midthought.memory.turns import UNKNOWN_SPEAKER

MIN_REPLY_WORDS, MAX_REPLY_WORDS = 4, 24
MAX_QUESTION_WORDS = 30
NUM_REPLY_SENTENCES = 5


def next_drafts(asked: Listener) -> Iterator[Draft]:
    """What did … answer when … asked …? … says that …: what reason do they give?"""
    yield from reply_drafts(asked)
    for each, sentence, frames in continued_statements(asked):
        text = asked.choose(frames, who=each.speaker, said=each.reported)
        draft = draft_of("next", "continuation", text, sentence.text, _reply_aliases(sentence), each)
        chunk_ids = dict.fromkeys((*each.sentence.chunk_ids, *sentence.chunk_ids))
        information = asked.vocabulary.information(sentence.text)
        yield replace(draft, chunk_ids=tuple(chunk_ids), information=each.information + information)


def reply_drafts(asked: Listener) -> Iterator[Draft]:
    """What did … answer when … asked …?"""
    for question, first, second, reply in exchanges(asked):
        text = asked.choose(wordings.NEXT, first=first.speaker, second=second.speaker, asked=question.text)
        yield Draft(
            "next",
            "reply",
            text,
            reply.text,
            _reply_aliases(reply),
            (*question.chunk_ids, *reply.chunk_ids),
            first.stem,
            question.text,
            asked.vocabulary.information(question.text) + asked.vocabulary.information(reply.text),
            second.speaker,
            {"first": first.speaker},
        )


def continued_statements(asked: Listener) -> Iterator[tuple[Statement, Sentence, Sequence[str]]]:
    """Yields a statement, the speaker's next sentence, if that is about the same thing, and the wordings that ask for it."""
    following = {id(first): second for turn in asked.turns for first, second in pairwise(turn.sentences)}
    for each in asked.statements:
        sentence = following.get(id(each.sentence))
        if sentence is None or not _ends_with(each) or not _is_continuation(sentence.text, asked.vocabulary):
            continue
        frames = _frames(each, sentence, asked.vocabulary)
        places = asked.index.similar(each.text, each.sentence)
        if frames and all(place.speaker != each.speaker for place in places):
            yield each, sentence, frames


def _frames(each: Statement, sentence: Sentence, vocabulary: Vocabulary) -> Sequence[str] | None:
    """Returns wordings by the sentence's first words: what it is to the statement; None if it may be about something else."""
    start = f"{' '.join(plain_words(sentence.text)[:3])} "
    frames = next((frames for words, frames in wordings.CONTINUATIONS.items() if start.startswith(words)), None)
    shares = set(vocabulary.content_words(each.text)) & set(vocabulary.content_words(sentence.text))
    return frames or (wordings.ADDITION if shares else None)


def _ends_with(each: Statement) -> bool:
    """Whether the statement is the end of its sentence, so that the next sentence continues it."""
    return plain_words(each.sentence.text)[-3:] == plain_words(each.text)[-3:]


def _is_continuation(text: str, vocabulary: Vocabulary) -> bool:
    """Whether a sentence says something about the one before it."""
    words = text.split()
    has_length = MIN_REPLY_WORDS + 2 <= len(words) <= MAX_REPLY_WORDS
    has_content = vocabulary.information(text) >= vocabulary.idf("") and len(set(vocabulary.content_words(text))) > 1
    is_whole = text.endswith((".", "!")) and not text.endswith("...") and not _BROKEN.search(text)
    return is_whole and has_length and has_content and is_fluent([bare_token(word) for word in words])


def _reply_aliases(sentence: Sentence) -> tuple[str, ...]:
    clean = " ".join(without_openers(sentence.text.replace("’", "'").rstrip(".!").split()))
    return (clean,) if clean else ()


def exchanges(asked: Listener) -> Iterator[tuple[Sentence, SpokenTurn, SpokenTurn, Sentence]]:
    """Yields (question near the end of a turn, that turn, next turn, sentence that answers)."""
    for first, second in pairwise(asked.turns):
        is_english = first.stem == second.stem and first.stem in asked.english
        if not is_english or UNKNOWN_SPEAKER in (first.speaker, second.speaker):
            continue
        question = next((each for each in first.sentences[:-3:-1] if each.text.endswith("?")), None)
        if question is None or not _is_askable(question, first.stem, asked):
            continue
        reply = _reply(question, second, asked.vocabulary)
        if reply is not None:
            yield question, first, second, reply


def _is_askable(question: Sentence, stem: str, asked: Listener) -> bool:
    tokens = without_openers(question.text.replace("’", "'").split())
    if not 5 <= len(tokens) <= MAX_QUESTION_WORDS or _UNCLEAR.search(question.text):
        return False
    people = {word for name in asked.speakers[stem] for word in plain_words(name)}
    nameless = [token for token in tokens if bare_token(token).lower() not in people]
    if bare_token(tokens[0]).lower() not in _QUESTION_WORDS | _AUXILIARIES or not _is_clear(nameless, asked.vocabulary):
        return False
    others = asked.index.similar(question.text, question)  # asked twice: each time it has another answer
    return not any(place.stem == stem and place.sentence.text.endswith("?") for place in others)


def _reply(question: Sentence, turn: SpokenTurn, vocabulary: Vocabulary) -> Sentence | None:
    """Returns the first sentence that can be an answer: one of the first two, or a later one about a word of the question."""
    about = set(vocabulary.content_words(question.text))
    for place, sentence in enumerate(turn.sentences[:NUM_REPLY_SENTENCES]):
        is_near = place < 1 + (len(turn.sentences[0].text.split()) < MIN_REPLY_WORDS)  # "Well, yes."
        if (is_near or about & set(vocabulary.content_words(sentence.text))) and _is_reply(
            sentence.text, without_openers(sentence.text.split()), vocabulary
        ):
            return sentence
    return None


def _is_reply(text: str, words: Sequence[str], vocabulary: Vocabulary) -> bool:
    """Whether a sentence, whose words without openers are given, answers a question by itself."""
    said = plain_words(text)
    is_whole = bool(said and clauses_of(text)) and "--" not in text
    continues = said[:1] in (["but"], ["and"]) or bool(ADDRESSED & set(said))
    has_content = vocabulary.information(" ".join(words)) >= vocabulary.idf("")
    has_length = MIN_REPLY_WORDS <= len(words) <= MAX_REPLY_WORDS
    return is_whole and not continues and has_content and has_length and not _is_praise(words)


_QUESTION_WORDS = word_set("what what's how how's who's where's why where when who which")
_AUXILIARIES = word_set("do does did is are was were can could have has would will should")
_UNCLEAR = re.compile(r"[\"“”\[\]]|--|\.\.\.")
_YOU = frozenset(("you", "your", "you're", "you've", "yours", "yourself"))
_SMALL_TALK = word_set("doing today guys folks feeling answer talk")
_BROKEN = re.compile(
    r"[\"“”\[\]]|--|\.\.\.|\?|\blet's\b|^So there's\b|\bepisode\b|\bsaid\b|\byou know\b", re.IGNORECASE
)
_PRAISE = word_set("question hear thank thanks welcome glad happy sorry wonderful")


def _is_clear(tokens: Sequence[str], vocabulary: Vocabulary) -> bool:
    """Whether a question is understood without what was said before; "you" is the person who answers."""
    named = [token for token in tokens if bare_token(token).lower() not in _YOU]
    content = [word for word in vocabulary.content_words(" ".join(tokens)) if word not in _SMALL_TALK]
    return stands_alone(named, vocabulary) and len(content) >= 2 and "..." not in " ".join(tokens)


def _is_praise(words: Sequence[str]) -> bool:
    return bool({bare_token(word).lower() for word in words} & _PRAISE)
