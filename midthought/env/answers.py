"""Judges answers: extracts the answer from a model's text and compares it with the truth, by the rules of the task.

The rules follow from the task's data set or, without a known one, from its truth. Every search is linear in the text. math-verify
compares mathematics, in a separate process with a time limit.
"""

from __future__ import annotations

import importlib.util
import re
import string
import unicodedata
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from midthought.data.final_answers import (
    last_boxed,
    last_number,
    normalised_entity,
    option_letter,
    split_at_mark,
)
from midthought.data.problems.prompts import MULTIPLE_CHOICE
from midthought.data.tasks import DATASET_LABEL
from midthought.env.answer_matching import mathematical_match, option_match
from midthought.env.bare_answers import ESCAPED, GROUPED, WRAPPED, ends_in, is_mathematics, plain_signs, same_answer
from midthought.errors import DataError, MissingExtraError, near_names
from midthought.types import Task

MAX_STATED_CHARS = 300
"""Without a box, a longer line is not an answer."""

_STATED = re.compile(r"\banswer(?:\s++is\b\s*+:?|\s*+[:=])\s*+", re.IGNORECASE)
_UNIT_POWER = re.compile(r"(?<=[A-Za-z])\^(?:\d|\{\d{1,3}\})")
_WRITTEN_UNIT = re.compile(r"\\(?:text|mathrm|textbf|mathbf|mbox)\s*+\{[^{}\\\d]*+\}(?:\^(?:\d|\{\d{1,3}\}))?")
_LETTER = re.compile("[A-Za-z]")
_HEX = re.compile(r"(?<![\w.])(?:0[xX])?([0-9A-Fa-f]++)(?!\w|\.\w)")
_BASE_MARK = re.compile(
    r"_\{?(?:16|\\text\{(?:16|hex)\})\}?|₁₆|\(?(?:\bin )?\bbase[ -]?(?:16|sixteen)\b\)?", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Check:
    """How the answers of a kind of data set are extracted and compared."""

    extract: Callable[[str], str | None]
    """The answer in a text; None if there is none."""
    agrees: Callable[[str, str], bool]
    """Whether an extracted answer (first) equals the truth (second)."""

    def is_right(self, text: str, truths: Iterable[str]) -> bool:
        """Whether the answer in a text equals one of the truths. False if one is missing."""
        said = self.extract(text)
        return said is not None and any(self.agrees(said, each) for each in truths if each.strip())


def extract(dataset: str, text: str) -> str | None:
    """The final answer of a text, in the form that this data set compares (docs/data.md); None if there is none.

    Raises DataError for an unknown data set.
    """
    return _check_of(dataset).extract(text)


def is_right(dataset: str, text: str, truth: str, aliases: Sequence[str] = ()) -> bool:
    """Whether the final answer of a text equals the truth or one of the aliases. False if one is missing.

    Blocks up to 10 seconds per truth when it compares mathematics (`answer_matching.mathematical_match`). Raises DataError for
    an unknown data set, MissingExtraError if mathematics has to be compared and math-verify is not installed.
    """
    return _check_of(dataset).is_right(text, (truth, *aliases))


def task_is_right(task: Task, text: str, dataset: str = "") -> bool:
    """`is_right` for a task, by its data set: the label `dataset`, else the argument. Without a known data set, the truth says how
    it is compared (`bare_answers.same_answer`); of a sentence, the last number counts if the truth is a number."""
    truths = (task.answer, *task.aliases)
    check = CHECKS.get(str(task.labels.get(DATASET_LABEL) or dataset))
    if check is not None:
        return check.is_right(text, truths)
    said = last_boxed(text) or _marked(text) or _stated(text)
    places = [text] if said is None else [said] if last_boxed(text) else [said, text]
    return any(ends_in(places[0], truth) for truth in truths) or any(
        same_answer(place, truth) for truth in truths for place in places
    )


def _marked(text: str) -> str | None:
    solution, marked = split_at_mark(text)
    return None if solution is None else marked.partition("\n")[0]


def unjudged(task: Task) -> str | None:
    """Returns a truth of a task that only math-verify compares, if it is not installed; otherwise None."""
    if importlib.util.find_spec("math_verify") is not None:
        return None
    check = CHECKS.get(str(task.labels.get(DATASET_LABEL)))
    truths = (task.answer, *task.aliases)
    return next((each for each in truths if check is MATHEMATICS or (check is None and is_mathematics(each))), None)


def require_judges(tasks: Iterable[Task]) -> None:
    """Raises MissingExtraError if the answer of a task is compared by math-verify and it is not installed."""
    for task in tasks:
        if (truth := unjudged(task)) is not None:
            where = f"the truth {truth!r} of task {task.task_id!r} is compared as mathematics, and math-verify"
            raise MissingExtraError(where, "math")


def _check_of(dataset: str) -> Check:
    if dataset not in CHECKS:
        raise DataError(f"unknown data set {dataset!r}. {near_names(dataset, CHECKS)}")
    return CHECKS[dataset]


def _stated(text: str) -> str | None:
    """The rest of the line after the last "answer is"."""
    found = next(iter(deque(_STATED.finditer(text), maxlen=1)), None)
    if found is None:
        return None
    line = text[found.end() :].partition("\n")[0].strip()
    return line if 0 < len(line) <= MAX_STATED_CHARS else None


# -- mathematics ---------------------------------------------------------------------------------------------------


def _expression(text: str) -> str | None:
    boxed = last_boxed(text)
    if boxed is None:
        whole = text.strip()
        is_one_line = "\n" not in whole and len(whole) <= MAX_STATED_CHARS
        boxed = _stated(text) or (whole if is_one_line else "")
    return _bare(boxed) or None


def _bare(expression: str) -> str:
    """Removes emphasis, math delimiters and a full stop around an expression; makes digits ASCII."""
    expression = GROUPED.sub("", plain_signs(expression))
    bare = expression.lstrip(" \t\n*$").rstrip(" \t\n*.$")
    if bare.startswith(("\\(", "\\[")) and bare.endswith(("\\)", "\\]")):
        bare = bare[2:-2].strip()
    return bare.removesuffix("\\")


def _means_expression(said: str, truth: str) -> bool:
    meant = last_boxed(truth)
    meant = _bare(truth if meant is None else meant)
    words = _words(meant)
    if words and (words == _words(said) or WRAPPED.search(meant)):
        return words == _words(said)
    without_unit = said if _LETTER.search(meant) else _UNIT_POWER.sub("", said)
    return any(mathematical_match(f"\\boxed{{{each}}}", meant) for each in dict.fromkeys((said, without_unit)))


def _words(expression: str) -> str:
    """Letters of an expression in lower case, without blanks and text commands; empty if it is not one word or several."""
    plain = "".join(WRAPPED.sub(r"\1", expression).split())
    return plain.casefold() if len(plain) > 1 and plain.isalpha() else ""


# -- numbers -------------------------------------------------------------------------------------------------------


def _number(text: str) -> str | None:
    for place in _places_of_number(text):
        number = last_number(place)
        if number is not None:
            return str(number)
    return None


def _places_of_number(text: str) -> Iterator[str]:
    """The parts of the text to search for the number, the clearest statement first."""
    solution, marked = split_at_mark(text)
    boxed = last_boxed(marked) or last_boxed(text)
    if solution is not None and last_boxed(marked) is None:
        yield marked.partition("\n")[0]
    if boxed is not None:
        bare = GROUPED.sub("", boxed)
        yield _UNIT_POWER.sub("", _WRITTEN_UNIT.sub(" x", bare))
        yield bare
    yield _UNIT_POWER.sub("", text)


def _means_number(said: str, truth: str) -> bool:
    meant = last_number(truth)
    return meant is not None and Fraction(said) == meant


# -- hexadecimal numbers -------------------------------------------------------------------------------------------


def _hexadecimal(text: str) -> str | None:
    boxed = last_boxed(text)
    if boxed is not None:
        return _hex_digits(boxed)
    stated = _stated(text) or text
    whole = _hex_digits(stated.strip(" \n\t.*`"))
    if whole is not None:
        return whole
    with_digit = [found for found in _HEX.findall(_BASE_MARK.sub("", stated)) if any(map(str.isdigit, found))]
    return _canonical(with_digit[0 if stated is not text else -1]) if with_digit else None


def _hex_digits(text: str) -> str | None:
    """The digits of a text that is one hexadecimal number; None for anything else."""
    plain = WRAPPED.sub(r"\1", _BASE_MARK.sub("", plain_signs(text)))
    plain = re.sub(r"\\[,!:; ]|[\s,~$`*]", "", plain).removeprefix("0x").removeprefix("0X")
    return _canonical(plain) if plain and all(sign in string.hexdigits for sign in plain) else None


def _canonical(digits: str) -> str:
    return digits.upper().lstrip("0") or "0"


# -- options -------------------------------------------------------------------------------------------------------


def _option(text: str) -> str | None:
    return option_letter(unicodedata.normalize("NFKC", text))


# -- trivia --------------------------------------------------------------------------------------------------------


def _entity(text: str) -> str | None:
    boxed = last_boxed(text)
    if boxed is None:
        boxed = _stated(text) or text.strip().rpartition("\n")[2]
    if len(boxed) > MAX_STATED_CHARS:
        return None
    return ESCAPED.sub(r"\1", WRAPPED.sub(r"\1", boxed)).strip(" \t*$") or None


MATHEMATICS = Check(_expression, _means_expression)
NUMBER = Check(_number, _means_number)
HEXADECIMAL = Check(_hexadecimal, lambda said, truth: said == _hex_digits(truth))
OPTION = Check(_option, option_match)
ENTITY = Check(_entity, lambda said, truth: normalised_entity(said) == normalised_entity(truth))

CHECKS: Mapping[str, Check] = {
    "math": MATHEMATICS,
    "aime_2024": MATHEMATICS,
    "gsm8k": NUMBER,
    "multiplication": NUMBER,
    "hex": HEXADECIMAL,
    "mmlu": OPTION,
    "mmlu_pro": OPTION,
    "gpqa": OPTION,
    "trivia_qa": ENTITY,
    MULTIPLE_CHOICE: OPTION,
}
"""Data set -> its check."""
