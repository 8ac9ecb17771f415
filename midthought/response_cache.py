"""Replies of a model by the hash of the whole request, in one SQLite file. Knows nothing of what they mean.

What was put stays, also where the process is killed; several processes may share a file.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

from midthought.errors import SettingsError
from midthought.http_json import Reply

WAIT_SECONDS = 5.0
"""How long another process may hold the file."""


class ReplyCache:
    """Without a path it lasts as long as the process. Raises SettingsError where the file cannot be opened."""

    def __init__(self, path: str | Path | None) -> None:
        self._lock = threading.Lock()
        self.num_errors = 0
        """Replies that could not be read or kept (a full disk, a locked file); they were asked for or lost instead."""
        try:
            if path is not None:
                Path(path).parent.mkdir(parents=True, exist_ok=True)
            self._file = sqlite3.connect(path or ":memory:", timeout=WAIT_SECONDS, check_same_thread=False)
            weakref.finalize(self, self._file.close)
            with self._file:
                self._file.execute("PRAGMA journal_mode = WAL")
                self._file.execute("PRAGMA synchronous = NORMAL")
                self._file.execute(
                    "CREATE TABLE IF NOT EXISTS replies (key TEXT PRIMARY KEY, text TEXT NOT NULL, finish_reason TEXT NOT NULL)"
                )
                self._file.execute("SELECT key, text, finish_reason FROM replies LIMIT 1")
        except (sqlite3.Error, OSError) as error:
            raise SettingsError(
                f"the cache of replies {path} cannot be used: {error}; give another path, or remove that file"
            ) from None

    def get(self, key: str) -> Reply | None:
        with self._counted(), self._lock:
            row = self._file.execute("SELECT text, finish_reason FROM replies WHERE key = ?", (key,)).fetchone()
            return Reply(*row) if row else None
        return None

    def put(self, key: str, reply: Reply) -> None:
        with self._counted(), self._lock, self._file:
            self._file.execute("INSERT OR REPLACE INTO replies VALUES (?, ?, ?)", (key, *reply))

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error:
            self.num_errors += 1
