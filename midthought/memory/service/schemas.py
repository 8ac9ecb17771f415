"""Requests and responses of the service, with their limits; OpenAPI is generated from them. Does not depend on search
or the server."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from midthought.memory.chunks import Chunk
from midthought.memory.search import Filters, Hit, SearchMode
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
    """Raises ValueError for characters that no transcript has and that cannot be encoded."""
    if "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ValueError("it has a NUL or a lone surrogate")
    return text


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("it is empty")
    return text


Name = Annotated[str, StringConstraints(max_length=MAX_NAME_CHARS), AfterValidator(_plain)]
Clock = Annotated[str, StringConstraints(pattern=r"^\d{1,3}:\d{2}(:\d{2})?$")]
QueryText = Annotated[
    str, StringConstraints(min_length=1, max_length=MAX_QUERY_CHARS), AfterValidator(_plain), AfterValidator(_not_blank)
]


class _Given(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True)


class _Choice(_Given):
    k: int = Field(3, ge=1, le=MAX_K)
    """Number of results."""
    mode: SearchMode = "hybrid"
    """By words (`full_text`), by meaning (`vector`), or both."""
    episodes: list[Name] = Field(default_factory=list, max_length=MAX_NAMES)
    """Only these episodes; empty: all."""
    speakers: list[Name] = Field(default_factory=list, max_length=MAX_NAMES)
    """Only these speakers; empty: all. A window matches if one of its speakers does."""
    after: Clock | None = None
    """`HH:MM:SS`: only chunks with a sentence at or after it in the episode."""
    before: Clock | None = None
    """`HH:MM:SS`: only chunks whose first sentence is before it in the episode."""

    def filters(self) -> Filters:
        """Returns the filters of the search."""
        return Filters.of(self.episodes, self.speakers, self.after, self.before)


class Query(_Choice):
    """One search."""

    query: QueryText
    """Plain text, without query syntax."""
    thought: Annotated[str, StringConstraints(max_length=MAX_QUERY_CHARS), AfterValidator(_plain)] = ""
    """Text that is embedded after the query; full-text search ignores it."""


class QueryBatch(_Choice):
    """Several searches with the same options."""

    queries: list[QueryText] = Field(min_length=1, max_length=MAX_QUERIES)


class Ids(_Given):
    """Ids of chunks."""

    ids: list[Name] = Field(max_length=MAX_IDS)


class QuestionChoice(_Given):
    """Selection of questions."""

    size: int = Field(32, ge=1, le=MAX_PAGE)
    """Maximum number of questions."""
    shuffle: bool = True
    """Sample with `seed`, or take them in order from `offset`."""
    seed: int | None = Field(None, ge=0, lt=2**63)
    """The same seed selects the same questions; null: a random seed, which is returned."""
    offset: int = Field(0, ge=0, le=MAX_OFFSET)
    episodes: list[Name] = Field(default_factory=list, max_length=MAX_NAMES)
    """Only questions about these episodes."""
    contains: Name = ""
    """Only questions whose question or answer contains this text, ignoring case."""


class Found(BaseModel):
    """Chunks that a search found, best first."""

    hits: list[Hit]
    seconds: float


class FoundBatch(BaseModel):
    """Hits for each query, in order."""

    results: list[list[Hit]]
    seconds: float


class Chunks(BaseModel):
    """The chunks that exist."""

    chunks: list[Chunk]


class Context(BaseModel):
    """A chunk with its neighbours."""

    chunks: list[Chunk]
    position: int
    """Index of the requested chunk."""


class Counted(BaseModel):
    """An episode or a speaker."""

    name: str
    num_chunks: int


class CountedPage(BaseModel):
    """Episodes or speakers, ordered by name."""

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
    """The selected questions."""

    questions: list[Question]
    num_available: int
    seed: int | None
    """Seed of the sample; null if they are in order."""


class Stats(BaseModel):
    """Contents of the memory and limits of a search."""

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
    """The service is running."""

    status: str = "ok"


class Refusal(BaseModel):
    """Why a request was rejected, in one sentence."""

    detail: str
