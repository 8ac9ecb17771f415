"""Reads the final answer in a text: the last number, box or option, GSM8K's `####`, or that there is none. Does not depend on
data sets.

Every search is linear in the text.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

from midthought.types import Task

MAX_NUMBER_CHARS = 300
"""A longer run of digits is not read as a number."""

_FRACTION = re.compile(r"(\d?)\\[cdt]?frac\s*+(?:\{(-?)(\d++)\}|(\d))\s*+(?:\{(-?)(\d++)\}|(\d))(?!\d)")
FRACTION_SIGNS = {
    place: "\\frac{{{}}}{{{}}}".format(*unicodedata.normalize("NFKC", chr(place)).split("⁄"))
    for place in (*range(0xBC, 0xBF), *range(0x2150, 0x215F))
}
"""For `str.translate`: `¾` becomes `\\frac{3}{4}`."""
_DIGITS = r"(?:(?<!\d,)\d{1,3}(?:,\d{3})++(?!\d)|\d++)"
NUMBER_PATTERN = re.compile(
    rf"""
    (?P<minus>(?<![\w)\]}}])[-−])?  # in "5-3" the hyphen is no sign
    (?P<currency>[$€£¥]?)
    (?<!\w)(?<!\d\.)                # neither in a word nor in a number
    (?:(?P<whole>\d{{1,4}})[ ](?=\d{{1,4}}/\d))?
    (?P<number>(?:{_DIGITS}(?:\.\d++)?|\.\d++)(?:[eE][-+]?\d{{1,3}}(?!\d))?)
    (?:[ ]?/[ ]?(?P<divisor>{_DIGITS}(?:\.\d++)?))?
    """,
    re.VERBOSE,
)

_BOXED_OR_BRACE = re.compile(r"(?P<boxed>\\?\\boxed\s*+\{)|\\[{}\\]|(?P<brace>[{}])")

_ONLY_A_NUMBER = re.compile(rf"\s*+[-+−]?[$€£]?[-−]?(?:{_DIGITS}(?:\.\d++)?|\.\d++)%?\s*+")
_COMMAND = re.compile(r"\\[a-zA-Z]++")
_ONLY_A_LETTER = re.compile(r"\W*+([A-Ja-j])(?:\W*+$|[)\]}.:])")
_STATED_LETTERS = tuple(
    re.compile(
        rf"""
        (?i:\b(?:{trigger}))(?i:\s++(?:is|option|choice)){{0,2}}+\s*+[:=]?
        [\s*_$(\[{{"'“]*+(?:\\(?:boxed|text|textbf|mathrm|mathbf)\s*+\{{[\s*$(]*+){{0,3}}+
        ([A-HJ](?![\w'’+#-]) | I(?![\w'’+#-]|\s[a-z]) | (?<=\()[a-j](?=\)))
        """,
        re.VERBOSE,
    )
    for trigger in ("answer", "option|choice")
)
_ARTICLES = frozenset({"a", "an", "the"})
_QUOTES = "‘’´`“”"
_TO_BLANKS = str.maketrans(dict.fromkeys(string.punctuation + _QUOTES, " "))
UNANSWERABLE = "unanswerable"
"""The label `kind` of a question without an answer."""
NO_ANSWER = "The memory does not say."
"""The truth of an unanswerable question."""
OTHER_WORDINGS = (
    "It does not say.", "I do not know.", "I don't know.", "Unknown.", "No answer.", "Unanswerable.", "Not mentioned.", "Nobody.",
    "The memory doesn't say.", "The memory has no answer.", "There is no answer.",
)  # fmt: skip
"""Its aliases."""


def split_at_mark(text: str) -> tuple[str | None, str]:
    """Returns the worked solution and the answer of a text in GSM8K's form, `solution #### answer`, split at the last mark.

    Without a mark, the solution is None and the answer is the text. The answer has no blanks around it.
    """
    solution, mark, answer = text.rpartition("####")
    return (solution if mark else None), answer.strip()


def is_number(text: str) -> bool:
    """Whether a text is one number, with a sign, currency, separators or per cent sign, that `last_number` can read.

    >>> is_number("-$1,250.50"), is_number("5 dollars"), is_number("1/2")
    (True, False, False)
    """
    return _ONLY_A_NUMBER.fullmatch(text) is not None and last_number(text) is not None


def last_number(text: str) -> Fraction | None:
    """The last number of a text, exactly: `-1,234.50`, `.5`, `3/4`, `1 1/2`, `2e3`, `$5`, `\\frac{3}{4}`; None without one.

    Digits of any script count. Digits that follow a letter (`x2`) are no number; units and per cent signs are left out.
    Also None if the last number divides by zero or is longer than `MAX_NUMBER_CHARS`.
    """
    found = next(iter(deque(numbers_in(text), maxlen=1)), None)
    if found is None or found.end() - found.start() > MAX_NUMBER_CHARS:
        return None
    value = Fraction(found["number"].replace(",", ""))
    if found["divisor"]:
        divisor = Fraction(found["divisor"].replace(",", ""))
        if not divisor:
            return None
        value /= divisor
    value += int(found["whole"] or 0)
    return -value if found["minus"] else value


def numbers_in(text: str) -> Iterator[re.Match[str]]:
    """Returns the matches of `NUMBER_PATTERN`, in order."""
    return NUMBER_PATTERN.finditer(with_plain_fractions(text.replace("{,}", ",").replace(",\\!", ",")))


def with_plain_fractions(text: str) -> str:
    """Replaces `\\frac{3}{4}` with `3/4`, `1\\frac34` and `1¾` with `1 3/4`, `\\frac{-3}{4}` with `-3/4`."""
    text = text.translate(FRACTION_SIGNS)
    return _FRACTION.sub(
        lambda found: "{0}{1}{4}{2}{3}/{5}{6}".format(found[1] and f"{found[1]} ", *found.groups("")[1:]), text
    )


def last_boxed(text: str) -> str | None:
    """Returns the content of the last `\\boxed{…}` with balanced braces (not counting `\\{` and `\\}`); None if there is none."""
    open_braces: list[int | None] = []
    best: tuple[int, int] | None = None
    for token in _BOXED_OR_BRACE.finditer(text):
        if token["boxed"]:
            open_braces.append(token.end())
        elif token["brace"] == "{":
            open_braces.append(None)
        elif token["brace"] == "}" and open_braces:
            start = open_braces.pop()
            if start is not None and (best is None or start > best[0]):
                best = (start, token.start())
    return None if best is None else text[best[0] : best[1]].strip()


def option_letter(text: str) -> str | None:
    """Returns the letter, A to J, of the option that a text chooses; None if it chooses none.

    The first that is found of: a letter in the last `\\boxed{…}`; the last `answer is (B)` or the like; the last `option: B` or
    the like; a last line that is a letter or begins with one as options do (`B`, `(b)`, `B. Paris`).
    """
    boxed = _ONLY_A_LETTER.match(_COMMAND.sub(" ", last_boxed(text) or ""))
    if boxed:
        return boxed[1].upper()
    for pattern in _STATED_LETTERS:
        if stated := pattern.findall(text):
            return stated[-1].upper()
    alone = _ONLY_A_LETTER.match(text.strip().rpartition("\n")[2])
    return alone[1].upper() if alone else None


def normalised_entity(text: str) -> str:
    """TriviaQA's normal form: lower case, punctuation as blanks, no articles, single blanks (arXiv:1705.03551).

    A text that is only articles or punctuation keeps them, so that "The The" and "?" can be answers.
    """
    plain = unicodedata.normalize("NFKC", text).casefold()
    words = plain.translate(_TO_BLANKS).split()
    return " ".join([word for word in words if word not in _ARTICLES] or words or plain.split())


def is_answerable(task: Task) -> bool:
    """Whether the memory has an answer to a task's question. Tasks from files have been through `as_unanswerable`."""
    return task.answer != NO_ANSWER


def as_unanswerable(task: Task) -> Task:
    """Returns the task; one without an answer, by its label `kind` or its truth (whose case and punctuation do not count), with
    this label, `NO_ANSWER` and its aliases.

    `is_answerable` recognizes it by its truth from then on: rewards read no labels.
    """
    if task.labels.get("kind") != UNANSWERABLE and _plain(str(task.answer)) != _plain(NO_ANSWER):
        return task
    aliases = tuple(dict.fromkeys((task.answer, *task.aliases, *OTHER_WORDINGS)))
    return replace(
        task,
        answer=NO_ANSWER,
        aliases=tuple(each for each in aliases if each != NO_ANSWER),
        labels={**task.labels, "kind": UNANSWERABLE},
    )


def abstains(answer: str) -> bool:
    """Whether an answer says that there is none, in one of the known wordings; case and punctuation do not count."""
    return _plain(answer) in _WORDINGS


def _plain(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.lower()))


_WORDINGS = frozenset(map(_plain, (NO_ANSWER, *OTHER_WORDINGS)))
