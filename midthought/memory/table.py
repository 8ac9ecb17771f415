"""A memory's LanceDB table: opening, locking, writing, updating. Does not depend on an embedding model."""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from midthought.config.references import optional
from midthought.errors import MemoryStoreError, MidthoughtError
from midthought.files.regular import storage_error
from midthought.memory.indices import (
    VERSION_LIFETIME,
    are_behind,
    index_table,
    is_indexed,
    is_wholly_indexed,
    vector_indices,
)
from midthought.memory.rows import is_among, quoted, require_columns

if TYPE_CHECKING:
    import pyarrow as pa

BUILD_REMEDY = "build it with 'midthought memory build'"
_PLACES_IN_RUST = re.compile(r", \S+\.rs:\d+:\d+")
"""Where in its own sources LanceDB noticed an error."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """An open version of the table, with its constant properties."""

    table: Any
    embedding: tuple[str, int] | None
    """Model and dimension, None if there are no rows."""
    is_indexed: bool
    """Whether full-text search works; an interrupted first build may have left the index incomplete."""
    is_large: bool
    """Whether the vectors are indexed: then a small change does not rewrite the table."""
    has_windows: bool = False
    """Whether there are columns for windows."""


class TableLocation:
    """A table of a LanceDB database: `uri` is a folder or a URI that LanceDB accepts (`s3://…`)."""

    def __init__(self, uri: str, name: str) -> None:
        self.uri = uri
        self.name = name
        self.is_local = "://" not in uri
        self._database: Any = None

    def __getstate__(self) -> dict[str, Any]:
        """For another process, which connects to the same location."""
        uri = str(Path(self.uri).absolute()) if self.is_local else self.uri
        return {**vars(self), "uri": uri, "_database": None}

    def check(self) -> None:
        """Raises MemoryStoreError if the location cannot be a memory."""
        if not self.uri.strip():
            raise MemoryStoreError("the path of the memory is empty; give that of a folder")
        if self.uri.lower().startswith(("http://", "https://")):
            raise MemoryStoreError(
                f"{self.uri}: a memory service is only searched; give the path of the memory's folder"
            )
        if self.is_local and Path(self.uri).is_file():
            raise MemoryStoreError(f"{self.uri}: a memory is a folder, but this path is a file; give another path")

    def exists(self) -> bool:
        """Whether the table exists and is complete, not a remainder of an interrupted build."""
        if self.is_local and not Path(self.uri).is_dir():
            return False  # connecting would create the folder
        database = self.connect()
        with self.errors():
            if self.name not in database.list_tables().tables:
                return False
        try:
            database.open_table(self.name)
        except ValueError:
            return False
        return True

    def open(self, *, even_incomplete: bool = False) -> TableSnapshot:
        """Opens the newest version. Raises MemoryStoreError if there is no such table, or it is not a memory.

        A newest version that a build is still indexing, or was when it was killed, is skipped if an older one is complete;
        not with `even_incomplete`, for the next build.
        """
        if not self.exists():
            raise MemoryStoreError(f"{self.uri}: there is no memory (table {self.name!r}); {BUILD_REMEDY}")
        table, where = self.newest(), f"{self.uri} (table {self.name!r})"
        if not even_incomplete:
            _skip_incomplete(table)
        require_columns(table.schema, where)
        embedding = _embedding_of(table, where)
        size = getattr(table.schema.field("vector").type, "list_size", None)
        if embedding and size != embedding[1]:
            raise MemoryStoreError(f"{where}: its vectors have {size} dimensions, not {embedding[1]}; build it again")
        is_large, has_windows = bool(vector_indices(table)), "speakers" in table.schema.names
        return TableSnapshot(table, embedding, is_indexed(table), is_large, has_windows)

    def is_newest(self, opened: TableSnapshot) -> bool:
        """Whether no complete version was written since. Raises MemoryStoreError if the table was deleted.

        A deleted and rebuilt table may have the same version number; then the open files no longer exist.
        """
        with self.errors():
            newest = self.newest()
            _skip_incomplete(newest)
            if newest.version != opened.table.version:
                return False
        try:
            opened.table.search().limit(1).to_arrow()
        except (ValueError, RuntimeError, OSError):
            return False
        return True

    def write(self, batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> None:
        """Replaces the table by these rows and indexes them. If that fails, readers keep the version before."""
        import pyarrow as pa

        database = self.connect()
        mode = "overwrite" if self.exists() else "create"
        table = database.create_table(self.name, pa.RecordBatchReader.from_batches(schema, batches), mode=mode)
        index_table(table)

    def change(self, removed: Sequence[str], batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> None:
        """Inserts rows, replaces those with the same ids, and deletes those with the ids `removed`, in one commit.

        Other processes see all of it or nothing. Then the indices are extended if many rows are not indexed.
        """
        import pyarrow as pa

        table, rows = self.newest(), pa.Table.from_batches(batches, schema)
        if len(rows):
            merge = table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
            (merge.when_not_matched_by_source_delete(is_among("id", removed)) if removed else merge).execute(rows)
        elif removed:
            table.delete(is_among("id", removed))
        if are_behind(table):
            table.optimize(cleanup_older_than=VERSION_LIFETIME)

    def newest(self) -> Any:
        """Returns LanceDB's table, whether its indices are complete or not."""
        return self.connect().open_table(self.name)

    def only_writer(self) -> contextlib.AbstractContextManager[None]:
        """Lets no other process write in the block; waits for one that is writing. Object stores have no lock."""
        return only_writer(Path(self.uri), self.name) if self.is_local else contextlib.nullcontext()

    def connect(self) -> Any:
        """Returns LanceDB's database."""
        if self._database is None:
            # LanceDB reads this when it is imported. Otherwise it warns of every empty partition of an index.
            os.environ.setdefault("LANCEDB_LOG", "error")
            lancedb = optional("lancedb", "memory")
            self.check()
            with self.errors():
                try:
                    self._database = lancedb.connect(self.uri)
                except (ValueError, RuntimeError) as error:  # an unknown scheme or option
                    reason = " ".join(str(error).split())[:500]
                    raise MemoryStoreError(f"{self.uri}: LanceDB cannot reach it: {reason}") from None
        return self._database

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Raises errors of LanceDB, Arrow and the disk in the block as `MemoryStoreError` or `StorageError`, in one sentence."""
        try:
            yield
        except MemoryStoreError as error:
            if self.uri in str(error):
                raise
            raise MemoryStoreError(f"{self.uri}: {error}") from None
        except MidthoughtError:
            raise
        except BaseException as error:
            if found := storage_error(error, self.uri if self.is_local else None):
                raise found from error
            if not _is_of_lance(error):
                raise
            words = str(error).partition("Detail: Python exception")[0]
            reason = _PLACES_IN_RUST.sub("", " ".join(words.split()))[:300]
            raise MemoryStoreError(
                f"{self.uri}: LanceDB cannot read or write the memory ({reason}); if its files are damaged, delete it and "
                f"{BUILD_REMEDY}"
            ) from error


Method = TypeVar("Method", bound=Callable[..., Any])


def in_one_sentence(method: Method) -> Method:
    """Makes a method of an object with a `_location` raise errors as `TableLocation.errors` does."""

    @functools.wraps(method)
    def wrapped(self: Any, *args: Any, **named: Any) -> Any:
        with self._location.errors():
            return method(self, *args, **named)

    return cast(Method, wrapped)


def _is_of_lance(error: BaseException) -> bool:
    """Whether LanceDB or Arrow raised the error. A panic of Rust code is no `Exception`."""
    kind = type(error)
    is_arrow = any(base.__module__.startswith("pyarrow") for base in kind.__mro__)
    return (
        is_arrow
        or kind.__name__ == "PanicException"
        or (isinstance(error, Exception) and "lance" in str(error).lower())
    )


def require_same_embedding(uri: str, stored: tuple[str, int] | None, given: tuple[str, int]) -> None:
    """Raises `MemoryStoreError` if a memory has vectors of another model (name, dimension) than the given one."""
    if stored and stored != given:
        raise MemoryStoreError(
            f"{uri}: the memory was built with {stored[0]} ({stored[1]} dimensions), not with {given[0]} "
            f"({given[1]} dimensions); give the same embedding model, or build in another folder"
        )


def _embedding_of(table: Any, where: str) -> tuple[str, int] | None:
    """Raises MemoryStoreError if the rows come from several models."""
    columns = ["embedding_model", "embedding_dimension"]
    first = table.search().select(columns).limit(1).to_arrow()
    if not len(first):
        return None
    name, dimension = (first[column][0].as_py() for column in columns)
    if table.count_rows(f"embedding_model != {quoted(name)} OR embedding_dimension != {int(dimension)}"):
        raise MemoryStoreError(f"{where} has rows of several embedding models, such as {name}; rebuild it")
    return name, dimension


def _skip_incomplete(table: Any) -> None:
    """Checks out the newest complete version; the newest one if none is complete."""
    if is_wholly_indexed(table):
        return
    for entry in reversed(table.list_versions()[:-1]):
        table.checkout(entry["version"])
        if is_wholly_indexed(table):
            return
    table.checkout_latest()


@contextlib.contextmanager
def only_writer(folder: Path, name: str) -> Iterator[None]:
    """Holds the lock `NAME.lock` in the folder, which is created; at the end the file is removed, and the folder if it is empty.

    Waits, with a logged warning, while another process holds it. Does nothing on file systems without `flock`, and in a folder
    that cannot be written, which a build without changes does not need.
    """
    path = folder / f"{name}.lock"
    descriptor = _locked(path)
    try:
        yield
    finally:
        if descriptor is not None:
            path.unlink(missing_ok=True)
            os.close(descriptor)
            with contextlib.suppress(OSError):  # it holds the memory
                folder.rmdir()


def _locked(path: Path) -> int | None:
    """Returns the descriptor of the locked file; None in a read-only folder."""
    import fcntl

    while True:  # until the file is not one that its last holder removed
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o666)
        except FileNotFoundError:  # the last holder removed the folder
            continue
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) and path.parent.is_dir():
                return None
            raise
        with contextlib.suppress(OSError):  # a file system without locks
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                _log.warning("%s: another process is writing this memory; waiting until it has finished", path.parent)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):
            if os.fstat(descriptor).st_ino == path.stat().st_ino:
                return descriptor
        os.close(descriptor)
