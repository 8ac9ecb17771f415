"""Finds what a clause states, a number, a year or a name, and asks for it: "they put up 218 bells" becomes "how many bells"
with the clause "they put up". English."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from midthought.memory.rule_questions.english import (
    AUXILIARIES,
    BE,
    CALENDAR,
    CLAUSE_STARTS,
    FUNCTION_WORDS,
    PREPOSITIONS,
    VERBS,
    word_set,
)
from midthought.memory.rule_questions.numbers import DETERMINERS, YEAR, counted, is_number, number_places, number_value
from midthought.memory.rule_questions.reported_speech import FIRST_PERSON, reported_speech
from midthought.memory.rule_questions.statements import (
    Statement,
    is_fluent,
    is_verb,
    stands_alone,
)
from midthought.memory.rule_questions.vocabulary import Vocabulary, bare_token

MAX_CLAUSE_WORDS = 16
_APPROXIMATE = word_set(
    "about around over nearly almost roughly some approximately like maybe only just exactly another those these"
)
_BEFORE_BLANK = (DETERMINERS - {"a", "an"}) | {"last", "first", "past", "top", "other", "core"}
"""Before "___ years"; "a certain number of years" would not be English there."""
_NO_BLANK = frozenset(("a", "an", "next", "half", "half-a", "version", "little", "like", "or"))
_BOUNDS = ("more", "less", "fewer")
_SUBJECTS = word_set("i i'm i've i'd i'll we we're we've we'd there the my our")
_UNASKABLE = word_set("maybe perhaps either both between whenever whatever essentially probably")
_OPEN = word_set("a an the my our their of to and or but as not very like than more also in for with")
_FRONTED = word_set("for by at over to with from on after in within during across against")
_CONTINUES = PREPOSITIONS | {"ago", "together", "later", "alone", "back", "there"}
_BETWEEN_NAMES = (["and"], ["or"], ["versus"], ["vs"])
_COPULAS = word_set("is was are were called named")


@dataclass(frozen=True, slots=True)
class Gap:
    """A clause without the words that answer the question for them."""

    kind: str
    """`number`, `when` (a stated year) or `name`."""
    wh: str
    """The question word and its noun, small: `how many bells`."""
    clause: str
    """The rest of the clause, in the order of a question."""
    answer: str
    aliases: tuple[str, ...]
    statement: Statement

    def question(self, who: str, frame: str) -> str:
        """Returns the question in one of `FRAMES`."""
        text = frame.format(wh=self.wh, who=who, clause=self.clause, episode=self.statement.episode)
        return text[0].upper() + text[1:]


def gaps_of(statement: Statement, vocabulary: Vocabulary) -> Iterator[Gap]:
    """Yields what the statement can be asked for."""
    tokens = statement.text.split()
    words = [bare_token(token).lower() for token in tokens]
    yield from _numbers(statement, tokens, words, vocabulary)
    yield from _years(statement, tokens, words, vocabulary)
    yield from _names(statement, tokens, words, vocabulary)


def blank_of(statement: Statement, vocabulary: Vocabulary) -> Iterator[Gap]:
    """Yields the whole statement with one number or name left out; `clause` is reported speech, `wh` asks for what is missing."""
    tokens = statement.text.split()
    words = [bare_token(token).lower() for token in tokens]
    for start, end in number_places(tokens, words):
        found = counted(tokens, words, start, end)
        if found is None:
            continue
        said, value, wh, after = found
        others = [place for place in number_places(tokens, words) if place[0] != start]
        if value in (number_value(words[first:last]) for first, last in others):
            continue  # the other number gives the answer away
        if any((also := counted(tokens, words, *place)) and also[2] == wh for place in others):
            continue  # which of the two?
        instead = {"how much money": "a certain sum", "what percentage": "a certain percentage"}.get(wh, "")
        unit = wh.removeprefix("how many ")
        instead = instead or (f"a certain number of {unit}" if unit != wh else "")
        first = _without_approximation(words, start)
        if (
            words[after : after + 1] == ["later"]
            or (first and words[first - 1] in _NO_BLANK)
            or _is_beside_number(tokens, words, start, end)
        ):
            continue
        if first and words[first - 1] in _BEFORE_BLANK:
            instead = f"___ {unit}" if unit != wh else ""
        left = [*tokens[:first], instead + ("," if tokens[after - 1].endswith(",") else ""), *tokens[after:]]
        reported = reported_speech(" ".join(left), vocabulary)
        asked = reported_speech(wh, vocabulary)
        if instead and reported and asked:
            yield Gap(
                "number", asked, reported, said, _number_aliases(said, value, unit if unit != wh else ""), statement
            )
    for start, end in name_places(tokens, words, vocabulary):
        name = bare_token(" ".join(tokens[start:end]))
        rest = " ".join(
            [
                *tokens[:start],
                tokens[start][: tokens[start].find(name[0])] + "___" + tokens[end - 1][-1:].strip(name[-1]),
                *tokens[end:],
            ]
        )
        is_known = set(name.lower().split()) & {*rest.lower().split(), *statement.speaker.lower().split()}
        reported = reported_speech(rest, vocabulary)
        is_one = not is_known and not _is_listed(tokens, words, start, end)
        if start and is_one and reported and len(name) > 2 and not name.lower().endswith("'s"):
            yield Gap("name", "which name belongs in the gap", reported, name, (), statement)


# -- numbers -------------------------------------------------------------------------------------------------------


def _numbers(statement: Statement, tokens: list[str], words: list[str], vocabulary: Vocabulary) -> Iterator[Gap]:
    for start, end in number_places(tokens, words):
        found = counted(tokens, words, start, end)
        if found is not None:
            said, value, wh, after = found
            unit = wh.removeprefix("how many ") if wh.startswith("how many ") else ""
            first = _without_approximation(words, start)
            is_measure = first > 1 and words[first - 1] in BE and words[first - 2] not in ("there", *FIRST_PERSON)
            if is_measure or words[after : after + 1] == ["later"]:
                continue  # "the town is 9,000 people"
            if words[after : after + 1] == ["ago"]:
                wh, after = f"{wh} ago", after + 1
            aliases = _number_aliases(said, value, unit)
            gap = _gap(statement, "number", wh, tokens, words, (first, after), said, aliases, vocabulary)
            if gap is not None:
                yield gap


def _is_beside_number(tokens: list[str], words: list[str], start: int, end: int) -> bool:
    """Whether it is one of two numbers for the same thing: "seven, eight years"."""
    return any(0 <= place < len(words) and is_number(words[place], tokens[place]) for place in (start - 1, end))


def _without_approximation(words: list[str], start: int) -> int:
    """Returns the place of the number with "about" or "at least" before it."""
    while start and words[start - 1] in _APPROXIMATE:
        start -= 1
    pairs = (["at", "least"], ["at", "most"], ["up", "to"], ["close", "to"], *([word, "than"] for word in _BOUNDS))
    return start - 2 if start >= 2 and words[start - 2 : start] in pairs else start


def _number_aliases(said: str, value: str, unit: str) -> tuple[str, ...]:
    digits = (value, f"{value} {unit}".strip()) if value != said else ()
    return tuple(dict.fromkeys((f"{said} {unit}".strip(), *digits)))


# -- years ---------------------------------------------------------------------------------------------------------


def _years(statement: Statement, tokens: list[str], words: list[str], vocabulary: Vocabulary) -> Iterator[Gap]:
    for place, word in enumerate(words):
        if YEAR.match(word) and place and words[place - 1] == "in" and tokens[place][:1].isdigit():
            start = place - 2 if place > 1 and words[place - 2] in ("back", "early", "late") else place - 1
            gap = _gap(
                statement, "when", "in which year", tokens, words, (start, place + 1), word, (f"in {word}",), vocabulary
            )
            if gap is not None:
                yield gap


# -- names ---------------------------------------------------------------------------------------------------------


def _names(statement: Statement, tokens: list[str], words: list[str], vocabulary: Vocabulary) -> Iterator[Gap]:
    for place in name_places(tokens, words, vocabulary):
        gap = _name(statement, tokens, words, place, vocabulary)
        if gap is not None:
            yield gap


def name_places(tokens: list[str], words: list[str], vocabulary: Vocabulary) -> Iterator[tuple[int, int]]:
    """Yields (first word, word after the last) of each name."""
    start = 0
    while start < len(tokens):
        end = start
        while end < len(tokens) and (
            vocabulary.is_name(tokens[end]) or (end > start and _extends(words[end], tokens[end]))
        ):
            end += 1
            if tokens[end - 1].endswith(","):
                break
        first = start
        while (
            end > start
            and first > 1
            and tokens[first - 1].isalpha()
            and _is_capital(words[first - 1], tokens[first - 1])
        ):
            first -= 1
        if end > start and not set(words[first:end]) & CALENDAR:
            yield first, end
        start = max(end, start + 1)


def _extends(word: str, token: str) -> bool:
    return is_number(word, token) or _is_capital(word, token)


def _is_capital(word: str, token: str) -> bool:
    return token[:1].isupper() and word not in FIRST_PERSON


def _is_listed(tokens: list[str], words: list[str], start: int, end: int) -> bool:
    """Whether it is one of several names: the others may give it away."""
    before, after = words[max(0, start - 1) : start], words[end : end + 1]
    follows = bool(before) and tokens[start - 1].endswith(",") and _has_capital(tokens[start - 1])
    precedes = (
        bool(after) and tokens[end - 1].endswith(",") and (_has_capital(tokens[end]) or after[0] in ("and", "or"))
    )
    return before in _BETWEEN_NAMES or after in _BETWEEN_NAMES or follows or precedes


def _has_capital(token: str) -> bool:
    return any(map(str.isupper, token)) and bare_token(token).lower() not in FIRST_PERSON


def _name(
    statement: Statement, tokens: list[str], words: list[str], place: tuple[int, int], vocabulary: Vocabulary
) -> Gap | None:
    start, end = place
    name = bare_token(" ".join(tokens[start:end])).removesuffix("'s")
    if len(name) < 3 or tokens[end - 1].lower().endswith("'s") or _is_listed(tokens, words, start, end):
        return None
    if start and tokens[start - 1].endswith(","):
        return None
    if start == 0:
        is_subject = bool(words[end:]) and (words[end] in VERBS) and not tokens[end - 1].endswith(",")
        return (
            _gap(statement, "name", "who or what", tokens, words, (0, end), name, (), vocabulary)
            if is_subject
            else None
        )
    first = start - 1 if words[start - 1] == "the" else start
    before = words[first - 1] if first else ""
    if first > 1 and before.endswith("ed") and words[first - 2] in PREPOSITIONS:
        return None  # "with rented …"
    called = _called(tokens, words, first)
    if called is not None:
        noun, first = called
        return _gap(statement, "name", f"which {noun}", tokens, words, (first, end), name, (), vocabulary)
    if name.lower() in statement.speaker.lower() or before in (
        "like",
        "likes",
        "say",
        "said",
        "think",
        "is",
        "are",
        "'s",
    ):
        return None
    if before in _COPULAS or (is_verb(before) and before not in AUXILIARIES):
        return _gap(statement, "name", "who or what", tokens, words, (first, end), name, (f"the {name}",), vocabulary)
    if before in ("at", "to", "from") and first >= 2 and words[first - 2] in _MOVES:
        return _gap(
            statement,
            "name",
            "where",
            tokens,
            words,
            (first - (before == "at"), end),
            name,
            (f"{before} {name}",),
            vocabulary,
        )
    return None


_MOVES = word_set("work worked working works job moved went lived live spoke started engineer developer intern talk")


def _called(tokens: list[str], words: list[str], start: int) -> tuple[str, int] | None:
    """Returns (noun, place of its article) of "a small tool called NAME"."""
    if words[start - 1] not in ("called", "named"):
        return None
    for place in range(start - 2, max(start - 6, -1), -1):
        if words[place] in ("a", "an", "the"):
            noun = " ".join(tokens[place + 1 : start - 1])
            return (noun, place) if noun and noun == bare_token(noun) and noun.lower() not in FUNCTION_WORDS else None
    return None


# -- clauses -------------------------------------------------------------------------------------------------------


def _gap(
    statement: Statement,
    kind: str,
    wh: str,
    tokens: list[str],
    words: list[str],
    place: tuple[int, int],
    answer: str,
    aliases: tuple[str, ...],
    vocabulary: Vocabulary,
) -> Gap | None:
    """Returns the gap at this place; None if the rest of its clause cannot be asked."""
    first, after = place
    left = _left(tokens[:first])
    right = _right(tokens, words, after, is_subject=first == 0)
    if left is None or right is None:
        return None
    if left and bare_token(left[-1]).lower() in PREPOSITIONS:
        if wh == "where" or kind == "name":
            right = [left.pop(), *right]
        elif left[-1].lower() in _FRONTED and not (left[-1].lower() == "in" and ("dollars" in wh or "money" in wh)):
            wh = f"{left.pop()} {wh}"
        else:
            return None
    clause = [*left, *right]
    ends_open = [part[-1] for part in (left, right) if part and (part is right or not right)]
    if any(bare_token(token).lower() in _OPEN and wh != "where" for token in ends_open) or (
        left and left[-1] in DETERMINERS
    ):
        return None
    if not 3 <= len(clause) <= MAX_CLAUSE_WORDS or not is_fluent(clause) or not stands_alone(clause, vocabulary):
        return None
    plain = [bare_token(token).lower() for token in clause]
    informative = [word for word in plain if word not in FUNCTION_WORDS and len(word) > 2]
    if not any(map(is_verb, plain)) or len(informative) + len(wh.split()) < 4:
        return None
    if len(informative) < 1 + (kind == "name") or any(word in plain for word in answer.lower().split()):
        return None
    if set(plain) & _UNASKABLE or (kind == "number" and any(is_number(word, word) for word in plain)):
        return None
    if plain[-1] in ("called", "named"):
        return None
    if clause[-1].lower() in PREPOSITIONS and kind != "name":
        return None
    reported = reported_speech(" ".join(clause).strip(" ,"), vocabulary)
    asked = reported_speech(wh, vocabulary)
    return Gap(kind, asked, reported, answer, aliases, statement) if reported and asked else None


def _left(tokens: list[str]) -> list[str] | None:
    """Returns the words of the clause before the gap; None if the clause is not a plain main clause."""
    words = [bare_token(token).lower() for token in tokens]
    for place in range(len(words) - 1, 0, -1):
        starts = words[place - 1] in ("and", "but", "so", "because") or tokens[place - 1].endswith(",")
        if starts and words[place] in _SUBJECTS and any(map(is_verb, words[place + 1 :])):
            tokens, words = tokens[place:], words[place:]
            break
    if any(token.endswith(",") for token in tokens) or set(words) & (CLAUSE_STARTS - {"as"}):
        return None
    return list(tokens)


def _right(tokens: list[str], words: list[str], after: int, *, is_subject: bool) -> list[str] | None:
    """Returns the words of the clause after the gap; None if they do not continue it, or have a condition."""
    rest: list[str] = []
    if {"if", "unless", "until"} & set(words[after:]):
        return None
    if after < len(tokens) and after and tokens[after - 1].endswith(",") and not is_subject:
        return rest
    for place in range(after, len(tokens)):
        if words[place] in CLAUSE_STARTS - {"as", "than"} or (rest and rest[-1].endswith(",")):
            break
        rest.append(tokens[place])
    if rest and not is_subject and (bare_token(rest[0]).lower() not in _CONTINUES or rest[0] == "of"):
        return None
    return rest
