"""Comparison of an answer with the ground truth: functions of two texts, from 0 to 1.

Time is linear in the texts, except for `mathematical_match`, which runs in a worker process with a time limit.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter

from midthought.data.final_answers import last_boxed, last_number, option_letter
from midthought.env.math_worker_pool import MathWorkerPool

MAX_EXPRESSION_CHARS = 2000
"""A longer mathematical expression equals only itself; of an answer without `\\boxed`, this many final characters are read."""

_ARTICLES = frozenset({"a", "an", "the"})

_process = MathWorkerPool()


def normalised(answer: str) -> str:
    """Returns the answer for comparison: NFKC, case-folded, without punctuation and repeated whitespace."""
    text = unicodedata.normalize("NFKC", answer).casefold()
    return " ".join(re.sub(r"[^\w\s]|_", " ", text).split())


def exact_match(answer: str, truth: str) -> bool:
    """The same words after normalization of case, punctuation and whitespace (`normalised`)."""
    said = normalised(answer)
    return bool(said) and said == normalised(truth)


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


def numeric_match(answer: str, truth: str) -> bool:
    """The last numbers of the two texts are equal, as ratios of integers: `0.5` equals `1/2`, and a product that is off by one is
    wrong. For a tolerance, compare numbers of `data.final_answers.last_number` in a function of your own."""
    said = last_number(answer)
    return said is not None and said == last_number(truth)


def option_match(answer: str, truth: str) -> bool:
    """Both texts choose the same option."""
    said = option_letter(answer)
    return said is not None and said == option_letter(truth)


def mathematical_match(answer: str, truth: str, *, timeout_seconds: float = 5.0, as_wholes: bool = False) -> bool:
    """The answer is mathematically equal to the truth: `0.5` to `\\frac{1}{2}`, `x+1` to `1+x`, `\\{1,2\\}` to `\\{2,1\\}`.

    Compared are the last boxed expressions; a truth without a box is one expression as a whole, an answer without one is
    searched for its last. Not symmetric: `x = 5` and `5` are equal, and the truth decides how the answer is read. `as_wholes`:
    symmetric; no unit is dropped, and an expression that math-verify cannot read in whole equals only itself. False
    after the time limit. It blocks; in an event loop use it through `rewards.matched` or
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
    return _process.are_equal(text, f"\\boxed{{{meant}}}", timeout_seconds, as_wholes=as_wholes)
