r"""Masks the task's answer in text that the policy reads. `mask_answer(text, task)` is the entry point.

It finds a few exact forms: the answer and its aliases as written (case and blanks are ignored), numbers of the same value, the
letter of an option. Other wordings, such as numbers in words, are not found. docs/feedback.md has the list, with the rates that
`benchmarks/masking.py` measures. Linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import regex

from midthought.data.problem_readers import LETTERS
from midthought.data.problem_sets import OPTIONS_LABEL
from midthought.memory.turns import UNSPACED_LETTER
from midthought.types import Task

MASK = "[masked]"
MAX_FORM_CHARS = 2000
"""Longer answers are not searched for."""
MAX_DIGITS = 300
"""Longer numbers have no value; they are compared as text."""
MAX_LABEL = 30
"""Whole numbers up to this are kept as numbers of steps and of a list's items."""

_OPTION_LINE = re.compile(r"^[ \t]*\(?([A-J])[).:][ \t]+(\S[^\n]*?)[ \t]*$", re.MULTILINE)
_ONLY_A_LETTER = re.compile(r"[\s$]*(?:\\(?:text|boxed|mathrm|textbf)\{)?\s*\(?([A-Ja-j])\)?[.}\s$]*")


def mask_answer(text: str, task: Task) -> str:
    """The text with the task's answer, its aliases and, for multiple choice, the right option's letter and words masked.

    >>> mask_answer("So x = 1,042, that is 1042.0.", Task(task_id="t", prompt="What is x?", answer="1042"))
    'So x = [masked], that is [masked].'
    """
    return mask(text, task.answer, task.aliases, _options(task))


def can_be_quoted(task: Task, words: str) -> bool:
    """Whether feedback may quote these words of the policy. A partly masked quotation would show which of several candidates is
    the answer, so such words are not quoted."""
    return mask_answer(words, task) == words


def mask(text: str, answer: str, aliases: Sequence[str] = (), options: Mapping[str, str] | None = None) -> str:
    """The same without a task. `options` of a multiple choice: letter -> text; `answer` is then the right letter."""
    search = _search(answer, tuple(aliases), tuple((options or {}).items()))
    pieces: list[str] = []
    done = 0
    for start, end in sorted(search.spans(text)):
        if start >= done:
            pieces += (text[done:start], MASK)
        done = max(done, end)
    return "".join([*pieces, text[done:]])


def is_multiple_choice(task: Task) -> bool:
    """Whether the answer is the letter of one of the options."""
    return bool(_options(task))


def choices_of(task: Task) -> dict[str, str]:
    """Letter -> text of the options: from the label `options`, else from lines `(A) text` of the prompt; else empty."""
    labelled = task.labels.get(OPTIONS_LABEL)
    if isinstance(labelled, Sequence) and not isinstance(labelled, str):
        return dict(zip(LETTERS, map(str, labelled), strict=False))
    found = _OPTION_LINE.findall(task.prompt)
    return dict(found) if "".join(letter for letter, _ in found) == LETTERS[: len(found)] and len(found) > 1 else {}


def _options(task: Task) -> dict[str, str]:
    letter = _ONLY_A_LETTER.fullmatch(task.answer)
    options = choices_of(task) if letter else {}
    return options if letter and letter[1].upper() in options else {}


# -- numbers -------------------------------------------------------------------------------------------------------

_DIGITS = r"(?:\d{1,3}(?:(?:,|\{,\}|\\,|,\\!|\\!)\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+"
_ARGUMENT = rf"(?:\{{\s*(?:{_DIGITS})\s*\}}|\d)"
_BASE = r"(?:[^\W_]|[)}\]])"
"""Before `_` that starts an index, not emphasis."""
_NUMBER = re.compile(
    rf"""(?<![^\W_])(?<![.^])(?<!{_BASE}_)(?<!{_BASE}__)(?<![\^_]\{{)(?P<sign>(?<![)\]}}])[-−](?:\\?\$)?)?
    (?:(?<!\d)(?P<whole>\d{{1,9}})?\\[dtc]?frac\s*(?P<above>{_ARGUMENT})\s*(?P<below>{_ARGUMENT})
    |(?:0x)?(?P<digits>{_DIGITS})(?:\s?/\s?(?P<under>{_DIGITS}))?)
    (?P<percent>\s?\\?%)?""",
    re.VERBOSE,
)
_PART_OF_LONGER = re.compile(
    r"(?:st|nd|rd|th)\b|(?![mgshlLKNJWV](?![^\W_]|\s?(?:[-+−=^({]|\*(?!\*)|\\(?![\])]))|_\w))[^\W\d_](?![^\W\d_])|[/._]?\d"
)
"""After a number that is an ordinal, a coefficient (`3x`, `3m + 1`, but not the unit of `3m long`), or a part of a date, a
version or a number in another base."""
_LABEL_BEFORE = re.compile(r"\b(?:step|part|case|line|attempt)s?\s{0,2}\(?\Z", re.IGNORECASE)
_LINE_BEFORE = re.compile(r"(?:\A|\n)[ \t>*#(]{0,8}\Z")
_LIST_MARK_AFTER = re.compile(r"(?:\*\*)?[.):](?:\*\*)?[ \t]+\S")


class _Number(NamedTuple):
    start: int
    end: int
    values: tuple[Fraction, ...]
    """50 % is 50, or 1/2."""
    is_quotient: bool


def _numbers_of(text: str) -> Iterator[_Number]:
    for found in _NUMBER.finditer(text):
        above, below = found["above"] or found["digits"], found["below"] or found["under"]
        top, bottom = _value(above), _value(below or "1")
        if top is None or not bottom or _PART_OF_LONGER.match(text, found.end()):
            continue
        value = (int(found["whole"] or 0) + top / bottom) * (-1 if found["sign"] else 1)
        values = (value, value / 100) if found["percent"] else (value,)
        yield _Number(*found.span(), values, below is not None and not found["whole"])


def _value(digits: str) -> Fraction | None:
    plain = re.sub(r"[^\d.]", "", digits)
    return Fraction(plain) if len(plain) <= MAX_DIGITS else None


def _is_label(text: str, number: _Number) -> bool:
    """Whether it is the number of a step or of a list's item."""
    start, end, (value, *_), is_quotient = number
    if is_quotient or value.denominator > 1 or not 0 <= value <= MAX_LABEL:
        return False
    is_item = _LINE_BEFORE.search(text, max(0, start - 9), start) and _LIST_MARK_AFTER.match(text, end)
    return bool(is_item or _LABEL_BEFORE.search(text, max(0, start - 12), start))


# -- the answer's forms --------------------------------------------------------------------------------------------

_WRAPPED = re.compile(r"\\(?:text|textbf|mbox|mathrm|boxed)\s*\{([^{}]*)\}")
_PART = re.compile(r"[a-zA-Z]{1,2}\s*(?:=|\\in\b|∈)\s*(.+)|([0-9A-Za-z]+)_\{?\d+\}?", re.DOTALL)
"""`x = 5`, `4210_5`: the right side, or the digits, alone are the answer too."""
_WITH_UNIT = re.compile(
    r"\\?[$€£]\s?(?P<amount>.+)|(?P<number>.+?)\s*(?:\^\s*\{?\s*(?:\\circ|°)\s*\}?|°|\\(?:text|mbox|mathrm)\s?\{[^{}]*\}(?:\^\{?\d\}?)?|\s[A-Za-z]+(?:[\s/][a-z]+){0,3})"
)
_ALSO_AS_WRITTEN = re.compile(r"\d\\[dtc]?frac|[A-Za-z][\s/][a-z]")
"""In mixed numbers and in units of several words, which may be names, too."""
_SPACE = r"(?:\s|\\(?:left|right)\b|\\[,;! ])"
_TOKEN = re.compile(rf"(?P<space>{_SPACE}+)|\\[A-Za-z]+|[^\W_]+|\S", re.DOTALL)
_SPELLINGS = {"-": "[-−–]", "'": "['’]", "\\frac": r"\\[dtc]?frac"}
_SAME = {"−": "-", "–": "-", "’": "'", "\\dfrac": "\\frac", "\\tfrac": "\\frac", "\\cfrac": "\\frac"}
_WORD, _UNSPACED = r"[^\W_]", regex.compile(UNSPACED_LETTER)


class _Search:
    """Finds the places of a text that state an answer."""

    def __init__(self, forms: Sequence[str], patterns: Sequence[re.Pattern[str]]) -> None:
        self._values: set[Fraction] = set()
        self._patterns = list(patterns)
        words = {pattern for form in forms for pattern in self._words_of(form)}
        if words:
            self._patterns.append(re.compile(f"(?P<name>{'|'.join(sorted(words, key=len, reverse=True))})"))

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """They may overlap."""
        for number in _numbers_of(text) if self._values else ():
            # 84/2 is a calculation, not its result
            is_told = any(not number.is_quotient or value.denominator > 1 for value in self._values & {*number.values})
            if is_told and not _is_label(text, number):
                yield number[:2]
        for pattern in self._patterns:
            yield from (found.span("name") for found in pattern.finditer(text))

    def _words_of(self, form: str, *, is_part: bool = False) -> Iterator[str]:
        """Adds the value of a form that is a number; yields the pattern of any other form."""
        form = form.strip().strip("$").rstrip(".;, ").strip()
        if wrapped := _WRAPPED.fullmatch(form):
            form = wrapped[1].strip()
        if not form or len(form) > MAX_FORM_CHARS:
            return
        number = _number(form)
        if number is None and (with_unit := _WITH_UNIT.fullmatch(form)):
            number = _number(with_unit["amount"] or with_unit["number"])
        if number is not None:
            self._values.update(number.values)
        if number is None or _ALSO_AS_WRITTEN.search(form):
            yield _pattern_of(form)
        if not is_part and (part := _PART.fullmatch(form)):
            yield from self._words_of(part[1] or part[2], is_part=True)


def _number(form: str) -> _Number | None:
    """The number that a form consists of."""
    number = next(_numbers_of(form), None)
    return number if number is not None and number[:2] == (0, len(form)) else None


def _pattern_of(form: str) -> str:
    """Matches the form with other blanks and, if it is longer than a letter, in upper and lower case."""
    pattern = last = ""
    is_apart = False
    for found in _TOKEN.finditer(form):
        if found["space"]:
            is_apart = True
            continue
        token = _SAME.get(found[0], found[0])
        joined_words = re.match(_WORD, token) and re.search(rf"{_WORD}\Z", last)
        pattern += f"{_SPACE}{'+' if joined_words and is_apart else '*'}+" if last else ""
        pattern += _SPELLINGS.get(token, re.escape(token))
        last, is_apart = token, False
    if _UNSPACED.search(form):  # of a script without blanks between words
        return pattern
    before = rf"(?<!{_WORD})(?:0x)?" if re.match(_WORD, form) else r"(?:\\left\s*)?"
    plural = "(?:e?s)?" if re.search(r"[^\W\d_]{3}\Z", form) else ""
    after = rf"{plural}(?!{_WORD})" if re.search(rf"{_WORD}\Z", form) else ""
    return f"(?{'i' if len(form) > 1 else 'u'}:{before}{pattern}{after})"


_ANSWER_IS = r"(?:answer|choice)(?:\s+(?:is|was|should\s+be|would\s+be|must\s+be)|:)"
_MARKS = r"[\s(*_`\"'$]{0,5}"


def _option_patterns(letter: str) -> list[re.Pattern[str]]:
    """Ways to name an option (group `name`): the capital alone; either case in brackets, quotes, emphasis, or after `option`."""
    either, closed = f"[{letter}{letter.lower()}]", r"(?=[)}*_`\"'$]{0,4}(?:\s*\Z|\n|[.,;:!?]))"
    alone = rf"(?<![\w'.\\-]){letter}(?![\w']|-\w|\.\w)"
    if letter in "AI":  # they are words, too; but within a sentence the article is no capital
        within = rf"|(?<=[a-z,;:]\s){alone}" if letter == "A" else ""
        alone = rf"{alone}(?!\s+(?!(?:is|was)\b)[a-z]){within}"
    else:  # no word, so the sentence may go on, but not an expression
        closed = r"(?![\w'’]|\s?[-+−*/=^<>(]|\.\w)"
    names = (
        rf"(?P<name>{alone})",
        rf"(?:(?<!\w)\(|\*\*|[\"`]|\\(?:boxed|text|textbf|mathrm)\{{)\(?(?P<name>{either})(?=\s?(?:\)|\*\*|[\"`]|\}}))",
        rf"(?<!\w)(?:['‘“]|_{{1,2}})\(?(?P<name>{either})(?=\)?(?:['’”]|_{{1,2}})(?!\w))",
        rf"(?<![\w.\\'(,+*/=^<>|-])(?<![(,+*/=^<>|-]\s)(?P<name>{either})(?=\)(?:[\s.,:;!?*]|\Z))",
        rf"(?i:\b(?:option|choice|letter))-?{_MARKS}(?P<name>{either})(?![\w'])",
        rf"(?i:\b{_ANSWER_IS}){_MARKS}(?P<name>{either}){closed}",
    )
    return [re.compile(name) for name in names]


@lru_cache(maxsize=4096)
def _search(answer: str, aliases: tuple[str, ...], options: tuple[tuple[str, str], ...]) -> _Search:
    found = _ONLY_A_LETTER.fullmatch(answer)
    if found is None or not (options or found[1].isupper()):  # `b` is a variable, unless it names an option
        return _Search((answer, *aliases), ())
    letter = found[1].upper()
    return _Search((*(text for each, text in options if each == letter), *aliases), _option_patterns(letter))
