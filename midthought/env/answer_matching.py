"""Comparison of an answer with the ground truth: functions of two texts, from 0 to 1, and extraction of answers.

Time is linear in the texts, except for `edit_similarity` (see there) and `mathematical_match`, which runs in a worker process
with a time limit.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict, deque
from fractions import Fraction

from midthought.env.math_worker_pool import MathWorkerPool
from midthought.env.reasoning import matches, normalised

MAX_NUMBER_CHARS = 300
"""A longer run of digits is not read as a number."""
MAX_EXPRESSION_CHARS = 2000
"""A longer mathematical expression equals only itself; of an answer without `\\boxed`, this many final characters are read."""

_ARTICLES = frozenset({"a", "an", "the"})

_FRACTION = re.compile(r"(\d?)\\[dt]?frac\s*+\{(\d++)\}\s*+\{(\d++)\}")
_DIGITS = r"(?:(?<!\d,)\d{1,3}(?:,\d{3})++(?!\d)|\d++)"
_NUMBER = re.compile(
    rf"""
    (?P<minus>(?<![\w)\]}}])[-−])?  # in "5-3" the hyphen is no sign
    [$€£¥]?
    (?<!\w)(?<!\d\.)                # neither in a word nor in a number
    (?:(?P<whole>\d{{1,4}})[ ](?=\d{{1,4}}/\d))?
    (?P<number>(?:{_DIGITS}(?:\.\d++)?|\.\d++)(?:[eE][-+]?\d{{1,3}}(?!\d))?)
    (?:[ ]?/[ ]?(?P<divisor>{_DIGITS}(?:\.\d++)?))?
    """,
    re.VERBOSE,
)

_BOXED_OR_BRACE = re.compile(r"(?P<boxed>\\?\\boxed\s*+\{)|\\[{}\\]|(?P<brace>[{}])")

_ONLY_A_NUMBER = re.compile(r"\s*+[-+−]?[$€£]?[-−]?(?:\d[\d,]*+(?:\.\d++)?|\.\d++)%?\s*+")
_COMMAND = re.compile(r"\\[a-zA-Z]++")
_ONLY_A_LETTER = re.compile(r"\W*+([A-Ja-j])(?:\W*+$|[)\]}.:])")
_STATED_LETTERS = tuple(
    re.compile(
        rf"""
        (?i:\b(?:{trigger}))(?i:\s++(?:is|option|choice)){{0,2}}+\s*+[:=]?
        [\s*_$(\[{{"'“]*+(?:\\(?:boxed|text|textbf|mathrm|mathbf)\s*+\{{[\s*$(]*+){{0,3}}+
        ([A-HJ](?![\w'’-]) | I(?![\w'’-]|\s[a-z]) | (?<=\()[a-j](?=\)))
        """,
        re.VERBOSE,
    )
    for trigger in ("answer", "option|choice")
)

_process = MathWorkerPool()


def exact_match(answer: str, truth: str) -> bool:
    """The same words after normalization of case, punctuation and whitespace (`reasoning.normalised`)."""
    return matches(answer, (truth,))


def answer_match(answer: str, truth: str) -> bool:
    """`numeric_match` if the truth is a number, else `exact_match`.

    >>> answer_match("It is $1,250.", "1250"), answer_match("5", "-5"), answer_match("Ada.", "ada")
    (True, False, True)
    """
    return numeric_match(answer, truth) if _ONLY_A_NUMBER.fullmatch(truth) else exact_match(answer, truth)


def fuzzy_match(answer: str, truth: str) -> float:
    """F1 of the words that the two have in common, each counted as often as it occurs (SQuAD, arXiv:1606.05250, 6.1).

    `2PR / (P + R)` with P the share of the answer's words that the truth has, R the share of the truth's. Articles do not
    count, as in SQuAD; other than there, punctuation parts words, and a text of articles alone keeps them.
    """
    said, meant = _content_words(answer), _content_words(truth)
    num_common = (Counter(said) & Counter(meant)).total()
    return 2 * num_common / (len(said) + len(meant)) if num_common else 0.0


def _content_words(text: str) -> list[str]:
    words = normalised(text).split()
    return [word for word in words if word not in _ARTICLES] or words


def edit_similarity(answer: str, truth: str) -> float:
    """`1 - d / n`: d the Levenshtein distance of the normalised texts, n the length of the longer; 0 if one is empty.

    An answer of 10⁵ characters costs milliseconds against a short truth, and some seconds against one as long as itself.
    """
    said, meant = normalised(answer), normalised(truth)
    if not said or not meant:
        return 0.0
    return 1.0 - _edit_distance(said, meant) / max(len(said), len(meant))


def _edit_distance(first: str, second: str) -> int:
    """Levenshtein distance, a column of its table per step as the bits of an integer (Myers 1999; Hyyrö 2003, fig. 9)."""
    if len(first) > len(second):
        first, second = second, first
    if not first:
        return len(second)
    places: dict[str, int] = defaultdict(int)
    for index, character in enumerate(first):
        places[character] |= 1 << index
    last, full = 1 << (len(first) - 1), (1 << len(first)) - 1
    rises, falls, distance = full, 0, len(first)
    for character in second:
        equal = places.get(character, 0)
        diagonal = (((equal & rises) + rises) ^ rises) | equal | falls
        rises_across = falls | (full & ~(diagonal | rises))
        falls_across = rises & diagonal
        distance += bool(rises_across & last) - bool(falls_across & last)
        rises_across = (rises_across << 1) | 1
        falls = rises_across & diagonal & full
        rises = full & ((falls_across << 1) | ~(diagonal | rises_across))
    return distance


def last_number(text: str) -> Fraction | None:
    """The last number of a text, exactly: `-1,234.50`, `.5`, `3/4`, `1 1/2`, `2e3`, `$5`, `\\frac{3}{4}`; None without one.

    Digits of any script count. Digits that follow a letter (`x2`) are no number; units and per cent signs are left out.
    Also None if the last number divides by zero or is longer than `MAX_NUMBER_CHARS`.
    """
    text = _FRACTION.sub(_plain_fraction, text.replace("{,}", ",").replace(",\\!", ","))
    found = next(iter(deque(_NUMBER.finditer(text), maxlen=1)), None)
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


def _plain_fraction(found: re.Match[str]) -> str:
    digit_before, numerator, denominator = found.groups()
    return f"{digit_before} {numerator}/{denominator}" if digit_before else f"{numerator}/{denominator}"


def numeric_match(answer: str, truth: str, *, relative_tolerance: float = 0.0, absolute_tolerance: float = 0.0) -> bool:
    """The last numbers of the two texts are equal: `|a - b| <= max(relative · max(|a|, |b|), absolute)`.

    Exact by default, as ratios of integers: `0.5` equals `1/2`, and a product that is off by one is wrong.
    """
    said, meant = last_number(answer), last_number(truth)
    if said is None or meant is None:
        return False
    allowed = max(Fraction(relative_tolerance) * max(abs(said), abs(meant)), Fraction(absolute_tolerance))
    return abs(said - meant) <= allowed


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


def option_match(answer: str, truth: str) -> bool:
    """Both texts choose the same option."""
    said = option_letter(answer)
    return said is not None and said == option_letter(truth)


def mathematical_match(answer: str, truth: str, *, timeout_seconds: float = 5.0) -> bool:
    """The answer is mathematically equal to the truth: `0.5` to `\\frac{1}{2}`, `x+1` to `1+x`, `\\{1,2\\}` to `\\{2,1\\}`.

    Compared are the last boxed expressions; a truth without a box is one expression as a whole, an answer without one is
    searched for its last. Not symmetric: `x = 5` and `5` are equal, and the truth decides how the answer is read. False
    after the time limit (`num_math_failures` counts these). It blocks; in an event loop use it through `rewards.matched` or
    `rewards.in_thread`. Raises `MissingExtraError` if math-verify is not installed.
    """
    said, meant = last_boxed(answer), last_boxed(truth)
    meant = truth.strip() if meant is None else meant
    if not meant or not answer.strip():
        return False
    if meant == (answer.strip() if said is None else said):
        return True
    if len(meant) > MAX_EXPRESSION_CHARS or len(said or "") > MAX_EXPRESSION_CHARS:
        return False
    text = answer[-MAX_EXPRESSION_CHARS:] if said is None else f"\\boxed{{{said}}}"
    return _process.are_equal(text, f"\\boxed{{{meant}}}", timeout_seconds)


def num_math_failures() -> int:
    """Returns how many comparisons of `mathematical_match` in this process timed out or lost their worker."""
    return _process.num_failures
