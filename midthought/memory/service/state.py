"""What the service's routes speak to, and how it keeps up with what builds write. Knows no HTTP."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from midthought.errors import MemoryStoreError
from midthought.memory.service.browse import FacetCounts, QuestionSet, QuestionTable
from midthought.memory.service.metrics import Metrics
from midthought.memory.service.searcher import PrecomputedQueryEmbedder, Searcher, SearchLimits
from midthought.memory.store import MemoryStore
from midthought.types import Task

FOLLOW_SECONDS = 10.0
"""How often a service looks for what was written since."""

_log = logging.getLogger(__name__)


class ServiceState:
    """A memory, its questions and its metrics. `store` must have been opened with `vectors` as its embedder."""

    def __init__(
        self,
        store: MemoryStore,
        vectors: PrecomputedQueryEmbedder,
        questions: Sequence[Task] | QuestionTable = (),
        limits: SearchLimits | None = None,
    ) -> None:
        self.store = store
        self.facets = FacetCounts.read(store)
        self._are_facets_stale = False
        self._stored: QuestionTable | None = None
        if isinstance(questions, QuestionTable):
            self._stored, questions = questions, questions.changed() or ()
        self.questions = QuestionSet(questions, store)
        self.metrics = Metrics()
        self.searcher = Searcher(store, vectors, limits, self.metrics.observe)
        self.metrics.watch(lambda: self.searcher.num_under_way, lambda: self.facets.num_chunks)

    def follow(self) -> bool:
        """See what was written since: chunks, and questions where they are the memory's own. True where there was anything.

        Raises MemoryStoreError where that cannot be served (`MemoryStore.follow`). What fails is made up for by the next call.
        """
        chunks_changed = self._are_facets_stale = self.store.follow() or self._are_facets_stale
        if chunks_changed:
            self.facets = FacetCounts.read(self.store)
            self._are_facets_stale = False
        changed = self._stored.changed() if self._stored else None
        if changed is not None:
            self.questions = QuestionSet(changed, self.store)
        return chunks_changed or changed is not None

    async def poll(self, seconds: float = FOLLOW_SECONDS) -> None:
        """`follow`, again and again. What stands in the way is logged once, and tried again."""
        told = ""
        while True:
            await asyncio.sleep(seconds)
            try:
                if await self.searcher.run(self.follow):
                    _log.info("%s: %d chunks now", self.store.uri, self.facets.num_chunks)
                told = ""
            except (MemoryStoreError, ValueError, RuntimeError, OSError) as error:  # those of LanceDB
                if str(error) != told:
                    _log.warning("%s; served on as it was", error)
                    told = str(error)
