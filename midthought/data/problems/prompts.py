"""The prompt of a problem: question, options and the requested form of the answer, which `answers.extract` reads."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence

from midthought.errors import DataError, near_names

LETTERS = string.ascii_uppercase[:10]

_BOXED = "Reason step by step, and put your final answer within \\boxed{}."
_NUMBER = "Reason step by step, and put your final answer, a number alone, within \\boxed{}."
_LETTER = "Reason step by step, and put the letter of the right option within \\boxed{}."
_ENTITY = "Put your final answer, as short as it can be, within \\boxed{}."

ASKED: Mapping[str, str] = {
    "math": _BOXED,
    "aime_2024": "Reason step by step, and put your final answer, an integer from 0 to 999, within \\boxed{}.",
    "gsm8k": _NUMBER,
    "multiplication": _NUMBER,
    "hex": "Reason step by step, and put your final answer, in base 16, within \\boxed{}.",
    "mmlu": _LETTER,
    "mmlu_pro": _LETTER,
    "gpqa": _LETTER,
    "trivia_qa": _ENTITY,
}
"""Data set -> last paragraph of its prompts."""


def prompt_of(dataset: str, question: str, options: Sequence[str] = ()) -> str:
    """The user message: the question, the options as lines `(A) …`, and the form of the answer.

    Raises DataError for an unknown data set.
    """
    if dataset not in ASKED:
        raise DataError(f"unknown data set {dataset!r}. {near_names(dataset, ASKED)}")
    listed = "\n".join(f"({letter}) {option}" for letter, option in zip(LETTERS, options, strict=False))
    return "\n\n".join(filter(None, (question.strip(), listed, ASKED[dataset])))
