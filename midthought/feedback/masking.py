"""Masks the task's answer in text that the policy reads. `mask_answer(text, task)` is the entry point.

1. Level: characters that look alike become equal (`masking_text.level`).
2. Find: numbers by exact value, words and expressions by their comparison keys, option letters by patterns.
3. Keep what only looks like the answer. A small number, or one that the problem contains, is kept as a label, an operand, part of
   a term, or beside the same word as in the problem, unless the text says that it is the answer. Everything else is masked.

Linear in the text. docs/feedback.md lists the forms and how they are measured.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from midthought.data.problems.fields import OPTIONS_LABEL, QUESTION_LABEL
from midthought.data.problems.prompts import LETTERS
from midthought.feedback import masking_context as context
from midthought.feedback.masking_context import Option, neighbors
from midthought.feedback.masking_text import (
    Key,
    Number,
    expression_keys,
    level,
    numbers_of,
    tokens_of,
    value_of,
    word_keys,
)
from midthought.types import Task

MASK = "[masked]"
SMALL = 12
"""Whole numbers up to this are also steps, counts and powers."""
MAX_LABEL = 30
"""Whole numbers up to this can be the number of a step."""
MAX_FORM_CHARS = 2000
"""Longer answers are not searched for."""
MAX_ELEMENTS = 8
"""Elements of a list that are searched for one by one."""

_OPTION_LINE = re.compile(r"^[ \t]*\(?([A-J])[).:][ \t]+(\S[^\n]*?)[ \t]*$", re.MULTILINE)
_ONLY_A_LETTER = re.compile(r"[\s$]*(?:\\(?:text|boxed|mathrm|textbf)\{)?\s*\(?([A-J])\)?[.}\s$]*")


def mask_answer(text: str, task: Task) -> str:
    """The text with the task's answer, its aliases and, for multiple choice, the right option's letter and words masked.

    >>> mask_answer("So x = 42, that is forty-two.", Task(task_id="t", prompt="What is x?", answer="42"))
    'So x = [masked], that is [masked].'
    """
    problem = str(task.labels.get(QUESTION_LABEL) or task.prompt)
    return mask(text, task.answer, task.aliases, problem, _options(task))


def mask(
    text: str, answer: str, aliases: Sequence[str] = (), problem: str = "", options: Mapping[str, str] | None = None
) -> str:
    """The same without a task. `options` of a multiple choice: letter -> text; `answer` is then the right letter."""
    levelled, places = level(text)
    searches = _searches(answer, tuple(aliases), problem, tuple((options or {}).items()))
    pieces: list[str] = []
    done = 0
    spans = sorted(span for search in searches for span in search.spans(levelled))
    for start, end in ((places[start], places[end - 1] + 1) for start, end in spans if start < end):
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
    return options if letter and letter[1] in options else {}


@lru_cache(maxsize=4096)
def _searches(
    answer: str, aliases: tuple[str, ...], problem: str, options: tuple[tuple[str, str], ...]
) -> tuple[_Answer | Option, ...]:
    found = _ONLY_A_LETTER.fullmatch(answer)
    if found is None:
        return (_Answer((answer, *aliases), problem),)
    letter = found[1]
    if not options:  # they are somewhere in the problem
        return (Option(letter, LETTERS.index(letter), len(LETTERS), problem),)
    letters = [each for each, _ in options]
    question = _OPTION_LINE.sub("", problem)
    others = "\n".join(text for each, text in options if each != letter)
    option = Option(letter, letters.index(letter), len(letters), f"{question}\n{others}")
    return option, _Answer((dict(options)[letter],), question)


# -- an answer -----------------------------------------------------------------------------------------------------

_TEXT = re.compile(r"\s*\\(?:text|mbox|textbf|mathrm)\s*\{([^{}]*)\}\s*")
_EQUATED = re.compile(r"\s*(?:[a-zA-Z]{1,2}|[a-zA-Z]\([a-zA-Z]\))\s*(?:=|\\in\b|∈)\s*(.+)", re.DOTALL)
_AROUND_NUMBER = ("^", "\\circ", ".", "%", "(", ")", "[", "]", "\\{", "\\}")
_IN_PARENTHESES = re.compile(r"\s*\([^()]*\)\s*\Z")
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\s*\{[a-zA-Z]*\}")
_BASE_MARK = re.compile(r"([0-9A-Za-z]+)_\{?\d+\}?")
_MIXED_DIGITS = re.compile(r"(?=[0-9A-Za-z]*\d)(?=[0-9A-Za-z]*[A-Za-z])[0-9A-Za-z]{3,}")
_WITH_UNIT = re.compile(
    r"(?:\\?\$|[€£¥])?\s{0,4}(-?\$?\s{0,4}(?:\\[dt]?frac\s?\{?\d+\}?\s?\{?\d+\}?|\d[\d.,/!\\ ]*))"
    r"(?:\s{0,4}\\(?:text|mbox|mathrm)\s?\{[^{}]{0,60}\}(?:\^\{?\d\}?)?"
    r"|\s{0,4}(?!pi\b|sqrt\b)[A-Za-z]{2}[A-Za-z .]{0,60})?\s{0,4}"
)
_MATHEMATICAL = frozenset("^_=+<>*/|") | {"<=", ">=", "\\times", "\\circ", "\\sqrt", "\\pi", "\\infty"}
_COMMON_WORDS = frozenset(
    str.split(
        "who it no us he she her him his i we you they them in on at or and so as if is a an the my me one all any some "
        "none both neither either even odd up down out off over under now then here there yes not nothing something what "
        "which when where how why this that can may will"
    )
)
_WRAPPERS = tuple(
    (re.compile(opening + r"\Z"), re.compile(closing))
    for opening, closing in (
        (r"\\begin\s*\{[a-zA-Z]*matrix\}\s*", r"\s*\\end\s*\{[a-zA-Z]*matrix\}"),
        (r"\\left\s*[(\[]\s*", r"\s*\\right\s*[)\]]"),
        (r"\\(?:text|textbf|mbox|mathrm)\s*\{\s*", r"\s*\}"),
        (r"\\left\s*", r""),
        (r"\\\{\s*", r"\s*\\\}"),
        (r"", r"\s*(?:\^\s*(?:\\circ\b|°|\{\s*(?:\\circ|°)\s*\})|°)"),
    )
)
_BRACKETS = re.compile(r"(?:\\left\s*|(?<!\\))[(\[]\s*\Z"), re.compile(r"\s*(?:\\right\s*)?[)\]]")
Keys = tuple[str, ...]


class _Place(NamedTuple):
    """A place of a text that means the answer."""

    start: int
    end: int
    what: Fraction | Keys
    """The value of a number, or comparison keys."""
    role: str = "answer"
    """`answer`; `certain`: always masked; `element` of a list, `common` word: masked if the text says that it is the answer."""
    number: Number | None = None


class _Answer:
    """An answer with its aliases, and the problem that it answers."""

    def __init__(self, forms: Iterable[str], problem: str) -> None:
        self._problem = level(problem)[0]
        self._values: set[Fraction] = set()
        self._elements: set[Fraction] = set()
        self._decimals: set[Fraction] = set()  # close to the value of expressions with roots or π
        self._words: dict[
            Keys, bool
        ] = {}  # keys -> whether they are masked only if the text says that they are the answer
        self._expressions: dict[Keys, bool] = {}
        self._patterns: list[str] = []
        for form in dict.fromkeys(forms):
            self._add(level(form)[0].strip())
        self._words_by_first, self._expressions_by_first = _by_first_key(self._words), _by_first_key(self._expressions)
        self._in_problem: dict[Fraction | Keys, set[tuple[int, str]]] = {}  # -> side and word beside it in the problem
        for place in self._places(self._problem):
            self._in_problem.setdefault(place.what, set()).update(neighbors(self._problem, *place[:2]))

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Places of a levelled text that tell the answer; they may overlap."""
        for place in self._places(text):
            if not self._is_kept(place, text):
                yield place[:2] if place.role == "certain" else _with_wrappers(text, *place[:2])

    # -- what is searched for --------------------------------------------------------------------------------------

    def _add(self, form: str) -> None:
        if not form or len(form) > MAX_FORM_CHARS:
            return
        form = form.strip("$ ").rstrip(".;, ")
        written = _TEXT.fullmatch(form)
        bare = written[1].strip() if written else form
        value = alone = _number_of(bare)
        if value is None and (with_unit := _WITH_UNIT.fullmatch(bare)):
            value = _number_of(with_unit[1])
        if value is not None:
            self._values.add(value)
            if re.search("percent|per cent|%", bare + self._problem, re.IGNORECASE):
                self._values.add(value / 100)
            if value >= 10 and value.denominator == 1:  # 4 2, 1 234 567
                for parts in (str(value), f"{int(value):,}".split(",")):
                    self._patterns += (
                        [rf"(?<![\d.,])(?<!\d )-?{' '.join(parts)}(?!\d|[.,]\d)"] if len(parts) > 1 else []
                    )
        elif (decimals := value_of(bare)) is not None:
            self._decimals.add(Fraction(decimals))
        if based := _BASE_MARK.fullmatch(bare.replace(" ", "")):
            self._add(based[1])
        if _MIXED_DIGITS.fullmatch(bare):
            self._patterns.append(rf"(?i:(?<![0-9a-z])(?:0x)?{'[ ,_]?'.join(bare)}(?![0-9a-z]))")
        if alone is None or "/" in bare:
            tokens = tokens_of(bare)
            if "\\" not in bare:
                self._add_words(bare, word_keys(tokens))
            if any(token.kind in ("number", "command") or token.key in _MATHEMATICAL for token in tokens):
                self._add_expression(bare, expression_keys(tokens))

    def _add_words(self, bare: str, found: Sequence[Key]) -> None:
        keys = tuple(key for key, _, _ in found)
        if not keys and not any(char.isascii() for char in bare):
            self._patterns.append(re.escape(bare))
        if not bare.isalpha() and not any(not key[0].isdigit() and max(len(key), len(keys)) > 1 for key in keys):
            return
        if len(keys) > 1 and keys[0] in ("the", "a", "an"):
            self._words.setdefault(keys, False)
            keys = keys[1:]
        *rest, last = keys
        is_common = not rest and (last in _COMMON_WORDS or (len(last) == 1 and last.isascii()))
        self._words.setdefault(keys, is_common)
        if len(last) > 2 and last.isalpha() and not is_common:
            self._words |= dict.fromkeys(((*rest, last + "s"), (*rest, last + "es")), False)
        if (shorter := _IN_PARENTHESES.sub("", bare)) != bare:
            self._add(shorter)

    def _add_expression(self, bare: str, found: Sequence[Key]) -> None:
        keys = tuple(key for key, _, _ in found)
        if keys:
            self._expressions.setdefault(keys, len(keys[-1]) == 1 and keys[:-1] in ((), ("-",)))
        if "(" in bare or "[" in bare:  # in a tuple, a comma between digits can separate two numbers
            self._expressions.setdefault(_keys(bare.replace(",", ", ")), False)
        if equated := _EQUATED.fullmatch(bare):
            self._add(equated[1])
        commas = [0, *(at for key, *place in found if key == "," for at in place), len(bare)]
        elements = [bare[start:end] for start, end in zip(commas[::2], commas[1::2], strict=True)]
        for element in elements[:MAX_ELEMENTS] if len(elements) > 1 else ():
            if (value := _number_of(element)) is not None:
                self._elements.add(value)
            else:
                self._expressions.setdefault(_keys(element), True)

    # -- finding the answer ---------------------------------------------------------------------------------------

    def _places(self, text: str) -> Iterator[_Place]:
        for number in numbers_of(text) if self._values or self._elements or self._decimals else ():
            if any(_means(number, value) for value in self._values):
                yield _Place(number.start, number.end, number.value, "answer", number)
            elif any(_is_rounded_to(number, value) for value in self._decimals):
                yield _Place(number.start, number.end, number.value, "certain", number)
            elif any(_means(number, value) for value in self._elements):
                yield _Place(number.start, number.end, number.value, "element", number)
        for pattern in self._patterns:
            yield from (_Place(*found.span(), (pattern,), "certain") for found in re.finditer(pattern, text))
        tokens = tokens_of(text) if self._words or self._expressions else ()
        for by_first, found in (
            (self._words_by_first, word_keys(tokens)),
            (self._expressions_by_first, expression_keys(tokens)),
        ):
            names = tuple(key for key, _, _ in found)
            for at, (name, start, _) in enumerate(found):
                for sequence, is_common in by_first.get(name, ()):
                    if names[at : at + len(sequence)] == sequence:
                        end = found[at + len(sequence) - 1][2]
                        yield _Place(start, end, sequence, "common" if is_common else "answer")

    def _is_kept(self, place: _Place, text: str) -> bool:
        """Whether a place only looks like the answer: another number of the same value, or a word that means something else."""
        start, end, what, role, number = place
        where = text, start, end
        if role == "certain":
            return False
        if role == "element":
            return not context.RESULT.is_at(*where) or context.OPERAND.is_at(*where)
        if role == "common":
            is_emphasized = context.EMPHASIS_BEFORE.is_at(*where) and context.EMPHASIS_AFTER.is_at(*where)
            return not (is_emphasized or context.RESULT.is_at(*where) or context.is_answer(*where))
        is_ambiguous = what in self._in_problem
        if isinstance(what, Fraction):
            is_whole = what.denominator == 1
            if is_whole and 0 <= what <= MAX_LABEL and context.is_label(*where):
                return True
            is_ambiguous = is_ambiguous or (is_whole and abs(what) <= SMALL)
        elif len(what) == 1 and what[0].startswith("\\"):  # a constant such as π
            return text[max(0, start - 2) : start].strip()[-1:].isdigit() or context.is_in_calculation(*where)
        if not is_ambiguous or context.is_quoted(*where, self._problem):
            return is_ambiguous
        if context.is_answer(*where):
            return False
        if number is not None:
            is_word = number.form == "words"
            if is_word and what == 1:  # mostly a pronoun
                return not (context.COUNTED_ONE_BEFORE.is_at(*where) and context.COUNTED_ONE_AFTER.is_at(*where))
            if context.is_in_calculation(*where) or (is_word and context.POINTING.is_at(*where)):
                return True
            if context.counts_words_of_critique(text, end, self._problem):
                return True
        beside = self._in_problem.get(what, set()) & neighbors(*where)
        is_told = number is not None and context.RESULT.is_at(*where)
        return any(side == 0 or not is_told for side, _ in beside)


def _by_first_key(sought: Mapping[Keys, bool]) -> dict[str, list[tuple[Keys, bool]]]:
    """First key -> the sequences that start with it, each with whether it is common."""
    by_first: dict[str, list[tuple[Keys, bool]]] = {}
    for sequence, is_common in sought.items():
        if sequence:
            by_first.setdefault(sequence[0], []).append((sequence, is_common))
    return by_first


def _number_of(form: str) -> Fraction | None:
    """The value of a form that is one number, apart from marks around it."""
    number = next(numbers_of(form), None)
    if number is None:
        return None
    rest = tokens_of(_ENVIRONMENT.sub("", f"{form[: number.start]} {form[number.end :]}"))
    return number.value if all(token.is_soft or token.key in _AROUND_NUMBER for token in rest) else None


def _means(number: Number, value: Fraction) -> bool:
    if value in number.values:  # 84/2 is a calculation, not its result
        return number.form != "fraction" or value.denominator > 1
    return value.denominator > 1 and _is_rounded_to(number, value)


def _is_rounded_to(number: Number, value: Fraction) -> bool:
    """Whether two or more decimals equal the value's, rounded or truncated."""
    unit = Fraction(1, 10**number.num_decimals)
    return number.num_decimals > 1 and any(
        each * value > 0 and (abs(each - value) <= unit / 2 or 0 <= abs(value) - abs(each) < unit)
        for each in number.values
    )


def _keys(form: str) -> Keys:
    return tuple(key for key, _, _ in expression_keys(tokens_of(form)))


def _with_wrappers(text: str, start: int, end: int) -> tuple[int, int]:
    """The place with what would be left open or mean nothing alone: brackets, `\\left`, `\\text{…}`, a matrix frame, `°`."""
    if fractions := re.compile(r"(?:\\[dt]?frac\s*\{\s*)+\Z").search(text, max(0, start - 32), start):
        start = fractions.start()
    before, inside, after = text[max(0, start - 32) : start], text[start:end], text[end : end + 32]
    heads_and_tails = []
    for opened, closed in (("{", "}"), ("([", ")]")):
        num_before = depth = 0
        for char in inside:
            depth += (char in opened) - (char in closed)
            num_before, depth = (num_before + 1, 0) if depth < 0 else (num_before, depth)
        head = rf"(?:(?:\\[a-zA-Z]{{1,12}})?[{re.escape(opened)}]\s*){{0,{min(num_before, 32)}}}\Z"
        tail = rf"(?:\s*(?:\\right\s*)?[{re.escape(closed)}]){{0,{min(depth, 32)}}}"
        heads_and_tails.append((re.compile(head), re.compile(tail)))
    if "," in inside and not re.search(r"[(\[]", inside):
        heads_and_tails.append(_BRACKETS)
    for opening, closing in (*heads_and_tails, *_WRAPPERS):
        found, followed = opening.search(before), closing.match(after)
        if found is not None and followed is not None:
            start, end = start - len(found[0]), end + len(followed[0])
            before, after = before[: found.start()], after[len(followed[0]) :]
    return start, end
