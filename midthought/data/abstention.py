"""What a policy says if a question has no answer, and which texts mean that."""

from __future__ import annotations

import re
from dataclasses import replace

from midthought.types import Task

UNANSWERABLE = "unanswerable"
"""The label `kind` of a question without an answer."""
NO_ANSWER = "The memory does not say."
"""The truth of an unanswerable question."""
OTHER_WORDINGS = (
    "It does not say.", "I do not know.", "I don't know.", "Unknown.", "No answer.", "Unanswerable.", "Not mentioned.", "Nobody.",
    "The memory doesn't say.", "The memory has no answer.", "There is no answer.",
)  # fmt: skip
"""Its aliases."""


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
