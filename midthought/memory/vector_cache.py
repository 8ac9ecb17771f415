"""A cache of vectors by text, in a folder: computed vectors survive a crash. Does not depend on tables.

One file per embedded batch, written atomically under a unique name, so that several processes can write at once and
nothing has to be cleaned up after a killed one.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from midthought.files.atomic import atomic_path
from midthought.files.storage_errors import storage_errors

_DIGEST_BYTES = 16
_MAX_ROWS_PER_FILE = 2**24


class VectorCache:
    """The cached vectors of one embedding model. Files with other contents are ignored, and their texts are embedded again."""

    def __init__(self, folder: Path, model: str, dimension: int) -> None:
        self.dimension = dimension
        readable = re.sub(r"[^\w.-]+", "-", model)[:60]
        self._folder = folder / f"{readable}-{dimension}-{hashlib.sha256(model.encode()).hexdigest()[:8]}"
        self._record = np.dtype([("digest", f"V{_DIGEST_BYTES}"), ("vector", "<f4", (dimension,))])
        self._paths: list[Path] = []
        self._place: dict[bytes, int] = {}  # by digest: index of the file × _MAX_ROWS_PER_FILE + row
        for path in sorted(self._folder.glob("*.npy")):
            if (records := self._open(path)) is not None:
                self._note(path, records)

    def __contains__(self, text: str) -> bool:
        return digest_of(text) in self._place

    def add(self, texts: Sequence[str], vectors: np.ndarray) -> None:
        """Stores vectors, float32 [N, D]; they are on disk when this returns."""
        records = np.zeros(len(texts), dtype=self._record)
        records["digest"] = np.frombuffer(b"".join(map(digest_of, texts)), dtype=f"V{_DIGEST_BYTES}")
        records["vector"] = vectors
        path = self._folder / f"{uuid.uuid4().hex}.npy"
        with storage_errors(self._folder), atomic_path(path) as partial, partial.open("wb") as file:
            file.write(_npy(records))  # an error of `np.save` lacks its number
            file.flush()
            os.fsync(file.fileno())
        self._note(path, records)

    def vectors(self, texts: Sequence[str]) -> np.ndarray:
        """Returns the vectors of cached texts, float32 [N, D]. Raises KeyError."""
        found = np.zeros((len(texts), *self._record["vector"].shape), dtype=np.float32)
        places = np.asarray([self._place[digest_of(text)] for text in texts], dtype=np.int64)
        files, rows = np.divmod(places, _MAX_ROWS_PER_FILE)
        for number in np.unique(files):
            here = files == number
            found[here] = np.load(self._paths[number], mmap_mode="r", allow_pickle=False)["vector"][rows[here]]
        return found

    def clear(self) -> None:
        """Deletes everything, including partial files of killed processes."""
        for path in [*self._paths, *self._folder.glob("*.partial")]:
            path.unlink(missing_ok=True)
        self._paths, self._place = [], {}
        for folder in (self._folder, self._folder.parent):
            with contextlib.suppress(OSError):  # other caches may be in it
                folder.rmdir()

    def _open(self, path: Path) -> Any:
        try:
            records = np.lib.format.open_memmap(path, mode="r")  # reads .npy files only, whatever the name
        except (ValueError, OSError, EOFError):
            return None
        return records if records.dtype == self._record and records.ndim == 1 else None

    def _note(self, path: Path, records: Any) -> None:
        first = len(self._paths) * _MAX_ROWS_PER_FILE
        self._paths.append(path)
        whole = np.ascontiguousarray(records["digest"]).tobytes()
        digests = [whole[start : start + _DIGEST_BYTES] for start in range(0, len(whole), _DIGEST_BYTES)]
        self._place.update(zip(digests, range(first, first + len(digests)), strict=True))


def default_folder(uri: str, table: str, is_local: bool) -> Path:
    """Returns the folder in which a memory's vectors are cached until its table has them."""
    if is_local:
        return Path(uri) / "embeddings"
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "midthought" / "embeddings" / hashlib.sha256(f"{uri} {table}".encode()).hexdigest()[:16]


def _npy(records: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, records, allow_pickle=False)
    return buffer.getvalue()


def digest_of(text: str) -> bytes:
    """Digest that identifies a text."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).digest()
