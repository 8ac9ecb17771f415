"""One answer with its aliases, and where a text tells it. What counts as telling stands in masking_context.

A number is found by its value, an expression and words by their keys. Knows no task and no option letters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction

from midthought.feedback import masking_context as context
from midthought.feedback.masking_expression import Keys, expression_keys, word_keys
from midthought.feedback.masking_numbers import Literal, literals
from midthought.feedback.masking_problem import Problem
from midthought.feedback.masking_stretch import whole_stretch
from midthought.feedback.masking_tokens import Kind, Levelled, Token, tokens_of
from midthought.feedback.masking_value import value_of

SMALL = 12
"""Whole numbers up to here stand in any text for other things, too: steps, counts, powers."""
MAX_LABEL = 30
"""Up to here a number may be a step's."""
MAX_FORM_CHARS = 2000
"""A longer answer is nothing that a critic would write out."""
MAX_ELEMENTS = 8
"""Of a list of answers, those that are looked for one by one."""

_TEXT = re.compile(r"\s*\\(?:text|mbox|textbf|mathrm)\s*\{([^{}]*)\}\s*")
_EQUATED = re.compile(r"\s*(?:[a-zA-Z]{1,2}|[a-zA-Z]\([a-zA-Z]\))\s*(?:=|\\in\b|∈)\s*(.+)", re.DOTALL)
_BRACKETED = re.compile(r"\s*(?:\\left)?\s*(?:\\\{|[(\[])(.*)(?:\\\}|[)\]])\s*\Z", re.DOTALL)
_IN_PARENTHESES = re.compile(r"\s*\([^()]*\)\s*\Z")
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\s*\{[a-zA-Z]*\}")
_BASE_MARK = re.compile(r"([0-9A-Za-z]+)_\{?\d+\}?")
_MIXED_DIGITS = re.compile(r"(?=[0-9A-Za-z]*\d)(?=[0-9A-Za-z]*[A-Za-z])[0-9A-Za-z]{2,}")
_WITH_UNIT = re.compile(
    r"(?:\\?\$|[€£¥])?\s{0,4}(-?\$?\s{0,4}(?:\\frac\s?\{?\d+\}?\s?\{?\d+\}?|\d[\d.,/!\\ ]*))"
    r"(?:\s{0,4}\\(?:text|mbox|mathrm)\s?\{[^{}]{0,60}\}(?:\^\{?\d\}?)?"
    r"|\s{0,4}(?!pi\b|sqrt\b)[A-Za-z]{2}[A-Za-z .]{0,60})?\s{0,4}"
)
_MATHEMATICAL = frozenset("^_=+<>*/|°π∞√") | {"<=", ">=", "\\times", "\\circ", "\\sqrt", "\\pi", "\\infty"}
_COMMON_WORDS = frozenset(
    str.split(
        "who it no us he she her him his i we you they them in on at or and so as if is a an the my me one "
        "all any some none both neither either even odd up down out off over under now then here there yes "
        "not nothing something what which when where how why this that can may will"
    )
)


class Secret:
    """Where a text tells one of `forms` (the answer and its aliases), an answer to `problem`."""

    def __init__(self, forms: Iterable[str], problem: str) -> None:
        self._problem = Problem(problem)
        self._values: set[Fraction] = set()
        self._part_values: set[Fraction] = set()
        """Of the elements of a list: told only where something says that they are the answer."""
        self._decimals: set[Fraction] = set()
        """Nearly the value of expressions that no decimals write out."""
        self._words: dict[tuple[str, ...], bool] = {}
        """Keys -> whether they are too common to be masked anywhere."""
        self._expressions: dict[tuple[str, ...], bool] = {}
        self._patterns: list[re.Pattern[str]] = []
        for form in dict.fromkeys(forms):
            self._add(Levelled(form).text.strip())

    def spans(self, text: str, tokens: Sequence[Token]) -> Iterator[tuple[int, int]]:
        """Stretches of a levelled text that tell the answer; they may overlap."""
        for literal in literals(tokens) if self._values or self._part_values or self._decimals else ():
            if self._is_told_by(literal, text, tokens):
                yield whole_stretch(text, tokens, literal.first, literal.last)
        yield from self._spelled_digits(tokens)
        for pattern in self._patterns:
            yield from (found.span() for found in pattern.finditer(text))
        for sequences, keys_of in ((self._words, word_keys), (self._expressions, expression_keys)):
            keys = keys_of(tokens) if sequences else Keys(())
            for sought, is_common in sequences.items():
                for first, last in keys.places(sought):
                    if not self._is_harmless(text, tokens, first, last, is_common):
                        yield whole_stretch(text, tokens, first, last)

    # -- what is looked for ------------------------------------------------------------------------------------

    def _add(self, form: str) -> None:
        if not form or len(form) > MAX_FORM_CHARS:
            return
        form = form.strip("$ ").rstrip(".;, ")
        written = _TEXT.fullmatch(form)
        bare = written[1].strip() if written else form
        tokens = tokens_of(bare)
        value = alone = _number_of(tokens)
        if value is None and (with_unit := _WITH_UNIT.fullmatch(bare)):
            value = _number_of(tokens_of(with_unit[1]))
        if value is not None:
            self._values.add(value)
            if any(token.key in ("%", "percent") for token in tokens) or self._problem.asks_for_percent:
                self._values.add(value / 100)
        elif (nearly := value_of(tokens)) is not None:
            self._decimals.add(Fraction(nearly))
        if based := _BASE_MARK.fullmatch(bare.replace(" ", "")):
            self._add(based[1])
        if _MIXED_DIGITS.fullmatch(bare) and len(bare) > 2:
            self._patterns.append(
                re.compile(rf"(?<![0-9A-Za-z])(?:0[xX])?{_spaced(bare)}(?![0-9A-Za-z])", re.IGNORECASE)
            )
        if alone is None or any(token.key == "/" for token in tokens):
            self._add_words(bare, tokens)
            self._add_expression(bare, tokens)

    def _add_words(self, bare: str, tokens: Sequence[Token]) -> None:
        keys = word_keys(tokens).keys
        if not keys and not any(sign.isascii() for sign in bare):
            self._patterns.append(re.compile(re.escape(bare)))
        if not any(token.kind is Kind.WORD and len(token.text) > 1 for token in tokens) and len(keys) < 2:
            keys = keys if bare.isalpha() else ()
        if "\\" in bare or not keys:
            return
        if len(keys) > 1 and keys[0] in ("the", "a", "an"):
            self._words.setdefault(keys, False)
            keys = keys[1:]
        is_common = len(keys) == 1 and (keys[0] in _COMMON_WORDS or (len(keys[0]) == 1 and keys[0].isascii()))
        self._words.setdefault(keys, is_common)
        if len(keys[-1]) > 2 and keys[-1].isalpha() and not is_common:
            for plural in (keys[-1] + "s", keys[-1] + "es"):
                self._words.setdefault((*keys[:-1], plural), False)
        if (shorter := _IN_PARENTHESES.sub("", bare)) != bare:
            self._add(shorter)

    def _add_expression(self, bare: str, tokens: Sequence[Token]) -> None:
        keys = expression_keys(tokens).keys
        if not any(token.kind in (Kind.NUMBER, Kind.COMMAND) or token.key in _MATHEMATICAL for token in tokens):
            return
        if keys:
            is_short = len(keys) == 1 or (len(keys) == 2 and keys[0] == "-")
            self._expressions.setdefault(keys, is_short and len(keys[-1]) == 1)
        if "(" in bare or "[" in bare:  # there, a comma between digits may part two numbers
            self._expressions.setdefault(expression_keys(tokens_of(bare.replace(",", ", "))).keys, False)
        if equated := _EQUATED.fullmatch(bare):
            self._add(equated[1])
        if len(rows := _rows(bare)) > 1:
            joined = [key for row in rows for key in (*expression_keys(tokens_of(row)).keys, "]", ",", "[")]
            self._expressions.setdefault(tuple(joined[:-3]), False)
        elements = _elements(bare)
        if len(elements) > 1:
            self._add_list(elements)

    def _add_list(self, elements: Sequence[str]) -> None:
        """A list's elements side by side, however parted; and each one, where it is said to be the answer."""
        parts = [expression_keys(tokens_of(element)).keys for element in elements]
        for between in ((",",), (",", "and"), ("and",), ("or",), (",", "or"), ("]", ",", "["), (")", ",", "(")):
            joined = [key for part in parts for key in (*part, *between)][: -len(between)]
            self._expressions.setdefault(tuple(joined), False)
            if len(parts) > 2:
                last = [key for part in parts[:-1] for key in (*part, ",")][:-1]
                self._expressions.setdefault((*last, *between, *parts[-1]), False)
        for element, part in list(zip(elements, parts, strict=True))[:MAX_ELEMENTS]:
            value = _number_of(tokens_of(element))
            if value is not None:
                self._part_values.add(value)
            elif part:
                self._expressions.setdefault(part, True)

    # -- whether a place tells it ------------------------------------------------------------------------------

    def _is_told_by(self, literal: Literal, text: str, tokens: Sequence[Token]) -> bool:
        start, end = tokens[literal.first].start, tokens[literal.last].end
        if any(self._means(literal, value) for value in self._values):
            return not self._is_another_number(literal, text, tokens, start, end)
        if any(_is_rounded_to(literal, value) for value in self._decimals):
            return True
        if any(self._means(literal, value) for value in self._part_values):
            return context.is_told(text, start, end) and not context.is_operand(tokens, literal.first, literal.last)
        return False

    def _means(self, literal: Literal, value: Fraction) -> bool:
        if value in literal.values:
            is_work = literal.form == "fraction" and value.denominator == 1  # 84/2: what is to be done, not its result
            return not is_work
        return value.denominator > 1 and _is_rounded_to(literal, value)

    def _is_another_number(self, literal: Literal, text: str, tokens: Sequence[Token], start: int, end: int) -> bool:
        """The same value, and yet not the answer: a step, a power, a number of the problem."""
        value = literal.value
        is_small = value.denominator == 1 and abs(value) <= SMALL
        is_known = value in self._problem.values
        if value.denominator == 1 and 0 <= value <= MAX_LABEL and context.is_label(text, start, end):
            return True
        if is_known and self._problem.is_quoted(text, start, end):
            return True
        if not (is_small or is_known):
            return False
        if literal.form == "words" and value == 1:
            return not context.is_number_one(text, tokens, literal.first, literal.last)
        if context.is_strongly_told(text, start, end):
            return False
        if context.is_part_of_term(text, tokens, literal.first, literal.last):
            return True
        if context.is_operand(tokens, literal.first, literal.last):
            return True
        if self._problem.knows(
            value, *context.company(tokens, literal.first, literal.last), told=context.is_told(text, start, end)
        ):
            return True
        if context.is_of_the_critique(tokens, literal.last, self._problem.words):
            return True
        return literal.form == "words" and context.is_pointing(tokens, literal.first, literal.last)

    def _is_harmless(self, text: str, tokens: Sequence[Token], first: int, last: int, is_common: bool) -> bool:
        start, end = tokens[first].start, tokens[last].end
        if is_common:
            is_told = context.is_told(text, start, end) or context.is_strongly_told(text, start, end)
            return not (is_told or _is_emphasised(text, start, end))
        if first == last and tokens[first].kind is not Kind.NUMBER and tokens[first].key.startswith("\\"):
            return _is_factor(text, tokens, first)
        words = " ".join(word_keys(tokens[first : last + 1]).keys)
        if not self._problem.has(words):
            return False
        if self._problem.is_quoted(text, start, end):
            return True
        if context.is_strongly_told(text, start, end):
            return False
        return self._problem.knows(words, *context.company(tokens, first, last), told=False)

    def _spelled_digits(self, tokens: Sequence[Token]) -> Iterator[tuple[int, int]]:
        """`4 2`, `1 234 567`: the answer's digits, parted by blanks."""
        sought = [str(value) for value in self._values if value.denominator == 1 and value >= 10]
        for digits in sought:
            for at, token in enumerate(tokens):
                if token.kind is Kind.NUMBER and digits.startswith(token.text) and token.text != digits:
                    last = _spelled(tokens, at, digits)
                    if last is not None:
                        yield token.start, tokens[last].end


def _number_of(tokens: Sequence[Token]) -> Fraction | None:
    """The number that these tokens are, and nothing else; its unit sign aside."""
    found = list(literals(tokens))
    if not found:
        return None
    rest = [
        token
        for at, token in enumerate(tokens)
        if not found[0].first <= at <= found[0].last and not token.is_soft and token.key not in ("^", "\\circ", ".")
    ]
    return None if rest else found[0].value


def _rows(bare: str) -> list[str]:
    """The rows of a matrix; of anything else the whole."""
    return re.split(r"\\\\", _ENVIRONMENT.sub("", bare)) if "\\begin" in bare else [bare]


def _elements(bare: str) -> list[str]:
    """The elements of a tuple, a set, a list or a matrix; of anything else itself alone."""
    if "\\begin" in bare:
        return [part.strip() for row in _rows(bare) for part in row.split("&") if part.strip()]
    inside = _BRACKETED.match(bare)
    inner = re.sub(r"\\(?:right|left)\s*\Z", "", inside[1]) if inside else bare
    parts: list[str] = [""]
    depth = 0
    for sign in inner.replace("\\left", "").replace("\\right", ""):
        depth += (sign in "([{") - (sign in ")]}")
        if sign in ",;" and depth <= 0:
            parts.append("")
        else:
            parts[-1] += sign
    return [part.strip() for part in parts if part.strip()]


def _is_rounded_to(literal: Literal, value: Fraction) -> bool:
    """Whether two or more decimals are those of the value, rounded or cut off."""
    if literal.num_decimals < 2:
        return False
    unit = Fraction(1, 10**literal.num_decimals)
    return any(
        each * value > 0 and (abs(each - value) <= unit / 2 or 0 <= abs(value) - abs(each) < unit)
        for each in literal.values
    )


def _spelled(tokens: Sequence[Token], at: int, digits: str) -> int | None:
    """The last token of `digits` written from here on with blanks between; None where others are written."""
    if at and tokens[at - 1].kind is Kind.NUMBER and tokens[at].start - tokens[at - 1].end == 1:
        return None
    rest, is_grouped, place = digits, True, at
    while place < len(tokens) and rest:
        token = tokens[place]
        if token.kind is not Kind.NUMBER or not rest.startswith(token.text):
            return None
        if place > at and token.start - tokens[place - 1].end != 1:
            return None
        is_grouped &= len(token.text) == 3 if place > at else len(token.text) <= 3
        rest = rest[len(token.text) :]
        place += 1
    is_single = all(len(token.text) == 1 for token in tokens[at:place])
    return place - 1 if not rest and (is_grouped or is_single) else None


def _spaced(digits: str) -> str:
    return r"[ ,_]?".join(map(re.escape, digits))


def _is_emphasised(text: str, start: int, end: int) -> bool:
    before, after = text[max(0, start - 2) : start], text[end : end + 2]
    return bool(re.search(r"[*_`\"$]\Z|\{\Z", before) and re.match(r"[*_`\"$}]", after))


def _is_factor(text: str, tokens: Sequence[Token], at: int) -> bool:
    """Whether a constant such as `π` stands in a larger term: `2π`, `π/2`, `π r^2`."""
    is_after_number = at > 0 and tokens[at - 1].kind is Kind.NUMBER and tokens[at].start - tokens[at - 1].end < 2
    return is_after_number or context.is_operand(tokens, at, at) or context.is_part_of_term(text, tokens, at, at)
