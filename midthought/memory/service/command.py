"""`midthought memory serve`: opens a memory and serves it until a signal arrives. Does not depend on the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from midthought.config.references import require_installed
from midthought.errors import MemoryStoreError
from midthought.memory.embedding import load_embedder
from midthought.memory.questions import read_questions
from midthought.memory.service.auth import AccessPolicy
from midthought.memory.service.searcher import MAX_BATCH_SIZE, ServiceState, stored_questions
from midthought.memory.store import MemoryStore


def serve(
    path: str,
    embedding_model: str = "minilm",
    *,
    questions: Path | None = None,
    host: str = "127.0.0.1",
    port: int = 8100,
    token_env: str | None = None,
    max_batch_size: int = MAX_BATCH_SIZE,
    tell: Callable[[str], None] = print,
) -> None:
    """Serves the memory at `path` until SIGINT or SIGTERM; requests in progress are answered first.

    Questions come from the file, else from the memory's own table `questions`. Later builds are served after a restart.

    Raises SettingsError if the address is not loopback and no token is set, or the port cannot be opened,
    MemoryStoreError if there is no memory, MissingExtraError without the extra `serve`.
    """
    access = AccessPolicy.of(host, token_env)
    require_installed("serve", "fastapi", "uvicorn")
    from midthought.memory.service.app import make_app
    from midthought.memory.service.server import address, listen, make_server, run

    with listen(host, port) as listening:  # before the model is loaded, which takes seconds; requests wait for it
        embedder = load_embedder(embedding_model)
        store = MemoryStore.open(path, embedder=embedder)
        if not store.is_built:
            raise MemoryStoreError(f"{path}: there is no memory; build it with 'midthought memory build'")
        known = read_questions(questions) if questions else stored_questions(path)
        state = ServiceState(store, embedder, known, max_batch_size)
        state.searcher.warm()
        tell(f"{path}: {state.num_chunks:,} chunks, {len(state.questions):,} questions, at {address(listening)}")
        run(make_server(make_app(state, access)), listening)
