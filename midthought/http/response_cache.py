"""Cache of model replies in one SQLite file, by the hash of the request.

Stored replies survive a killed process, and processes can share the file. `diskcache` would store pickles, which a shared file
must not contain, so this small table is our own.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

from midthought.errors import SettingsError
from midthought.http.json_requests import Reply

WAIT_SECONDS = 5.0
"""Time to wait for a file that another process has locked."""


class ReplyCache:
    """Without a path it is in memory. Raises `SettingsError` if the file cannot be opened."""

    def __init__(self, path: str | Path | None) -> None:
        self._lock = threading.Lock()
        self.num_errors = 0
        """Replies that could not be read or stored (full disk, locked file); they are requested again."""
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
