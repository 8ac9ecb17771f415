"""What a policy says if a question has no answer, and which texts mean that."""

from __future__ import annotations

import re

UNANSWERABLE = "unanswerable"
"""The label `kind` of a question without an answer."""
NO_ANSWER = "The memory does not say."
"""The truth of an unanswerable question."""
OTHER_WORDINGS = (
    "It does not say.", "I do not know.", "I don't know.", "Unknown.", "No answer.", "Unanswerable.", "Not mentioned.", "Nobody.",
    "The memory doesn't say.", "The memory has no answer.", "There is no answer.",
)  # fmt: skip
"""Its aliases."""


def abstains(answer: str) -> bool:
    """Whether an answer says that there is none, in one of the known wordings; case and punctuation do not count."""
    return _plain(answer) in _WORDINGS


def _plain(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.lower()))


_WORDINGS = frozenset(map(_plain, (NO_ANSWER, *OTHER_WORDINGS)))
