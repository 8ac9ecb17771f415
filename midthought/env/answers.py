"""Judges answers: extracts the answer from a model's text and compares it with the truth, by the rules of the task.

The rules follow from the task's data set or, without a known one, from its truth. Every search is linear in the text. math-verify
compares mathematics, in a separate process with a time limit.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import unicodedata
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from midthought.data.final_answers import (
    FRACTION_SIGNS,
    NUMBER_PATTERN,
    last_boxed,
    last_number,
    normalised_entity,
    option_letter,
    split_at_mark,
    with_plain_fractions,
)
from midthought.data.tasks import DATASET_LABEL
from midthought.env.answer_matching import mathematical_match, option_match
from midthought.errors import DataError, MissingExtraError, near_names
from midthought.types import Task

MAX_STATED_CHARS = 300
"""Without a box, a longer line is not an answer."""

_STATED = re.compile(r"\banswer(?:\s++is\b\s*+:?|\s*+[:=])\s*+", re.IGNORECASE)
_GROUPED = re.compile(r"(?<=\d)(?:\\[,!:; ]|[~ \u00a0\u2009\u202f])(?=\d{3}(?!\d))")
_UNIT_POWER = re.compile(r"(?<=[A-Za-z])\^(?:\d|\{\d{1,3}\})")
_WRITTEN_UNIT = re.compile(r"\\(?:text|mathrm|textbf|mathbf|mbox)\s*+\{[^{}\\\d]*+\}(?:\^(?:\d|\{\d{1,3}\}))?")
_LETTER = re.compile("[A-Za-z]")
_WRAPPED = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mathit|mbox|texttt|mathtt)\s*+\{([^{}]*+)\}")
_LATEX = str.maketrans(
    {"‘": "'", "’": "'", "“": '"', "”": '"', "。": ".", "°": r"^\circ ", "π": r"\pi ", "√": r"\sqrt ", "∞": r"\infty "}
)
_RAISED = re.compile("([⁰¹²³⁴-⁹⁻]++)|(?<=[0-9])[₀-₉]++")
_nfkc = functools.partial(unicodedata.normalize, "NFKC")
_ESCAPED = re.compile(r"\\([&%$#_{}])")


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
    return _check_of(dataset).extract(within_tags(text))


def is_right(dataset: str, text: str, truth: str, aliases: Sequence[str] = ()) -> bool:
    """Whether the final answer of a text equals the truth or one of the aliases. False if one is missing.

    Blocks up to 10 seconds per truth when it compares mathematics (`answer_matching.mathematical_match`). Raises DataError for
    an unknown data set, MissingExtraError if mathematics has to be compared and math-verify is not installed.
    """
    return _check_of(dataset).is_right(within_tags(text), (truth, *aliases))


def task_is_right(task: Task, text: str, dataset: str = "") -> bool:
    """`is_right` for a task, by its data set: the label `dataset`, else the argument. Without a known data set, each truth says
    how it is compared: as `same_answer`, and as by `NUMBER` if it is a number and the answer is a sentence."""
    text, truths = within_tags(text), (task.answer, *task.aliases)
    check = CHECKS.get(str(task.labels.get(DATASET_LABEL) or dataset))
    return any(_holds(text, each) for each in truths) if check is None else check.is_right(text, truths)


def require_judges(tasks: Iterable[Task]) -> None:
    """Raises MissingExtraError if a truth of a task is compared by math-verify and it is not installed."""
    for task in () if importlib.util.find_spec("math_verify") else tasks:
        check = CHECKS.get(str(task.labels.get(DATASET_LABEL)))
        for truth in (task.answer, *task.aliases):
            if check is MATHEMATICS or (check is None and _is_formula(_tidy(truth))):
                what = f"the truth {truth!r} of task {task.task_id!r} is compared as mathematics, but math-verify"
                raise MissingExtraError(what, "math")


def _check_of(dataset: str) -> Check:
    if dataset not in CHECKS:
        raise DataError(f"unknown data set {dataset!r}. {near_names(dataset, CHECKS)}")
    return CHECKS[dataset]


def within_tags(text: str) -> str:
    """The text within the last `<answer>…</answer>`, the form of R1-Zero; all of the text without these tags."""
    before, is_closed, _ = text.rpartition("</answer>")
    _, is_opened, within = before.rpartition("<answer>")
    return within if is_closed and is_opened else text


def _stated(text: str) -> str | None:
    """The rest of the line after the last "answer is"."""
    found = next(iter(deque(_STATED.finditer(text), maxlen=1)), None)
    if found is None:
        return None
    line = text[found.end() :].partition("\n")[0].strip()
    return line if 0 < len(line) <= MAX_STATED_CHARS else None


def _plain_signs(text: str) -> str:
    """Replaces powers, bases, quotation marks, minus signs and digits of any script and width with ASCII; ½, π, √ and ∞ with
    LaTeX. Other raised and lowered signs stay: as plain ones they have another meaning."""
    if text.isascii():
        return text
    text = _RAISED.sub(lambda found: f"{'^' if found[1] else '_'}{{{_nfkc(found[0])}}}", text.translate(FRACTION_SIGNS))
    others = {sign for sign in {*text} if not unicodedata.decomposition(sign).startswith("<su")}
    text = unicodedata.normalize("NFC", text.translate({ord(sign): _nfkc(sign) for sign in others}))
    return "".join(
        "-" if sign in "−﹣－" else str(unicodedata.decimal(sign)) if sign.isdecimal() else sign
        for sign in text.translate(_LATEX)
    )


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
    expression = _GROUPED.sub("", _plain_signs(expression))
    bare = expression.lstrip(" \t\n*$").rstrip(" \t\n*.$")
    if bare.startswith(("\\(", "\\[")) and bare.endswith(("\\)", "\\]")):
        bare = bare[2:-2].strip()
    return bare.removesuffix("\\")


def _means_expression(said: str, truth: str) -> bool:
    meant = last_boxed(truth)
    meant = _bare(truth if meant is None else meant)
    if _unwrapped(said) == _unwrapped(meant):
        return True
    words = _words(meant)
    if words and (words == _words(said) or _WRAPPED.search(meant)):
        return words == _words(said)
    without_unit = said if _LETTER.search(meant) else _UNIT_POWER.sub("", said)
    return any(mathematical_match(f"\\boxed{{{each}}}", meant) for each in dict.fromkeys((said, without_unit)))


def _words(expression: str) -> str:
    """Letters of an expression in lower case, without blanks and text commands; empty if it is not one word or several."""
    plain = _unwrapped(expression).replace(" ", "")
    return plain.casefold() if len(plain) > 1 and plain.isalpha() else ""


def _unwrapped(expression: str) -> str:
    return " ".join(_WRAPPED.sub(r"\1", expression).split())


# -- numbers -------------------------------------------------------------------------------------------------------


def _number(text: str) -> str | None:
    numbers = map(last_number, _places_of_number(text))
    return next((str(number) for number in numbers if number is not None), None)


def _places_of_number(text: str) -> Iterator[str]:
    """The parts of the text to search for the number, the clearest statement first."""
    solution, marked = split_at_mark(text)
    boxed = last_boxed(marked) or last_boxed(text)
    if solution is not None and last_boxed(marked) is None:
        yield marked.partition("\n")[0]
    if boxed is not None:
        bare = _GROUPED.sub("", boxed)
        yield _UNIT_POWER.sub("", _WRITTEN_UNIT.sub(" x ", bare))
        yield bare
    yield _UNIT_POWER.sub("", text)


def _means_number(said: str, truth: str) -> bool:
    meant = last_number(truth)
    return meant is not None and Fraction(said) == meant


# -- trivia --------------------------------------------------------------------------------------------------------


def _entity(text: str) -> str | None:
    boxed = last_boxed(text)
    if boxed is None:
        boxed = _stated(text) or text.strip().rpartition("\n")[2]
    if len(boxed) > MAX_STATED_CHARS:
        return None
    return _ESCAPED.sub(r"\1", _WRAPPED.sub(r"\1", boxed)).strip(" \t*$") or None


# -- without a data set --------------------------------------------------------------------------------------------

_Quantity = tuple[Fraction, str, str, str]
_WORD = re.compile(r"(?<![\\\w{])[^\W\d_]{2,}")
_REWRITTEN = (
    (re.compile(r"\{,\}|,\\! ?"), ","),
    (_GROUPED, ""),
    (_WRAPPED, r" \1"),
    (re.compile(r"\\(?:left|right)(?![a-zA-Z])|\*\*(?!\w)|(?<!\w)\*\*"), ""),
    (re.compile(r"(?:(?<!\\)\\[,!:; ]|(?<=\w)~(?=\w)|\s)++"), " "),
    (re.compile(r" ?\^ ?(?:\\circ ?|\{ ?\\circ ?\})"), "°"),
    (re.compile(r" ?\bper ?cent\b|\\%"), "%"),
    (re.compile(r"\\([&$#_])|^ ?([-+]) "), r"\1\2"),
)
"""Ways of writing that do not change an answer."""
_ENCLOSED = re.compile(r"""(["'`*]|\$\$?)(.*)\1|\\\((.*)\\\)|\\\[(.*)\\\]|\(?([A-Ja-j])\)""")
_PUNCTUATION = ".,;:?"
_PAUSE = re.compile(r"(?<=[^\W\d_])\.(?= )|(?<=[^\W\d_]{2})[,;:?](?= )")
_BLANK = re.compile(r" (?=[^\w ])|(?<=[^\w ]) |(?<=\d) (?=[^\W\d_])|(?<=[\^_])\{(\w++)\}")
_POWER_OF_TEN = re.compile(r"(?<![\w.])(?:(\d++(?:\.\d++)?) ?(?:\\times|\\cdot|[×·*x]) ?)?10\^\{?(-?\d{1,3})(?!\d)\}?")
_QUANTITY = re.compile(
    rf"""(?:(?P<name>[^\W\d_])[ ]?=[ ]?)?
    (?:(?:\\[a-z]++|[-+*/^×÷·(){{}}\d., ])++=[ ]?)*+           # what was computed
    \+?(?P<sign>[$€£¥]?)(?P<value>{NUMBER_PATTERN.pattern})
    (?P<unit>[ ]?(?:%|°[A-Za-z]?)|[ ](?P<word>[^\W\d_]++(?:[/·*^]\{{?-?\w++\}}?)*+))?""",
    re.VERBOSE,
)
_LIST = re.compile(r"([(\[])([^()\[\]]*,[^()\[\]]*)([)\]])")
_FORMULA = re.compile(
    r"""(?=.*(?:\\[A-Za-z{|] | [-+*/^=<>≤≥≠±×÷∪∩]))(?=.*(?:\\|[^\W\d_]))(?!.*[-+*/^=<>≤≥≠±×÷∪∩]$)
    (?:\\(?:begin|end)\{[a-z]++\} | \\[A-Za-z]++ | \\[\\{}|]   # commands
    | (?:\d++(?:\.\d++)? | (?<!\d)\.\d++)(?!\.\d)              # numbers, no versions
    | [^\W\d_](?![^\W_])                                       # names of one letter, no words
    | \^(?!\ ?\{?T\b) | (?<=[A-Za-z}])_                        # powers, no transposes; indices, no bases
    | [-+*/=<>≤≥≠±×÷∪∩!|()\[\]{},&\ ])++""",
    re.VERBOSE,
)
"""Mathematics: a LaTeX command, or an operator and a name of one letter, among numbers and brackets."""


def _holds(text: str, truth: str) -> bool:
    solution, marked = split_at_mark(text)
    boxed = last_boxed(text)
    said = boxed or (solution is not None and marked.partition("\n")[0]) or _stated(text) or text
    if any(same_answer(each, truth) for each in ((said,) if boxed else (said, text))):
        return True
    stated, meant = _quantity(_tidy(said)), _quantity(_tidy(truth))
    is_sentence = _WORD.search(_WRAPPED.sub(r" \1", said)) is not None
    if meant is None or meant[3] not in ("", "%"):
        return is_sentence and option_letter(text) == _tidy(truth)
    if stated is not None:  # with a unit that the truth does not have
        return not meant[3] and _are_equal((*stated[:3], ""), meant, False)
    return is_sentence and _number(text) == str(meant[0])


def same_answer(first: str, second: str) -> bool:
    """Whether two answers are equal: as texts, as numbers, as lists in brackets, or as formulas, in this order. Symmetric.

    Blocks up to 5 seconds for formulas. Raises MissingExtraError if these have to be compared and math-verify is not installed.
    """
    has_note = any(map(_WRAPPED.search, (first, second)))
    first, second = _tidy(first), _tidy(second)
    if _bare_text(first) == _bare_text(second) != "":
        return True
    one, other = _quantity(first), _quantity(second)
    if one or other:
        return one is not None and other is not None and _are_equal(one, other, has_note)
    lists = [each.groups() for each in map(_LIST.fullmatch, (first, second)) if each]
    if len(lists) == 2:
        (*brackets, items), (*others, other_items) = ((left, right, items.split(",")) for left, items, right in lists)
        return brackets == others and len(items) == len(other_items) and all(map(same_answer, items, other_items))
    boxes = [f"\\boxed{{{each}}}" for each in sorted((first, second)) if _is_formula(each)]
    return len(boxes) == 2 and mathematical_match(*boxes, as_wholes=True)


def _tidy(text: str) -> str:
    """Removes emphasis, quotation marks, delimiters and punctuation around an answer; makes its signs ASCII."""
    text = _nfkc(_plain_signs(text))
    for pattern, plain in _REWRITTEN:
        text = pattern.sub(plain, text)
    for _ in range(4):
        text = text.strip().rstrip(_PUNCTUATION)
        found = _ENCLOSED.fullmatch(text)
        text = text if found is None else next(filter(None, found.groups()[1:]), "")
    return text.rstrip(_PUNCTUATION + "$ ")


def _bare_text(answer: str) -> str:
    return _BLANK.sub(r"\1", _PAUSE.sub("", answer.casefold()))


def _quantity(answer: str) -> _Quantity | None:
    """The number that a tidy answer is, the name in `x = 5`, the currency, the unit; None if it is something else."""
    text = _POWER_OF_TEN.sub(lambda found: f"{found[1] or 1}e{found[2]}", with_plain_fractions(answer))
    found = _QUANTITY.fullmatch(text)
    if found is None or ("\\" in answer and found["word"] and not found["word"][1:2].isalpha()):
        return None  # `\frac{1}{2} x` is a product
    value, beside = last_number(found["value"]), (found["name"], found["sign"] or found["currency"], found["unit"])
    name, currency, unit = (_bare_text(each or "") for each in beside)
    return None if value is None else (value, name, currency, unit.strip())


def _are_equal(one: _Quantity, other: _Quantity, has_note: bool) -> bool:
    """`50%` is equal to `50`, `0.5` and `1/2`. Names, currencies, degrees and units in `\\text{…}` count if both state one."""
    percent = (one[3] == "%") - (other[3] == "%")
    can_be_left_out = (True, True, has_note or (one[3] + other[3])[:1] in "%°")
    beside = zip(one[1:], other[1:], can_be_left_out, strict=True)
    are_alike = all(own == others or (may and "" in (own, others)) for own, others, may in beside)
    return are_alike and other[0] in (one[0], one[0] / Fraction(100) ** percent)


def _is_formula(answer: str) -> bool:
    return _FORMULA.fullmatch(answer) is not None and _quantity(answer) is None


MATHEMATICS = Check(_expression, _means_expression)
NUMBER = Check(_number, _means_number)
OPTION = Check(lambda text: option_letter(_nfkc(text)), option_match)
ENTITY = Check(_entity, lambda said, truth: normalised_entity(said) == normalised_entity(truth))

CHECKS: Mapping[str, Check] = {
    **dict.fromkeys(("math", "aime_2024"), MATHEMATICS),
    **dict.fromkeys(("gsm8k", "multiplication"), NUMBER),
    **dict.fromkeys(("mmlu", "mmlu_pro", "gpqa"), OPTION),
    "trivia_qa": ENTITY,
}
"""Data set -> its check."""
