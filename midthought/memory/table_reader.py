"""Which version of a memory's table is open, and how it is read while other processes write. Does not depend on an embedding
model."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from midthought.memory.indices import is_wholly_indexed, warm_vector_index
from midthought.memory.table import TableLocation, TableSnapshot, require_same_embedding

Result = TypeVar("Result")


class TableReader:
    """Keeps the version open that the table has at the first call. Safe from many threads."""

    def __init__(self, location: TableLocation) -> None:
        self.location = location
        self._opened: TableSnapshot | None = None
        self._lock = threading.Lock()

    @property
    def is_built(self) -> bool:
        """Whether the table exists."""
        return self._opened is not None or self.location.exists()

    def snapshot(self) -> TableSnapshot:
        """Returns the open version: later writes are not seen. Raises MemoryStoreError if there is no table."""
        opened = self._opened
        if opened is not None:
            return opened
        with self._lock:
            if self._opened is None:
                self._opened = self.location.open()
            return self._opened

    def read(self, read: Callable[[TableSnapshot], Result]) -> Result:
        """Calls `read` with the open version; if that fails because the version was removed, with the newest one."""
        opened = self.snapshot()
        try:
            return read(opened)
        except (ValueError, RuntimeError, OSError):
            if self.location.is_newest(opened):
                raise
            self.refresh()
            return read(self.snapshot())

    def refresh(self) -> None:
        """Makes later calls see what was written since."""
        self._opened = None

    def follow(self, embedding: tuple[str, int] | None) -> bool:
        """Switches to the newest version once it is complete. Returns True if there was one.

        Searches in progress finish in the previous version. Raises MemoryStoreError if the table was deleted, or has another
        embedding than the given one (model, dimension); the previous version then stays open.
        """
        opened = self.snapshot()
        if self.location.is_newest(opened):
            return False
        newest = self.location.open()
        if not is_wholly_indexed(newest.table):  # a build is writing
            return False
        if embedding is not None:
            require_same_embedding(self.location.uri, newest.embedding, embedding)
        warm_vector_index(newest.table)
        self._opened = newest
        return True
