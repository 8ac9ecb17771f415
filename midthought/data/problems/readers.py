"""Reads rows of the data sets: (data set, row, id, seed) -> task. Raises RowError for a row that is no problem."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

from midthought.data.final_answers import last_boxed, last_number, normalised_entity, split_at_mark
from midthought.data.problems.fields import as_text, optional_text, problem_task, text_of, value_of
from midthought.data.problems.prompts import LETTERS
from midthought.data.tasks import RowError
from midthought.types import Task

_CALCULATION = re.compile(r"<<[^<>]*+>>")
_NAMES = ("value", "normalized_value", "matched_wiki_entity_name")
_LISTS = ("aliases", "normalized_aliases")
_RIGHT, _WRONG = "Correct Answer", ("Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")


def read_mathematics(dataset: str, row: Mapping[str, Any], task_id: str, seed: int) -> Task:
    """MATH (`problem`, `solution`, optional `answer`) and AIME (`Problem`, `Answer`). The seed is not used."""
    solution = optional_text(row, "solution")
    answer = optional_text(row, "answer") or (last_boxed(solution) if solution else None)
    if not answer:
        raise RowError("it has neither an answer nor a solution with a \\boxed{} one")
    return problem_task(
        dataset,
        task_id,
        text_of(row, "problem", "question"),
        answer,
        solution=solution,
        subject=optional_text(row, "subject", "type"),
        level=optional_text(row, "level"),
    )


def read_gsm8k(dataset: str, row: Mapping[str, Any], task_id: str, seed: int) -> Task:
    """GSM8K: `question` and `answer`, which is a solution that ends in `#### 18`, or the number alone. The seed is not used.

    Calculator annotations (`<<16-3=13>>`) are removed from the worked solution.
    """
    solution, answer = split_at_mark(text_of(row, "answer"))
    if last_number(answer) is None:
        raise RowError(f"its answer {answer[:60]!r} holds no number")
    worked = _CALCULATION.sub("", solution or "").strip()
    return problem_task(dataset, task_id, text_of(row, "question"), answer, solution=worked or None)


def read_trivia(dataset: str, row: Mapping[str, Any], task_id: str, seed: int) -> Task:
    """TriviaQA: `question` and `answer`, which is a mapping (`value`, `aliases`, …), or a text with a column `aliases`.

    Of names that compare as equal, the first is kept. The seed is not used.
    """
    said = value_of(row, "answer")
    if not isinstance(said, Mapping):
        said = {"value": text_of(row, "answer"), "aliases": value_of(row, "aliases")}
        if said["value"].startswith("{") or as_text(said["aliases"]):
            raise RowError(
                "its answer or aliases are JSON in a text; give a mapping or a list, as JSON Lines and Parquet have"
            )
    answer = text_of(said, *_NAMES)
    listed = (value_of(said, name) for name in _LISTS)
    names = [answer, *(as_text(each) for names in listed if isinstance(names, list | tuple) for each in names)]
    names += [optional_text(said, name) for name in _NAMES]
    different: dict[str, str] = {}
    for name in filter(None, names):
        different.setdefault(normalised_entity(name), name)
    _, *aliases = different.values()
    return problem_task(dataset, task_id, text_of(row, "question"), answer, aliases=aliases)


def read_multiple_choice(dataset: str, row: Mapping[str, Any], task_id: str, seed: int) -> Task:
    """MMLU, MMLU-Pro and ARC: `question`, options in `choices`, `options` or columns A, B, …; `answer` or `answerKey` is a
    letter, an index from 0, or the option's name.

    The options keep the order of the row; the seed is not used.
    """
    options, names = _options(row)
    if not 2 <= len(options) <= len(LETTERS):
        raise RowError(f"it has {len(options)} options; a problem has 2 to {len(LETTERS)}")
    answer = text_of(row, "answer", "answerKey")
    letter = _letter(answer.strip("() ."), len(options), names)
    if letter is None:
        raise RowError(
            f"its answer {answer[:60]!r} is none of its {len(options)} options; give a letter, or an index from 0"
        )
    return problem_task(
        dataset,
        task_id,
        text_of(row, "question"),
        letter,
        options=options,
        solution=optional_text(row, "cot_content", "explanation"),
        subject=optional_text(row, "subject", "category", "type"),
    )


def _options(row: Mapping[str, Any]) -> tuple[list[str], Sequence[str]]:
    """Returns the texts of the options and their names: from a list, ARC's mapping of `text` and `label`, or columns A, B, …"""
    for name in ("choices", "options"):
        value = value_of(row, name)
        texts, names = (value.get("text"), value.get("label")) if isinstance(value, Mapping) else (value, None)
        if isinstance(texts, list | tuple) and None not in (found := list(map(as_text, texts))):
            return [str(text) for text in found], [str(each) for each in names or LETTERS]
    return [said for letter in LETTERS if (said := optional_text(row, letter)) is not None], LETTERS


def _letter(answer: str, num_options: int, names: Sequence[str]) -> str | None:
    """Returns the letter of the option that `answer` names, by name or index from 0; None if it names none."""
    upper = [name.upper() for name in names]
    if answer.upper() in upper:
        place = upper.index(answer.upper())
    else:
        place = int(answer) if answer.isascii() and answer.isdigit() and len(answer) < 3 else -1
    return LETTERS[place] if 0 <= place < min(num_options, len(LETTERS)) else None


def read_gpqa(dataset: str, row: Mapping[str, Any], task_id: str, seed: int) -> Task:
    """GPQA's own columns (`Question`, `Correct Answer`, `Incorrect Answer 1` to `3`, `Explanation`). The options are shuffled by
    the seed and the question, so a row has the same order in every file. Rows with `options` keep their order."""
    right = optional_text(row, _RIGHT)
    if right is None:
        return read_multiple_choice(dataset, row, task_id, seed)
    question = text_of(row, "question")
    options = [right, *(text_of(row, name) for name in _WRONG)]
    order = list(range(len(options)))
    digest = hashlib.sha256(f"{seed}\x1f{question}".encode(errors="replace")).digest()
    random.Random(digest).shuffle(order)
    return problem_task(
        dataset,
        task_id,
        question,
        LETTERS[order.index(0)],
        options=[options[place] for place in order],
        solution=optional_text(row, "Explanation"),
        subject=optional_text(row, "Subdomain", "High-level domain"),
    )
