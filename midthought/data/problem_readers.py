"""Reads rows of the data sets: (row, seed) -> problem, and writes the prompt of a problem. Raises RowError for a row that is no
problem.

Also generates products of two five-digit numbers.
"""

from __future__ import annotations

import hashlib
import math
import random
import re
import string
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from midthought.data.final_answers import last_boxed, last_number, normalised_entity, numbers_in, split_at_mark
from midthought.data.rows import Row, RowError, plain
from midthought.errors import DataError, near_names

NUM_DIGITS = 5
LETTERS = string.ascii_uppercase[:10]

_BOXED = "Reason step by step, and put your final answer within \\boxed{}."
_NUMBER = "Reason step by step, and put your final answer, a number alone, within \\boxed{}."
_LETTER = "Reason step by step, and put the letter of the right option within \\boxed{}."

ASKED: Mapping[str, str] = {
    "math": _BOXED,
    "aime_2024": "Reason step by step, and put your final answer, an integer from 0 to 999, within \\boxed{}.",
    **dict.fromkeys(("gsm8k", "multiplication"), _NUMBER),
    **dict.fromkeys(("mmlu", "mmlu_pro", "gpqa"), _LETTER),
    "trivia_qa": "Put your final answer, as short as it can be, within \\boxed{}.",
}
"""Data set -> last paragraph of its prompts."""
_FACTORS = re.compile(r"(?<!\w)(\d[\d,]*+)\s*+[*×x]\s*+(\d[\d,]*+)(?!\w)")
_CALCULATION = re.compile(r"<<[^<>]*+>>")
_NAMES = ("value", "normalized_value", "matched_wiki_entity_name")
_LISTS = ("aliases", "normalized_aliases")


class Problem(NamedTuple):
    """One problem of a data set."""

    question: str
    """Without options."""
    answer: str
    aliases: Sequence[str] = ()
    options: Sequence[str] = ()
    solution: str | None = None
    """Worked solution."""
    subject: str | None = None
    level: str | None = None


def read_mathematics(row: Mapping[str, Any], seed: int) -> Problem:
    """MATH (`problem`, `solution`, optional `answer`) and AIME (`Problem`, `Answer`)."""
    solution = optional_text(row, "solution")
    answer = optional_text(row, "answer") or (last_boxed(solution) if solution else None)
    if not answer:
        raise RowError("it has neither an answer nor a solution with a \\boxed{} one")
    subject, level = optional_text(row, "subject", "type"), optional_text(row, "level")
    return Problem(text_of(row, "problem", "question"), answer, solution=solution, subject=subject, level=level)


def read_gsm8k(row: Mapping[str, Any], seed: int) -> Problem:
    """GSM8K: `question` and `answer`, which is a solution that ends in `#### 18`, or the number alone.

    Calculator annotations (`<<16-3=13>>`) are removed from the worked solution.
    """
    solution, answer = split_at_mark(text_of(row, "answer"))
    if last_number(answer) is None or len([*numbers_in(answer)]) > 1:
        raise RowError(f"its answer {answer[:60]!r} is no number; a worked solution ends in a line '#### 18'")
    worked = _CALCULATION.sub("", solution or "").strip()
    return Problem(text_of(row, "question"), answer, solution=worked or None)


def read_trivia(row: Mapping[str, Any], seed: int) -> Problem:
    """TriviaQA: `question` and `answer`, which is a mapping (`value`, `aliases`, …), or a text with a column `aliases`.

    Of names that compare as equal, the first is kept.
    """
    said = value_of(row, "answer")
    if not isinstance(said, Mapping):
        said = {"value": text_of(row, "answer"), "aliases": value_of(row, "aliases")}
        if said["value"].startswith("{") or as_text(said["aliases"]):
            remedy = "give a mapping or a list, as in JSON Lines or Parquet"
            raise RowError(f"its answer or aliases are JSON in a text; {remedy}")
    answer = text_of(said, *_NAMES)
    listed = (value_of(said, name) for name in _LISTS)
    names = [answer, *(as_text(each) for names in listed if isinstance(names, list | tuple) for each in names)]
    names += [optional_text(said, name) for name in _NAMES]
    different: dict[str, str] = {}
    for name in filter(None, names):
        different.setdefault(normalised_entity(name), name)
    _, *aliases = different.values()
    return Problem(text_of(row, "question"), answer, aliases)


def read_multiple_choice(row: Mapping[str, Any], seed: int) -> Problem:
    """MMLU and MMLU-Pro: `question`, perhaps `context`, options in `choices`, `options` or columns A, B, …; `answer` is a letter,
    or an index from 0. ARC: `choices` with `text` and `label`; `answerKey` is one of the labels. The options keep their order.
    """
    names, texts = _options(row)
    if not 2 <= len(texts) <= len(LETTERS):
        read = f"of `choices`, `options` or A, B, … (its columns are {', '.join(map(str, row))!r:.200})"
        raise RowError(f"it has {len(texts)} options {read}; a problem has 2 to {len(LETTERS)}")
    if len({*names}) != len(texts):
        raise RowError(f"its {len(texts)} options have the names {', '.join(names)}; give each its own")
    answer = text_of(row, "answer", "answerKey")
    name, has_index = _name(answer), names == list(LETTERS[: len(names)])
    is_index = name.isdecimal() and has_index
    place = int(name[:9]) if is_index else names.index(name) if name in names else len(names)
    is_text = is_index and not isinstance(value_of(row, "answer"), int | float)
    names_two = is_text and place < len(names) and answer in {*texts} - {texts[place]}
    if place >= len(names) or names_two:
        problem = "names one and is the text of another" if names_two else f"is none of its {len(names)} options"
        remedy = f"give one of {', '.join(names)}" + ", or as a number an index from 0" * has_index
        raise RowError(f"its answer {answer[:60]!r} {problem}; {remedy}")
    solution = optional_text(row, "cot_content", "explanation")
    subject = optional_text(row, "subject", "category", "type")
    question = "\n\n".join(filter(None, (optional_text(row, "context"), text_of(row, "question"))))
    return Problem(question, LETTERS[place], options=texts, solution=solution, subject=subject)


def _options(row: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Returns the names and the texts of the options: from a list, a mapping (ARC's, or one of letters), or columns A, B, …"""
    for given in (value_of(row, "choices"), value_of(row, "options")):
        if not isinstance(given, Mapping):
            given = {"text": given}
        elif "text" not in given:
            given = {"label": [*given], "text": [*given.values()]}
        texts, labels = plain(given["text"]), plain(given.get("label"))
        if isinstance(texts, list | tuple) and None not in (found := list(map(as_text, texts))):
            names = labels if isinstance(labels, list | tuple) else LETTERS[: len(found)]
            return list(map(_name, names)), list(map(str, found))
    columns = {letter: said for letter in LETTERS if (said := optional_text(row, letter)) is not None}
    return list(columns), list(columns.values())


def _name(written: Any) -> str:
    """Returns the name of an option: `(b)` and `B.` are `B`."""
    return str(written).strip("() .").upper()


def read_gpqa(row: Mapping[str, Any], seed: int) -> Problem:
    """GPQA's own columns (`Question`, `Correct Answer`, `Incorrect Answer 1` to `3`, `Explanation`). The options are shuffled by
    the seed and the question, so a row has the same order in every file. Rows with `options` keep their order."""
    right = optional_text(row, "Correct Answer")
    if right is None:
        return read_multiple_choice(row, seed)
    question = text_of(row, "question")
    options = [right, *(text_of(row, f"Incorrect Answer {number}") for number in (1, 2, 3))]
    order = list(range(len(options)))
    digest = hashlib.sha256(f"{seed}\x1f{question}".encode(errors="replace")).digest()
    random.Random(digest).shuffle(order)
    return Problem(
        question,
        LETTERS[order.index(0)],
        options=[options[place] for place in order],
        solution=optional_text(row, "Explanation"),
        subject=optional_text(row, "Subdomain", "High-level domain"),
    )


def read_product(row: Mapping[str, Any], seed: int) -> Problem:
    """`question`, `answer` and perhaps `Explanation`. Raises RowError if the answer is not the product of the two numbers in the
    question."""
    question, answer = text_of(row, "question"), text_of(row, "answer")
    found = _FACTORS.search(question)
    if found is None:
        raise RowError(f"its question {question[:60]!r} names no product, as in '12345 * 67890'")
    first, second = (int(factor.replace(",", "")) for factor in found.groups())
    if answer.replace(",", "") != str(first * second):
        raise RowError(f"its answer is {answer[:60]!r}, the product is {first * second}")
    return Problem(question, answer, solution=optional_text(row, "Explanation"))


def product_rows(num_rows: int, seed: int) -> Iterator[Row]:
    """Rows with products of two random numbers of `NUM_DIGITS` digits; no product occurs twice."""
    draw = random.Random(f"multiplication:{seed}")
    seen: set[tuple[int, int]] = set()
    while len(seen) < num_rows:
        first, second = (draw.randrange(10 ** (NUM_DIGITS - 1), 10**NUM_DIGITS) for _ in range(2))
        if (first, second) not in seen:
            seen.add((first, second))
            question, answer = f"Calculate the following question: {first} * {second}.", str(first * second)
            yield Row(f"multiplication-{seed}", "row", len(seen), {"question": question, "answer": answer})


def prompt_of(dataset: str, question: str, options: Sequence[str] = ()) -> str:
    """The user message: the question, the options as lines `(A) …`, and the form of the answer, which `answers.extract` reads.

    Raises DataError for an unknown data set.
    """
    if dataset not in ASKED:
        raise DataError(f"unknown data set {dataset!r}. {near_names(dataset, ASKED)}")
    listed = "\n".join(f"({letter}) {option}" for letter, option in zip(LETTERS, options, strict=False))
    return "\n\n".join(filter(None, (question.strip(), listed, ASKED[dataset])))


# -- fields of a row -----------------------------------------------------------------------------------------------


def text_of(row: Mapping[str, Any], *names: str) -> str:
    """The text of the first column of these names that has one, ignoring the case of the names; numbers as digits.

    Raises RowError if there is none.
    """
    found = optional_text(row, *names)
    if found is None:
        raise RowError(f"it has no {' or '.join(map(repr, names))}; it has: {', '.join(map(str, row)) or 'nothing'}")
    return found


def optional_text(row: Mapping[str, Any], *names: str) -> str | None:
    """The same; None if there is none."""
    return next((said for name in names if (said := as_text(value_of(row, name))) is not None), None)


def value_of(row: Mapping[str, Any], name: str) -> Any:
    """The value of a column, ignoring the case of its name; None without the column. Arrays become lists, their scalars
    numbers."""
    columns = {str(column).casefold(): column for column in reversed(list(row))}
    return plain(row.get(name if name in row else columns.get(name.casefold(), "")))


def as_text(value: Any) -> str | None:
    """A text without blanks around it, or a number as digits; None for anything else, and for a blank text."""
    if isinstance(value, bool) or (isinstance(value, float) and not math.isfinite(value)):
        return None
    if isinstance(value, int | float):
        return str(int(value)) if value == int(value) else str(value)
    return value.strip() or None if isinstance(value, str) else None
