"""Takes the ground truth out of what a policy is given to read, in the forms that docs/feedback.md lists.

`mask_answer(text, task)` is all that others need. Linear in the text. Knows no critic, no server and no policy.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from midthought.feedback.masking_choice import OptionNames
from midthought.feedback.masking_secret import Secret
from midthought.feedback.masking_tokens import Levelled, tokens_of
from midthought.feedback.problems.fields import OPTIONS_LABEL, QUESTION_LABEL
from midthought.feedback.problems.prompts import LETTERS
from midthought.types import Task

MASK = "[masked]"
_OPTION_LINE = re.compile(r"^[ \t]*\(?([A-J])[).:][ \t]+(\S[^\n]*?)[ \t]*$", re.MULTILINE)
_ONLY_A_LETTER = re.compile(r"[\s$]*(?:\\(?:text|boxed|mathrm|textbf)\{)?\s*\(?([A-J])\)?[.}\s$]*")


def mask_answer(text: str, task: Task) -> str:
    """The text with the task's answer, its aliases and, of a multiple choice, the right option's letter and words masked.

    >>> mask_answer("So x = 42, that is forty-two.", Task(task_id="t", prompt="What is x?", answer="42"))
    'So x = [masked], that is [masked].'
    """
    problem = str(task.labels.get(QUESTION_LABEL) or task.prompt)
    return mask(text, task.answer, task.aliases, problem, _options(task))


def mask(
    text: str, answer: str, aliases: Sequence[str] = (), problem: str = "", options: Mapping[str, str] | None = None
) -> str:
    """The same without a task. `options`: letter -> text, of a multiple choice whose right letter is `answer`."""
    secrets = _secrets(answer, tuple(aliases), problem, tuple((options or {}).items()))
    levelled = Levelled(text)
    tokens = tokens_of(levelled.text)
    spans = sorted(span for secret in secrets for span in secret.spans(levelled.text, tokens))
    pieces: list[str] = []
    place = 0
    for start, end in _merged(levelled.span(*span) for span in spans):
        pieces += (text[place:start], MASK)
        place = end
    return "".join([*pieces, text[place:]])


def is_multiple_choice(task: Task) -> bool:
    """Whether the answer is the letter of one of the options."""
    return bool(_options(task))


def choices_of(task: Task) -> dict[str, str]:
    """Letter -> text of the options: from the label `options`, else from lines `(A) text` of the prompt; empty without."""
    labelled = task.labels.get(OPTIONS_LABEL)
    if isinstance(labelled, Sequence) and not isinstance(labelled, str):
        return dict(zip(LETTERS, map(str, labelled), strict=False))
    found = _OPTION_LINE.findall(task.prompt)
    return dict(found) if "".join(letter for letter, _ in found) == LETTERS[: len(found)] and len(found) > 1 else {}


def _options(task: Task) -> dict[str, str]:
    letter = _ONLY_A_LETTER.fullmatch(task.answer)
    options = choices_of(task) if letter else {}
    return options if letter and letter[1] in options else {}


def _merged(spans: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Sorted spans, those that overlap as one."""
    last: tuple[int, int] | None = None
    for start, end in spans:
        if last is not None and start < last[1]:
            last = (last[0], max(last[1], end))
            continue
        if last is not None:
            yield last
        last = (start, end)
    if last is not None:
        yield last


@lru_cache(maxsize=4096)
def _secrets(
    answer: str, aliases: tuple[str, ...], problem: str, options: tuple[tuple[str, str], ...]
) -> tuple[Secret | OptionNames, ...]:
    """What is to be found in a text: the answer and its aliases, or the right option's names and words."""
    found = _ONLY_A_LETTER.fullmatch(answer)
    if found is None:
        return (Secret((answer, *aliases), problem),)
    letter = found[1]
    if not options:  # they stand somewhere in the problem
        return (OptionNames(letter, LETTERS.index(letter), len(LETTERS), problem),)
    letters = [each for each, _ in options]
    question = _OPTION_LINE.sub("", problem)
    others = "\n".join(text for each, text in options if each != letter)
    names = OptionNames(letter, letters.index(letter), len(letters), f"{question}\n{others}")
    return names, Secret((dict(options)[letter],), question)
