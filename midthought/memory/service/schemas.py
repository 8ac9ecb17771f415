"""Requests and responses of the service, with their limits; OpenAPI is generated from them. Does not depend on search
or the server."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from midthought.memory.chunks import Chunk
from midthought.memory.search import MAX_QUERY_CHARS, Filters, Hit, SearchMode

MAX_BODY_BYTES = 256 * 1024
MAX_K = 100
MAX_NAMES = 50
MAX_NAME_CHARS = 500
MAX_IDS = 500
MAX_QUESTIONS = 1_000


def _plain(text: str) -> str:
    """Raises ValueError for characters that no transcript has and that cannot be encoded."""
    if "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ValueError("it has a NUL or a lone surrogate")
    return text


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("it is empty")
    return text


Name = Annotated[str, StringConstraints(max_length=MAX_NAME_CHARS), AfterValidator(_plain)]
QueryText = Annotated[
    str, StringConstraints(min_length=1, max_length=MAX_QUERY_CHARS), AfterValidator(_plain), AfterValidator(_not_blank)
]


class _Given(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True)


class Query(_Given):
    """One search."""

    query: QueryText
    """Plain text, without query syntax."""
    k: int = Field(3, ge=1, le=MAX_K)
    """Number of results."""
    mode: SearchMode = "hybrid"
    """By words (`full_text`), by meaning (`vector`), or both."""
    episodes: list[Name] = Field(default_factory=list, max_length=MAX_NAMES)
    """Only these episodes; empty: all."""
    speakers: list[Name] = Field(default_factory=list, max_length=MAX_NAMES)
    """Only these speakers; empty: all. A window matches if one of its speakers does."""

    def filters(self) -> Filters:
        """Returns the filters of the search."""
        return Filters.of(self.episodes, self.speakers)


class Ids(_Given):
    """Ids of chunks."""

    ids: list[Name] = Field(max_length=MAX_IDS)


class QuestionChoice(_Given):
    """Selection of questions."""

    size: int = Field(32, ge=1, le=MAX_QUESTIONS)
    """Maximum number of questions."""
    shuffle: bool = True
    """Sample with `seed`, or take the first ones."""
    seed: int | None = Field(None, ge=0, lt=2**63)
    """The same seed selects the same questions; null: a random seed, which is returned."""


class _Reply(BaseModel):
    """Validated by the client, too, so that it reads values of these types only."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class Found(_Reply):
    """Chunks that a search found, best first."""

    hits: list[Hit]
    seconds: float


class Chunks(_Reply):
    """The chunks that exist."""

    chunks: list[Chunk]


class Question(BaseModel):
    """A question with its answer and the ids of the chunks that prove it."""

    id: str
    question: str
    answer: str
    episode: str
    evidence: list[str]
    labels: dict[str, Any]


class QuestionBatch(BaseModel):
    """The selected questions."""

    questions: list[Question]
    seed: int | None
    """Seed of the sample; null if they are in order."""


class Stats(_Reply):
    """Contents of the memory and limits of a search."""

    table: str
    num_chunks: int = Field(ge=0)
    num_episodes: int
    num_speakers: int
    num_questions: int
    embedding_model: str | None
    embedding_dimension: int | None
    version: str
    max_k: int = MAX_K
    max_query_chars: int = MAX_QUERY_CHARS


class Refusal(BaseModel):
    """Why a request was rejected, in one sentence."""

    detail: str
