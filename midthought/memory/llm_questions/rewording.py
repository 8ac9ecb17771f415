"""Questions in other words than the passages: finds words that both share, and has the model word the question again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from midthought.memory.chunks import Chunk
from midthought.memory.llm_questions.prompts import REWORD, REWORD_SCHEMA
from midthought.memory.llm_questions.structured_output import StructuredOutputModel
from midthought.memory.llm_questions.verification import Pair, Verdict
from midthought.memory.rule_questions.english import FUNCTION_WORDS
from midthought.memory.rule_questions.speech import plain_words

NUM_SHARED_WORDS = 3
"""A question and its passages have no run of this many content words in common."""
NUM_REWORDINGS = 2


class ContentRuns:
    """The runs of `NUM_SHARED_WORDS` content words of passages. Known function words are English: of other languages, all words
    count."""

    def __init__(self, chunks: Iterable[Chunk]) -> None:
        self._runs = set(_runs(" ".join(chunk.transcript for chunk in chunks)))

    def shared(self, text: str) -> list[str]:
        """Returns the runs of the text that the passages have, too, in order."""
        return [" ".join(run) for run in _runs(text) if run in self._runs]


def _runs(text: str) -> list[tuple[str, ...]]:
    words = [word.removesuffix("'s") for word in plain_words(text)]
    content = [word for word in words if word not in FUNCTION_WORDS]
    return list(zip(*(content[start:] for start in range(NUM_SHARED_WORDS)), strict=False))


async def reworded(pair: Pair, runs: ContentRuns, model: StructuredOutputModel) -> Pair:
    """Returns the pair with a question that shares no run with the passages: as it is, or worded again, at most
    `NUM_REWORDINGS` times; refused if that does not suffice. Raises NoReplyError."""
    avoid: Sequence[str] = runs.shared(pair.question)
    for _ in range(NUM_REWORDINGS if avoid else 0):
        material = {"question": pair.question, "answer": pair.answer, "avoid": list(avoid)}
        reply = await model.ask(REWORD, material, REWORD_SCHEMA, max_tokens=512)
        pair = replace(pair, question=" ".join(reply["question"].split()) or pair.question)
        avoid = runs.shared(pair.question)
        if not avoid:
            return pair
    return replace(pair, verdict=Verdict(problem=f"it repeats its passages ({avoid[0]})")) if avoid else pair
