"""TriviaQA: a question, and an answer that goes by many names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from midthought.feedback.answers import normalised_entity
from midthought.feedback.problems.fields import list_of, mapping_of, optional_text, problem_task, text_of, value_of
from midthought.types import Task

_NAMES = ("value", "normalized_value", "matched_wiki_entity_name")
_LISTS = ("aliases", "normalized_aliases")


def read_trivia(dataset: str, row: Mapping[str, Any], task_id: str, seed: int) -> Task:
    """`question` and `answer`: TriviaQA's mapping (`value`, `aliases`, …), or a text with `aliases` beside it.

    Of names that are compared alike, the first is kept. The seed changes nothing.
    """
    said = mapping_of(value_of(row, "answer"))
    if said is None:
        said = {"value": text_of(row, "answer"), "aliases": value_of(row, "aliases")}
    answer = text_of(said, *_NAMES)
    names = [answer, *(each for name in _LISTS for each in list_of(said.get(name)) or ())]
    names += [each for name in _NAMES if (each := optional_text(said, name))]
    different: dict[str, str] = {}
    for name in names:
        different.setdefault(normalised_entity(name), name)
    _, *aliases = different.values()
    return problem_task(dataset, task_id, text_of(row, "question"), answer, aliases=aliases)
