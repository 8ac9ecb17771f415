"""What the service takes and gives, with its limits; OpenAPI is made from it. Knows no search and no server."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from midthought.memory.chunks import Chunk
from midthought.memory.search import Hit, SearchMode
from midthought.memory.tool import MAX_QUERY_CHARS

MAX_BODY_BYTES = 256 * 1024
MAX_QUERIES = 64
MAX_K = 100
MAX_NAMES = 50
MAX_NAME_CHARS = 500
MAX_IDS = 500
MAX_PAGE = 1_000
MAX_NEIGHBOURS = 20
MAX_OFFSET = 1_000_000_000


def _plain(text: str) -> str:
    """Raises ValueError for what no transcript holds, and what could not be sent on."""
    if "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ValueError("it holds a NUL or half a surrogate pair")
    return text


def _said(text: str) -> str:
    if not text.strip():
        raise ValueError("it is empty")
    return text


Name = Annotated[str, StringConstraints(max_length=MAX_NAME_CHARS), AfterValidator(_plain)]
QueryText = Annotated[
    str, StringConstraints(min_length=1, max_length=MAX_QUERY_CHARS), AfterValidator(_plain), AfterValidator(_said)
]


class _Given(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True)


class _Choice(_Given):
    k: int = Field(3, ge=1, le=MAX_K)
    """How many results."""
    mode: SearchMode = "hybrid"
    """By words (`full_text`), by meaning (`vector`), or by both."""
    episodes: list[Name] = Field(default_factory=list, max_length=MAX_NAMES)
    """Only what was said in these episodes; none named: in all."""
    speakers: list[Name] = Field(default_factory=list, max_length=MAX_NAMES)
    """Only what was said by these speakers; none named: by all."""


class Query(_Choice):
    """One search."""

    query: QueryText
    """Plain words: no sign in it has power."""


class QueryBatch(_Choice):
    """Several searches that differ in their words."""

    queries: list[QueryText] = Field(min_length=1, max_length=MAX_QUERIES)


class Ids(_Given):
    """Chunks by their ids."""

    ids: list[Name] = Field(max_length=MAX_IDS)


class QuestionChoice(_Given):
    """Which questions are wanted."""

    size: int = Field(32, ge=1, le=MAX_PAGE)
    """How many, where there are so many."""
    shuffle: bool = True
    """Draw them by `seed`, or take them in their order from `offset` on."""
    seed: int | None = Field(None, ge=0, lt=2**63)
    """The same seed draws the same questions; null: a seed is drawn, and told."""
    offset: int = Field(0, ge=0, le=MAX_OFFSET)
    episodes: list[Name] = Field(default_factory=list, max_length=MAX_NAMES)
    """Only questions about these episodes."""
    contains: Name = ""
    """Only those whose question or answer holds these letters, whatever their case."""


class Found(BaseModel):
    """Chunks that a search found, best first."""

    hits: list[Hit]
    seconds: float


class FoundBatch(BaseModel):
    """What was found for each query, in their order."""

    results: list[list[Hit]]
    seconds: float


class Chunks(BaseModel):
    """Chunks, those that are there."""

    chunks: list[Chunk]


class Context(BaseModel):
    """A chunk with those before and after it."""

    chunks: list[Chunk]
    position: int
    """Which of them was asked for."""


class Counted(BaseModel):
    """An episode, or a speaker."""

    name: str
    num_chunks: int


class CountedPage(BaseModel):
    """Episodes, or speakers, in the order of their names."""

    items: list[Counted]
    num_available: int


class Question(BaseModel):
    """A question with its answer and the ids of the chunks that prove it."""

    id: str
    question: str
    answer: str
    episode: str
    evidence: list[str]
    labels: dict[str, Any]


class QuestionBatch(BaseModel):
    """Questions as they were asked for."""

    questions: list[Question]
    num_available: int
    seed: int | None
    """What they were drawn by; null where they come in their order."""


class Stats(BaseModel):
    """What the service holds."""

    table: str
    num_chunks: int
    num_episodes: int
    num_speakers: int
    num_questions: int
    embedding_model: str | None
    embedding_dimension: int | None
    version: str
    max_k: int = MAX_K
    max_query_chars: int = MAX_QUERY_CHARS
    max_queries: int = MAX_QUERIES


class Health(BaseModel):
    """The service lives."""

    status: str = "ok"


class Refusal(BaseModel):
    """Why a request was not answered, in one sentence."""

    detail: str
