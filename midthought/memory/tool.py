"""The tools with which a model searches the memory while it reasons, and reads on around a result."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator

from midthought.errors import NoReplyError, SettingsError
from midthought.memory.chunks import Chunk, each_word_once, neighbour_ids, with_speakers
from midthought.memory.remote import RemoteMemory
from midthought.memory.search import MAX_QUERY_CHARS, FilterOptions, Hit, SearchMode
from midthought.memory.store import MemoryStore
from midthought.tools.definition import Tool, ToolDefinition, ToolOutput, ToolParameter

TOOL_NAME = "memory_retrieval"
MAX_RESULTS = 10
NOTHING_FOUND = "Nothing found."
NOTHING_WITH_FILTERS = (
    "Nothing found within the episode, speaker and times given; names must be exact, or leave them out."
)
_THOUGHT_TAG = re.compile(r"</?think>")
_NO_LINE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
FILTERS = {
    "episode": "Only this episode, by its exact title.",
    "speaker": "Only what this person says, by the exact name.",
    "after": "Only what is said at or after this time of an episode, HH:MM:SS.",
    "before": "Only what is said before this time of an episode, HH:MM:SS.",
}
"""Parameters of the tool that restrict a search."""
OPEN_NAME = "memory_open"
MAX_NEIGHBOURS = 5


class MemoryRetrievalTool(Tool):
    """`memory_retrieval(query, k)`: returns one line per chunk found; `metadata["chunk_ids"]` has their ids.

    The memory is local or a service (`RemoteMemory`); results are the same. `k` is the default number of results (1 to
    10). With `has_filters` the model may restrict a search (`episode`, `speaker`, `after`, `before`); with `shows_ids`
    every line begins with the chunk's id, for `MemoryOpenTool`.
    The last `thought_words` words of the thought before a call are embedded after its query (as AgentIR does, with a
    retriever trained for it); full-text search ignores them.
    """

    pure = True
    max_concurrency = 16  # searches are CPU-bound: more at once would only slow each one down

    def __init__(
        self,
        store: MemoryStore | RemoteMemory,
        k: int = 3,
        mode: SearchMode = "hybrid",
        *,
        has_filters: bool = False,
        shows_ids: bool = False,
        thought_words: int = 0,
    ) -> None:
        if thought_words < 0:
            raise SettingsError(f"thought_words must be 0 or more, not {thought_words}")
        if not 1 <= k <= MAX_RESULTS:
            raise SettingsError(f"k must be from 1 to {MAX_RESULTS}, not {k}")
        filters = FILTERS if has_filters else {}
        self.definition = ToolDefinition(
            TOOL_NAME,
            "Searches the transcripts of the podcast and returns what was said, by whom, in which episode and when.",
            [
                ToolParameter("query", "string", "The words to look for: a quote, a name or a subject."),
                ToolParameter("k", "integer", f"How many results, 1 to {MAX_RESULTS}.", required=False, default=k),
                *(ToolParameter(name, "string", words, required=False) for name, words in filters.items()),
            ],
        )
        if isinstance(store, RemoteMemory):
            self.max_concurrency = store.max_concurrency
        self._store = store
        self._k = k
        self._mode: SearchMode = mode
        self._shows_ids = shows_ids
        self._thought_words = thought_words
        self.reads_thought = thought_words > 0

    def execute(
        self,
        *,
        query: str,
        k: int | None = None,
        episode: str | None = None,
        speaker: str | None = None,
        after: str | None = None,
        before: str | None = None,
        thought: str = "",
    ) -> ToolOutput:
        """Searches. Raises ValueError, which is shown to the model, if the query is empty or too long, `k` is out of range,
        or a time is none."""
        k = self._k if k is None else k
        if not query.strip():
            raise ValueError("query is empty")
        if len(query) > MAX_QUERY_CHARS:
            raise ValueError(f"query is longer than {MAX_QUERY_CHARS:,} characters")
        if not 1 <= k <= MAX_RESULTS:
            raise ValueError(f"k must be from 1 to {MAX_RESULTS}")
        plain = " ".join(query.split())
        last_words = _THOUGHT_TAG.sub(" ", thought).split()[-self._thought_words :] if self._thought_words else []
        thought = " ".join(last_words)[-MAX_QUERY_CHARS:]  # a service accepts no longer ones
        filters: FilterOptions = {"after": after or None, "before": before or None}
        filters |= {"episodes": [episode] if episode else [], "speakers": [speaker] if speaker else []}
        try:
            with _in_words_for_the_model():
                hits = self._store.search(plain, k, self._mode, thought=thought, **filters)
        except SettingsError as error:
            raise ValueError(str(error)) from None
        text = format_hits(hits, shows_ids=self._shows_ids)
        if not hits and (episode or speaker or after or before):
            text = NOTHING_WITH_FILTERS
        return ToolOutput(text, {"chunk_ids": [hit.chunk_id for hit in hits]})


@contextlib.contextmanager
def _in_words_for_the_model() -> Iterator[None]:
    """Leaves out a service's address, which differs between machines, and the remedy, which is for the user."""
    try:
        yield
    except NoReplyError as error:
        words = str(error).partition(": ")[2].rpartition("; ")[0]
        raise NoReplyError(f"{words}; go on without it", is_passing=error.is_passing) from error


def format_hits(hits: Iterable[Hit | Chunk], *, shows_ids: bool = False) -> str:
    """Formats results for the model, one numbered line each."""
    lines = (_with_id(hit) if shows_ids else format_chunk(hit) for hit in hits)
    return "\n".join(f"[{number}] {line}" for number, line in enumerate(lines, 1)) or NOTHING_FOUND


def _with_id(chunk: Hit | Chunk) -> str:
    """Control characters and line breaks of an id, which could begin a line of their own, are blanks in what a model reads."""
    return f"id: {_NO_LINE.sub(' ', chunk.chunk_id)}; {format_chunk(chunk)}"


def format_chunk(chunk: Hit | Chunk) -> str:
    """`speaker: Ines Marlowe; episode: The Tide Clock; 00:01:37: So we have ...`. In a window of several turns every turn
    begins with its speaker, and with its time if that is half a minute after the last one: `episode: The Tide Clock; 00:01:37:
    Ines Marlowe: So we have ... Odile (00:02:12): Yes.`"""
    speaker = "" if len(chunk.turns) > 1 else f"speaker: {chunk.speaker}; "
    return f"{speaker}episode: {chunk.episode}; {chunk.time}: {with_speakers(chunk)}"


class MemoryOpenTool(Tool):
    """`memory_open(id, num_neighbours)`: returns a chunk with the chunks before and after it, one line each, in order.

    The id is one that a search with `MemoryRetrievalTool(…, shows_ids=True)` has shown. Words that two windows share are
    returned once. `metadata["chunk_ids"]` has the ids of all returned chunks.
    """

    pure = True

    def __init__(self, store: MemoryStore | RemoteMemory) -> None:
        self.definition = ToolDefinition(
            OPEN_NAME,
            "Returns a result of a search with what was said before and after it.",
            [
                ToolParameter("id", "string", "The id of the result."),
                ToolParameter(
                    "num_neighbours",
                    "integer",
                    f"How many chunks before and after it, 1 to {MAX_NEIGHBOURS}.",
                    required=False,
                    default=3,
                ),
            ],
        )
        self._store = store

    def execute(self, *, id: str, num_neighbours: int = 3) -> ToolOutput:
        """Raises ValueError, which is shown to the model, for an unknown id or a number out of range."""
        if not 1 <= num_neighbours <= MAX_NEIGHBOURS:
            raise ValueError(f"num_neighbours must be from 1 to {MAX_NEIGHBOURS}")
        with _in_words_for_the_model():
            chunk = self._store.get([id]).get(id)
        if chunk is None:
            raise ValueError(f"no chunk has the id {id!r}; give the id of a search result")
        with _in_words_for_the_model():
            around = self._store.get(neighbour_ids(chunk, num_neighbours)) | {id: chunk}
        chunks = sorted((each for each in around.values() if each.stem == chunk.stem), key=lambda each: each.number)
        lines = [_with_id(each) for each in each_word_once(chunks) if each.transcript]
        return ToolOutput("\n".join(lines), {"chunk_ids": [each.chunk_id for each in chunks]})
