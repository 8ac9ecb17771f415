"""Opens the memory that a setting names: a local or stored table, or a memory service."""

from __future__ import annotations

from pathlib import Path

from midthought.errors import MemoryStoreError, NoReplyError
from midthought.memory.embedding import load_embedder
from midthought.memory.remote import RemoteMemory, is_service
from midthought.memory.store import MemoryStore


def open_memory(
    path: str | Path,
    table: str = "transcripts",
    embedding_model: str = "minilm",
    token_env: str | None = None,
) -> MemoryStore | RemoteMemory:
    """Returns the memory at `path`: a folder, a URI that LanceDB accepts, or `http://HOST:PORT` of `midthought memory
    serve`.

    A service is contacted at once and embeds with its own model.
    Raises MemoryStoreError if the service cannot be reached, refuses the token or serves
    another table.
    """
    if not is_service(str(path)):
        return MemoryStore.open(path, table, load_embedder(embedding_model))
    memory = RemoteMemory(str(path), token_env=token_env)
    try:
        served = memory.stats().table
    except NoReplyError as error:
        raise MemoryStoreError(f"no service answers at this address: {error}") from None
    if served != table:
        shown = f"{served!r:.60}"
        raise MemoryStoreError(f"{path}: the service has table {shown}, not {table!r}; set memory.table={shown}")
    return memory
