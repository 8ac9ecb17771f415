"""Chooses the sentences that a question can be about.

A statement is a complete English sentence that is understood without the sentences around it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from midthought.memory.rule_questions.english import (
    ADDRESSED,
    AUXILIARIES,
    BE,
    CLAUSE_STARTS,
    DISFLUENT,
    FUNCTION_WORDS,
    HEDGES,
    OPENERS,
    PREPOSITIONS,
    PRONOUNS,
    VAGUE,
    VERBS,
    is_english,
    word_set,
)
from midthought.memory.rule_questions.reported_speech import FIRST_PERSON, reported_speech
from midthought.memory.rule_questions.speech import Sentence, SpokenTurn, plain_words
from midthought.memory.rule_questions.vocabulary import Vocabulary, bare_token
from midthought.memory.turns import UNKNOWN_SPEAKER

MIN_WORDS, MAX_WORDS = 7, 26
MIN_CONTENT_WITHOUT_NAME = 7
"""Of 315 rated statements, 0.84 of those with a name were sensible, 0.87 of those with so many words, 0.60 of the others."""
_SIGNS = re.compile(
    r"[\"“”\[\](){}*`_<>|…:;/\\]|--|—|–|\.\.\.| - |https?|\w@\w|(?<=[a-z]{2})[.?!](?=[A-Z](?:[a-z' ]|$))"
)
"""Also the end of a sentence without a blank after it."""
_FILLERS = re.compile(
    r"(?<!\ba )(?<!\bsame )(?<!\bthe )(?<!\bwhat )(?<!\bsome )(?<!\bof )\b(?:kind|sort) of "
    r"|\b(?:actually|basically|literally) |,? actually$"
)
_BROKEN_BY_FILLER = re.compile(r"(?:,|\b(?:very|at|to|in)) (?:kind|sort) of ")
"""Without the filler, "a very, kind of mostly stock" is no English."""
_CLAUSE_BREAK = re.compile(
    r"\s*(?:\.\.\.|…|--|—|–|;|:|\s-\s)\s*"
    r"|,? (?:and then|and so|and|but|so|because) (?=(?:I|we|I'[a-z]+|we'[a-z]+|there's|there|the|my|our) )"
)
_FINE_BREAK = re.compile(
    r"[\[\](){}…:;]|--|—|–|\.\.\.| - |, (?:which|where|who|like|right|though|whereas)\b"
    r"|,? (?:and then|and so|and|but|so|because|since) (?=(?:i|we|i'[a-z]+|we'[a-z]+|there's|there|the|my|our|it|they|he|she|you|"
    r"that|that's|it's|they're) )",
    re.IGNORECASE,
)
"""Between clauses, and before relative clauses."""
_QUOTED = re.compile(r"[\"“][^\"”]*(?:[\"”]|$)|^[^\"“]*”")
_QUOTE_SIGN = re.compile(r"(?<!\d)\"|[“”]")
"""Not the sign of inches."""
_MAX_QUOTED_SENTENCES = 6
_CONDITION = re.compile(
    r"(?:if|when|while|since|as|once|because|before|after|although|unless|whereas|so that)\b[^,]*$", re.IGNORECASE
)
"""A clause that needs another one."""
_CONTRACTED = re.compile(r"(?:'(?:s|re|ve|m|d|ll)|n't)$")
_PERSONS = word_set("he him his she her he's she's he'd she'd himself herself hers")
_DEICTIC = word_set(
    "this these those here ones it's that's yesterday today tomorrow today's tonight earlier mentioned again coming"
)
_SUBJECT_STARTS = word_set(
    "the a an my our most many some all every each no people there there's both in at for by with from on during after before "
    "if when because while since as once two three four five ten half nobody everybody everyone nothing"
)
_INVERTIBLE = word_set("are is do does did can will would am was were")
_ABBREVIATED = word_set("st. dr. mr. mrs. ms. vs. jr. sr. u.s. e.u. u.k.")
_SUBORDINATE = word_set("the a an my our their his her its that who which whose how what where to all no")
_UNFINISHED = word_set("to the a an of and or than my our their every by into")
_NEXT_SUBJECTS = FIRST_PERSON - {"me", "my", "us", "our", "mine", "ours", "myself", "ourselves"} | word_set(
    "he he's she she's it it's they they're they've"
)
"""A main clause starts with these."""
_INNER = word_set("who which that what why how where when if because although unless whether while since once")
_BETWEEN_VERBS = word_set("not never also just always really even still already only actually")
_RELATIVE = word_set("who which that what why how where when")
_PARENTHETICAL = word_set("think guess mean believe suppose would know say said")
_SAYING = word_set(
    "say says said think thought mean means know knew believe found show shows showed learned heard told decided noticed argued "
    "realized agreed proved hoped suggested assumed explained claimed mentioned insisted admitted estimated"
)
_POINTED = word_set("do did does doing like of know see all is was at on in for with from about to than after before")


@dataclass(frozen=True, slots=True)
class Statement:
    """A sentence to ask about."""

    stem: str
    episode: str
    speaker: str
    text: str
    """Without openers such as "Well," and without the final full stop."""
    reported: str
    """As a clause after "says that"."""
    sentence: Sentence
    information: float
    """Sum of the three largest inverse document frequencies of its words."""
    is_specific: bool = True
    """Whether it has a name or `MIN_CONTENT_WITHOUT_NAME` words of content. Others are often vague."""


def statements_of(
    turns: Sequence[SpokenTurn],
    vocabulary: Vocabulary,
    *,
    whole: bool = True,
    clauses: Callable[[str], list[str]] | None = None,
) -> list[Statement]:
    """Returns the statements of named speakers in English episodes, in order.

    `clauses` splits a sentence (default: `clauses_of`). With `whole` false, the parts of all sentences, unchecked: a question
    about a clause of one may still be understood.
    """
    split = clauses or (clauses_of if whole else segments_of)
    english = english_stems(turns)
    found = []
    for turn in turns:
        if turn.stem not in english or not is_named(turn.speaker):
            continue
        for sentence in _own_sentences(turn):
            for clause in split(sentence.text):
                text = statement_text(clause, vocabulary) if whole else " ".join(without_openers(clause.split()))
                reported = reported_speech(text, vocabulary) if text and whole else text
                if text and reported:
                    information = vocabulary.information(text)
                    num_content = len(set(vocabulary.content_words(text)))
                    is_specific = num_content >= MIN_CONTENT_WITHOUT_NAME or vocabulary.has_name(text)
                    found.append(
                        Statement(
                            turn.stem, turn.episode, turn.speaker, text, reported, sentence, information, is_specific
                        )
                    )
    return found


def _own_sentences(turn: SpokenTurn) -> Iterator[Sentence]:
    """Yields the sentences that do not begin within quotation marks: others are somebody else's words. A sign that none of the
    next sentences closes begins no quotation."""
    is_quoted = False
    for place, sentence in enumerate(turn.sentences):
        if not is_quoted:
            yield sentence
        for sign in _QUOTE_SIGN.findall(sentence.text):
            is_quoted = not is_quoted if sign == '"' else sign == "“"
        following = turn.sentences[place + 1 : place + 1 + _MAX_QUOTED_SENTENCES]
        is_quoted = is_quoted and any({'"', "”"} & {*_QUOTE_SIGN.findall(each.text)} for each in following)


def is_named(speaker: str) -> bool:
    """Whether a label can stand for a person in a question: `Me a year ago` cannot."""
    words = speaker.split()
    is_phrase = len(words) > 2 and bool({*words} & (FUNCTION_WORDS - PREPOSITIONS - {"the", "and"}))
    return speaker != UNKNOWN_SPEAKER and not is_phrase


def clauses_of(text: str) -> list[str]:
    """Returns the sentence, or its main clauses if it is long or broken; none of a question or an unfinished sentence."""
    text = text.replace("’", "'").replace("‘", "'").strip()
    if not text.endswith((".", "!")) or text.endswith("..."):
        return []
    if len(text.split()) <= MAX_WORDS // 2 + 2 and not _SIGNS.search(text):
        return [text]
    parts = [part.strip(" ,") for part in _CLAUSE_BREAK.split(text)]
    return [part if part.endswith((".", "!")) else f"{part}." for part in parts if part]


def fine_clauses_of(text: str) -> list[str]:
    """Returns the main clauses of a sentence, also of one without an end; none of a question, and no words in quotation marks."""
    text = text.replace("’", "'").replace("‘", "'").strip()
    if text.endswith("?"):
        return []
    is_cut = text.endswith(("...", "…"))
    parts = [
        part.strip(" ,.!") for quoteless in _QUOTED.split(text.rstrip(".…")) for part in _FINE_BREAK.split(quoteless)
    ]
    parts = parts[:-1] if is_cut else parts
    return [f"{part}." for part in parts if part and not _CONDITION.match(" ".join(without_openers(part.split())))]


def english_stems(turns: Sequence[SpokenTurn]) -> set[str]:
    """Returns the stems of the episodes in English."""
    texts: dict[str, list[str]] = {}
    for turn in turns:
        texts.setdefault(turn.stem, []).extend(sentence.text for sentence in turn.sentences)
    return {stem for stem, said in texts.items() if is_english(said)}


def segments_of(text: str) -> list[str]:
    """Returns the parts of a sentence between dashes and other breaks; none of a question, and no words in quotation marks."""
    text = _FILLERS.sub("", text.replace("’", "'").replace("‘", "'"))
    own = _QUOTED.split(text) if not text.endswith("?") else []
    parts = [part.strip(" ,.!") for quoteless in own for part in _SIGNS.split(quoteless)]
    return [part for part in parts if len(part.split()) >= MIN_WORDS - 2]


def statement_text(text: str, vocabulary: Vocabulary) -> str | None:
    """Returns the sentence without openers; None if it is incomplete, disfluent, or refers to something outside."""
    if not text or text[-1] not in ".!" or _SIGNS.search(text) or _BROKEN_BY_FILLER.search(text):
        return None
    tokens = without_openers(_FILLERS.sub("", text.rstrip(".!")).split())
    if not MIN_WORDS <= len(tokens) <= MAX_WORDS or not is_fluent(tokens) or not _has_subject(tokens, vocabulary):
        return None
    return " ".join(tokens) if _is_whole(tokens, vocabulary) and stands_alone(tokens, vocabulary) else None


def _is_whole(tokens: Sequence[str], vocabulary: Vocabulary) -> bool:
    """Whether it is one main clause: not two of them joined by a comma, as a sentence without its "once" or "as" is; not a name
    or a participle with a subordinate clause alone; and the verb of its last clause, after "and", is not its last word."""
    words = [bare_token(token).lower() for token in tokens]
    commas = [place for place, token in enumerate(tokens) if token.endswith(",")]
    clause = next((place for place, word in enumerate(words) if place and word in _INNER), len(words))
    has_verb = [False, *(_is_main_verb(before, word) for before, word in pairwise(words))]
    is_subordinate = words[0] in CLAUSE_STARTS or words[0] in PREPOSITIONS
    for comma in commas:
        after = words[comma + 1 : comma + 4]
        is_spliced = after[:1] and after[0] in _NEXT_SUBJECTS and (len(after) < 2 or after[1] not in _PARENTHETICAL)
        if is_spliced and not is_subordinate and (any(has_verb[: comma + 1]) or after[0] in _PERSONS):
            return False
        if after[:1] in (["who"], ["which"], ["that"]) and not any(has_verb[: comma + 1]) and comma == commas[-1]:
            return False
    is_cut = words[-3] == "and" and is_verb(words[-1]) and (words[-2] in FIRST_PERSON or vocabulary.is_name(tokens[-2]))
    is_cut = is_cut or (words[-2] == "to" and words[-1].endswith("ly"))
    is_part = words[0].endswith("ing") and not any(has_verb[:clause])  # "Taking away what …"
    return not (is_cut or is_part or words[-1] == "not") and not _lacks_predicate(tokens, words)


def _lacks_predicate(tokens: Sequence[str], words: Sequence[str]) -> bool:
    """Whether all verbs of a sentence that starts with a noun are in its relative clauses: "The system, which was on disks"."""
    if words[0] in CLAUSE_STARTS | PREPOSITIONS | FIRST_PERSON or is_verb(words[0]):
        return False
    num_clauses = num_verbs = 0
    before = ""  # the verb just before, without adverbs
    for (last, last_token), (word, token) in pairwise(zip(words, tokens, strict=True)):
        if word in _RELATIVE:
            num_clauses, before = num_clauses + 1, ""
            continue
        if word in _NEXT_SUBJECTS and not before and last not in FUNCTION_WORDS and not last_token.endswith(","):
            num_clauses += 1  # "the years they have been here"
        if is_verb(word) and (token[:1].islower() or word in FIRST_PERSON) and word != "being":
            is_new = (
                not before or (word in BE and word != "been") or (_is_auxiliary(word) and not _is_auxiliary(before))
            )
            num_verbs += is_new
            if num_verbs and not num_clauses:
                return False
            before = word
        elif word not in _BETWEEN_VERBS:
            before = ""
        if token.endswith(","):
            before = ""
    return 0 < num_clauses >= num_verbs


def _is_auxiliary(word: str) -> bool:
    return word in AUXILIARIES or word.endswith("n't")


def without_openers(tokens: list[str]) -> list[str]:
    """Removes words such as "Well," and "I think" from the start of a sentence."""
    while tokens:
        word = bare_token(tokens[0]).lower()
        start = " ".join(tokens[:6]).lower().replace(",", "")
        hedge = next((hedge for hedge in HEDGES if start.startswith(f"{hedge} ")), None)
        if hedge:
            tokens = tokens[len(hedge.split()) :]
        elif word in OPENERS and not (word == "like" and tokens[0].islower()):
            tokens = tokens[1:]
        else:
            break
    return [tokens[0][0].upper() + tokens[0][1:], *tokens[1:]] if tokens else []


def is_fluent(tokens: Sequence[str]) -> bool:
    """Whether no word is repeated, is a filler, or stands for something else."""
    words = [bare_token(token).lower() for token in tokens]
    repeats = any(first == second for first, second in pairwise(words))
    tags = words[-1] in OPENERS | _UNFINISHED | {"know", "that", "too", "though"} or words[-2:] == ["of", "course"]
    fillers = any(
        token.lower() in ("like,", "right,", "well,", "yeah,") for token in tokens
    ) or " you know" in " ".join(words)
    fillers = fillers or ("my", "god") in pairwise(words)
    inverted = any(first in _INVERTIBLE and second in ("i", "we", "they", "it") for first, second in pairwise(words))
    several = any(token.endswith((".", "?", "!")) and token.lower() not in _ABBREVIATED for token in tokens[:-1])
    return not (
        several or repeats or inverted or tags or fillers or DISFLUENT & set(words) or VAGUE & set(words) or "" in words
    )


def _has_subject(tokens: Sequence[str], vocabulary: Vocabulary) -> bool:
    """Whether it starts as a statement, not as an order or a fragment, and has a verb."""
    words = plain_words(" ".join(tokens))
    first = words[0] if words else ""
    if not any(_is_main_verb(words[place - 1], words[place]) for place in range(1, len(words))):
        return False
    if tokens[0].endswith(",") and words[1] in FIRST_PERSON | _SUBORDINATE:
        return False  # "Daniel, we …"
    if first in FIRST_PERSON or first in _SUBJECT_STARTS or first.endswith("ing"):
        return True
    if first[:1].isdigit():
        return words[1] == "of"
    return vocabulary.is_name(tokens[0]) or (first not in FUNCTION_WORDS | VERBS and words[1] in VERBS)


def _is_main_verb(before: str, word: str) -> bool:
    """Whether a word can be the verb of the main clause: not a noun after an article, nor a verb of a relative clause."""
    return is_verb(word) and word != "being" and before not in _SUBORDINATE


def is_verb(word: str) -> bool:
    """Whether a plain word is a common verb, a regular past form or contracted with an auxiliary."""
    return word in VERBS or (word.endswith("ed") and len(word) > 4) or bool(_CONTRACTED.search(word))


def stands_alone(tokens: Sequence[str], vocabulary: Vocabulary) -> bool:
    """Whether no word refers to something that the sentence does not name before."""
    words = [bare_token(token).lower() for token in tokens]
    for place, word in enumerate(words):
        following = words[place + 1] if place + 1 < len(words) else ""
        before = words[place - 1] if place else ""
        if word in ADDRESSED or word in _DEICTIC or word == "let's":
            return False
        if word in PRONOUNS and not _is_named(word, before, following, place, tokens, vocabulary):
            return False
    return True


def _is_named(
    word: str, before: str, following: str, place: int, tokens: Sequence[str], vocabulary: Vocabulary
) -> bool:
    if word == "that":
        is_object = (
            following in PREPOSITIONS and is_verb(before) and before not in _SAYING | BE
        )  # "we built that in winter"
        return (
            place > 0
            and bool(following)
            and before not in _POINTED
            and not is_object
            and following not in ("one", "way", "kind", "point")
        )
    if word == "there":
        return following in BE or following in ("'s", "has", "have")
    if word == "there's":
        return True
    if word in ("which", "who"):
        return place > 1 and before not in PREPOSITIONS
    if word == "then" and before in ("since", "by", "until", "back"):
        return False
    if word in ("then", "such", "other", "others", "another", "same", "both", "either", "neither", "one"):
        return place > 0 and (word not in ("such", "others", "one") or following in ("as", "of"))
    earlier = tokens[:place]
    if word in _PERSONS:
        return place >= 3 and any(vocabulary.is_name(token) for token in earlier)
    names_a_thing = any(token.lower() in ("the", "a", "an", "my", "our") for token in earlier[:-1]) or any(
        map(vocabulary.is_name, earlier)
    )
    return place >= 5 and names_a_thing
