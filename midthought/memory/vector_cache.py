"""Vectors by the texts they stand for, in a folder: what was computed once is there after a crash. Knows no table.

A file for each part that was embedded, named by its content; it appears whole or not at all, so that several processes
may write at once and none has to clean up after another that was killed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

_DIGEST_BYTES = 16
_MAX_ROWS_PER_FILE = 2**24


class VectorCache:
    """The vectors of one embedding model. Files that hold something else are passed over, and their texts embedded anew."""

    def __init__(self, folder: Path, model: str, dimension: int) -> None:
        readable = re.sub(r"[^\w.-]+", "-", model)[:60]
        self._folder = folder / f"{readable}-{dimension}-{hashlib.sha256(model.encode()).hexdigest()[:8]}"
        self._record = np.dtype([("digest", f"V{_DIGEST_BYTES}"), ("vector", "<f4", (dimension,))])
        self._paths: list[Path] = []
        self._place: dict[bytes, int] = {}  # of a digest: number of its file × _MAX_ROWS_PER_FILE + row
        for path in sorted(self._folder.glob("*.npy")):
            if (records := self._open(path)) is not None:
                self._note(path, records)

    def __contains__(self, text: str) -> bool:
        return digest_of(text) in self._place

    def __len__(self) -> int:
        return len(self._place)

    def add(self, texts: Sequence[str], vectors: np.ndarray) -> None:
        """Keep these vectors, float32 [N, D]; when this returns, they are on the disk."""
        records = np.zeros(len(texts), dtype=self._record)
        records["digest"] = np.frombuffer(b"".join(map(digest_of, texts)), dtype=f"V{_DIGEST_BYTES}")
        records["vector"] = vectors
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{uuid.uuid4().hex}.npy"
        partial = path.with_suffix(".partial")
        try:
            with partial.open("wb") as file:
                np.save(file, records, allow_pickle=False)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)
        self._note(path, records)

    def vectors(self, texts: Sequence[str]) -> np.ndarray:
        """The vectors of texts that are there, float32 [N, D]. Raises KeyError."""
        found = np.zeros((len(texts), *self._record["vector"].shape), dtype=np.float32)
        places = np.asarray([self._place[digest_of(text)] for text in texts], dtype=np.int64)
        files, rows = np.divmod(places, _MAX_ROWS_PER_FILE)
        for number in np.unique(files):
            here = files == number
            found[here] = np.load(self._paths[number], mmap_mode="r", allow_pickle=False)["vector"][rows[here]]
        return found

    def clear(self) -> None:
        """Forget and delete everything, also what killed processes left half written."""
        for path in [*self._paths, *self._folder.glob("*.partial")]:
            path.unlink(missing_ok=True)
        self._paths, self._place = [], {}
        for folder in (self._folder, self._folder.parent):
            with contextlib.suppress(OSError):  # others keep theirs there
                folder.rmdir()

    def _open(self, path: Path) -> Any:
        try:
            records = np.load(path, mmap_mode="r", allow_pickle=False)
        except (ValueError, OSError, EOFError):
            return None
        return records if records.dtype == self._record and records.ndim == 1 else None

    def _note(self, path: Path, records: Any) -> None:
        first = len(self._paths) * _MAX_ROWS_PER_FILE
        self._paths.append(path)
        whole = np.ascontiguousarray(records["digest"]).tobytes()
        digests = [whole[start : start + _DIGEST_BYTES] for start in range(0, len(whole), _DIGEST_BYTES)]
        self._place.update(zip(digests, range(first, first + len(digests)), strict=True))


def digest_of(text: str) -> bytes:
    """What a text is known by."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).digest()
