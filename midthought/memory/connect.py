"""Opens the memory that a setting names: one that lies somewhere, or one that is served."""

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
    *,
    measures: bool = True,
) -> MemoryStore | RemoteMemory:
    """The memory at `path`: a folder, what LanceDB takes, or `http://HOST:PORT` of `midthought memory serve`.

    A service is asked for its table at once, and embeds by its own model. `measures` as in `load_embedder`. Raises
    MemoryStoreError where it cannot be reached, refuses the token or serves another table.
    """
    if not is_service(str(path)):
        return MemoryStore.open(path, table, load_embedder(embedding_model, measures=measures))
    memory = RemoteMemory(str(path), token_env=token_env)
    try:
        served = memory.stats().get("table")
    except NoReplyError as error:
        reason = str(error).removesuffix("; go on without it")
        words = f"{path}: no service answers there ({reason}); start one with 'midthought memory serve'"
        raise MemoryStoreError(words) from None
    if served != table:
        raise MemoryStoreError(f"{path}: table {served!r} is served there, not {table!r}; set memory.table to it")
    return memory
