"""The tool with which a model reads on around a result of a search."""

from __future__ import annotations

from midthought.memory.chunks import each_word_once, neighbour_ids
from midthought.memory.remote import RemoteMemory
from midthought.memory.store import MemoryStore
from midthought.memory.tool import format_chunk
from midthought.tools.definition import Tool, ToolDefinition, ToolOutput, ToolParameter

OPEN_NAME = "memory_open"
MAX_NEIGHBOURS = 5


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
        chunk = self._store.get([id]).get(id)
        if chunk is None:
            raise ValueError(f"no chunk has the id {id!r}; give the id of a search result")
        around = self._store.get(neighbour_ids(chunk, num_neighbours)) | {id: chunk}
        chunks = sorted((each for each in around.values() if each.stem == chunk.stem), key=lambda each: each.number)
        lines = [f"id: {each.chunk_id}; {format_chunk(each)}" for each in each_word_once(chunks) if each.transcript]
        return ToolOutput("\n".join(lines), {"chunk_ids": [each.chunk_id for each in chunks]})
