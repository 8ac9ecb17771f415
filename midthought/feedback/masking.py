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

from midthought.feedback.masking_context import (
    Option,
    is_counted_one,
    is_emphasized,
    is_in_calculation,
    is_label,
    is_of_critique,
    is_operand,
    is_quoted,
    is_strongly_told,
    is_told,
    neighbors,
)
from midthought.feedback.masking_text import (
    Number,
    Token,
    expression_keys,
    level,
    numbers_of,
    tokens_of,
    value_of,
    word_keys,
)
from midthought.feedback.problems.fields import OPTIONS_LABEL, QUESTION_LABEL
from midthought.feedback.problems.prompts import LETTERS
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
_BRACKETED = re.compile(r"\s*(?:\\left)?\s*(?:\\\{|[(\[])(.*?)(?:\\right\s*)?(?:\\\}|[)\]])\s*\Z", re.DOTALL)
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
        self._words: dict[Keys, bool] = {}  # keys -> whether they are too common to be masked anywhere
        self._expressions: dict[Keys, bool] = {}
        self._patterns: list[str] = []
        for form in dict.fromkeys(forms):
            self._add(level(form)[0].strip())
        self._in_problem: dict[Fraction | Keys, set[tuple[int, str]]] = {}  # -> side and word beside it in the problem
        for place in self._places(self._problem):
            self._in_problem.setdefault(place.what, set()).update(
                each for each in enumerate(neighbors(self._problem, *place[:2])) if each[1]
            )

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
        tokens = tokens_of(bare)
        value = alone = _number_of(bare)
        if value is None and (with_unit := _WITH_UNIT.fullmatch(bare)):
            value = _number_of(with_unit[1])
        if value is not None:
            self._values.add(value)
            if re.search("percent|per cent|%", bare + self._problem, re.IGNORECASE):
                self._values.add(value / 100)
            if value >= 10 and value.denominator == 1:
                self._patterns += _with_blanks(str(value))
        elif (decimals := value_of(bare)) is not None:
            self._decimals.add(Fraction(decimals))
        if based := _BASE_MARK.fullmatch(bare.replace(" ", "")):
            self._add(based[1])
        if _MIXED_DIGITS.fullmatch(bare):
            digits = "[ ,_]?".join(bare)
            self._patterns.append(rf"(?i:(?<![0-9a-z])(?:0x)?{digits}(?![0-9a-z]))")
        if alone is None or "/" in bare:
            self._add_words(bare, tokens)
            self._add_expression(bare, tokens)

    def _add_words(self, bare: str, tokens: Sequence[Token]) -> None:
        keys = tuple(key for key, _, _ in word_keys(tokens))
        if not keys and not any(char.isascii() for char in bare):
            self._patterns.append(re.escape(bare))
        is_name = bare.isalpha() or any(
            token.kind == "word" and (len(token.text) > 1 or len(keys) > 1) for token in tokens
        )
        if "\\" in bare or not keys or not is_name:
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

    def _add_expression(self, bare: str, tokens: Sequence[Token]) -> None:
        if not any(token.kind in ("number", "command") or token.key in _MATHEMATICAL for token in tokens):
            return
        if keys := _keys(bare):
            is_short = len(keys) == 1 or (len(keys) == 2 and keys[0] == "-")
            self._expressions.setdefault(keys, is_short and len(keys[-1]) == 1)
        if "(" in bare or "[" in bare:  # in a tuple, a comma between digits can separate two numbers
            self._expressions.setdefault(_keys(bare.replace(",", ", ")), False)
        if equated := _EQUATED.fullmatch(bare):
            self._add(equated[1])
        if len(rows := _rows(bare)) > 1:
            self._expressions.setdefault(_joined([_keys(row) for row in rows], ("]", ",", "[")), False)
        elements = _elements(bare)
        parts = [_keys(element) for element in elements]
        if len(parts) < 2:
            return
        for link in ((",",), (",", "and"), ("and",), ("or",), (",", "or"), ("]", ",", "["), (")", ",", "(")):
            self._expressions.setdefault(_joined(parts, link), False)
            self._expressions.setdefault((*_joined(parts[:-1], (",",)), *link, *parts[-1]), False)
        for element, part in list(zip(elements, parts, strict=True))[:MAX_ELEMENTS]:
            if (value := _number_of(element)) is not None:
                self._elements.add(value)
            elif part:
                self._expressions.setdefault(part, True)

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
        for sought, keys in ((self._words, word_keys(tokens)), (self._expressions, list(expression_keys(tokens)))):
            by_first: dict[str, list[Keys]] = {}
            for sequence in filter(None, sought):
                by_first.setdefault(sequence[0], []).append(sequence)
            names = tuple(key for key, _, _ in keys)
            for at, name in enumerate(names):
                for sequence in by_first.get(name, ()):
                    if names[at : at + len(sequence)] == sequence:
                        end = keys[at + len(sequence) - 1][2]
                        yield _Place(keys[at][1], end, sequence, "common" if sought[sequence] else "answer")

    def _is_kept(self, place: _Place, text: str) -> bool:
        """Whether a place only looks like the answer: another number of the same value, or a word that means something else."""
        start, end, what, role, number = place
        if role == "certain":
            return False
        if role == "element":
            return not is_told(text, start, end) or is_operand(text, start, end)
        if role == "common":
            return not (
                is_emphasized(text, start, end) or is_told(text, start, end) or is_strongly_told(text, start, end)
            )
        beside = self._in_problem.get(what, set())
        if isinstance(what, Fraction):
            is_whole = what.denominator == 1
            if is_whole and 0 <= what <= MAX_LABEL and is_label(text, start, end):
                return True
            is_ambiguous = what in self._in_problem or (is_whole and abs(what) <= SMALL)
        elif len(what) == 1 and what[0].startswith("\\"):  # a constant such as π
            return text[max(0, start - 2) : start].strip()[-1:].isdigit() or is_in_calculation(text, start, end)
        else:
            is_ambiguous = what in self._in_problem
        if not is_ambiguous or is_quoted(text, start, end, self._problem):
            return is_ambiguous
        if is_strongly_told(text, start, end):
            return False
        is_word = number is not None and number.form == "words"
        if is_word and what == 1:
            return not is_counted_one(text, start, end)
        if number and (is_in_calculation(text, start, end) or is_of_critique(text, start, end, self._problem, is_word)):
            return True
        before, after = neighbors(text, start, end)
        return (0, before) in beside or ((1, after) in beside and not (number and is_told(text, start, end)))


def _number_of(form: str) -> Fraction | None:
    """The value of a form that is one number, apart from marks around it."""
    number = next(numbers_of(form), None)
    if number is None:
        return None
    rest = tokens_of(form[: number.start]) + tokens_of(form[number.end :])
    return number.value if all(token.is_soft or token.key in ("^", "\\circ", ".", "%") for token in rest) else None


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


def _with_blanks(digits: str) -> Iterator[str]:
    """Patterns of `4 2` and `1 234 567`."""
    grouped = f"{int(digits):,}".split(",")
    for parts in (list(digits), *([grouped] if len(grouped) > 1 else [])):
        yield rf"(?<![\d.,])(?<!\d )-?{' '.join(parts)}(?!\d|[.,]\d)"


def _keys(form: str) -> Keys:
    return tuple(key for key, _, _ in expression_keys(tokens_of(form)))


def _joined(parts: Sequence[Keys], link: Keys) -> Keys:
    return tuple(key for number, part in enumerate(parts) for key in (*(link if number else ()), *part))


def _rows(bare: str) -> list[str]:
    """The rows of a matrix; else the form itself."""
    return re.split(r"\\\\", _ENVIRONMENT.sub("", bare)) if "\\begin" in bare else [bare]


def _elements(bare: str) -> list[str]:
    """The elements of a tuple, a set, a list or a matrix; else the form itself."""
    if "\\begin" in bare:
        return [part.strip() for row in _rows(bare) for part in row.split("&") if part.strip()]
    inside = _BRACKETED.match(bare)
    parts: list[str] = [""]
    depth = 0
    for char in (inside[1] if inside else bare).replace("\\left", "").replace("\\right", ""):
        depth += (char in "([{") - (char in ")]}")
        if char in ",;" and depth <= 0:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts if part.strip()]


def _with_wrappers(text: str, start: int, end: int) -> tuple[int, int]:
    """The place with what would be left open or mean nothing alone: brackets, `\\left`, `\\text{…}`, a matrix frame, `°`."""
    if fractions := re.compile(r"(?:\\[dt]?frac\s*\{\s*)+\Z").search(text, max(0, start - 32), start):
        start = fractions.start()
    before, inside, after = text[max(0, start - 32) : start], text[start:end], text[end : end + 32]
    heads_and_tails = []
    for opened, closed in () if "[" in inside or "]" in inside else ("{}", "()"):
        num_before = depth = 0
        for char in inside:
            depth += (char == opened) - (char == closed)
            num_before, depth = (num_before + 1, 0) if depth < 0 else (num_before, depth)
        head = rf"(?:(?:\\[a-zA-Z]{{1,12}})?\{opened}\s*){{0,{min(num_before, 32)}}}\Z"
        heads_and_tails.append((re.compile(head), re.compile(rf"(?:\s*\{closed}){{0,{min(depth, 32)}}}")))
    for opening, closing in (*heads_and_tails, *_WRAPPERS):
        found, followed = opening.search(before), closing.match(after)
        if found is not None and followed is not None:
            start, end = start - len(found[0]), end + len(followed[0])
            before, after = before[: found.start()], after[len(followed[0]) :]
    return start, end
