"""The state that the service's routes use, and polling for later builds. Does not depend on HTTP."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from midthought.errors import MemoryStoreError
from midthought.memory.embedding import Embedder
from midthought.memory.service.browse import FacetCounts, QuestionTable
from midthought.memory.service.searcher import Searcher, SearchLimits
from midthought.memory.store import MemoryStore
from midthought.types import Task

FOLLOW_SECONDS = 10.0
"""Interval at which the service looks for a new version."""

_log = logging.getLogger(__name__)


class ServiceState:
    """A memory and its questions. `store` must have been opened with this embedder."""

    def __init__(
        self,
        store: MemoryStore,
        embedder: Embedder,
        questions: Sequence[Task] | QuestionTable = (),
        limits: SearchLimits | None = None,
    ) -> None:
        self.store = store
        self.facets = FacetCounts.read(store)
        self._are_facets_stale = False
        self._stored: QuestionTable | None = None
        if isinstance(questions, QuestionTable):
            self._stored, questions = questions, questions.changed() or ()
        self.questions = questions
        self.searcher = Searcher(store, embedder, limits)

    def follow(self) -> bool:
        """Switches to a new version of the chunks, and of the memory's own questions. Returns True if there was one.

        Raises MemoryStoreError if it cannot be served (`MemoryStore.follow`). A failure is repeated by the next call.
        """
        chunks_changed = self._are_facets_stale = self.store.follow() or self._are_facets_stale
        if chunks_changed:
            self.facets = FacetCounts.read(self.store)
            self._are_facets_stale = False
        changed = self._stored.changed() if self._stored else None
        if changed is not None:
            self.questions = changed
        return chunks_changed or changed is not None

    async def poll(self, seconds: float = FOLLOW_SECONDS) -> None:
        """Calls `follow` repeatedly. A lasting error is logged once, and tried again."""
        logged = ""
        while True:
            await asyncio.sleep(seconds)
            try:
                if await self.searcher.run(self.follow):
                    _log.info("%s: %d chunks now", self.store.uri, self.facets.num_chunks)
                logged = ""
            except (MemoryStoreError, ValueError, RuntimeError, OSError) as error:  # errors of LanceDB
                if str(error) != logged:
                    _log.warning("%s; the previous version is still served", error)
                    logged = str(error)
