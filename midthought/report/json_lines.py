"""An append-only file of JSON objects, one per line, that can be truncated to the state of a checkpoint.

Does not depend on the meaning of the lines.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import numbers
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from midthought.errors import CheckpointError
from midthought.files.regular import json_object, lines_of


class JsonLines:
    """A file of JSON lines. When `append` returns, the data is with the operating system.

    A last line without line feed was left by a killed process and counts as not written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._num_lines: int | None = None
        self._num_bytes = 0
        self._digest = hashlib.sha256()

    @property
    def num_lines(self) -> int:
        """Number of complete lines; 0 without a file."""
        if self._num_lines is None:
            self._num_lines = self._count()
        return self._num_lines

    @property
    def num_bytes(self) -> int:
        """Bytes of the complete lines."""
        return self._num_bytes if self.num_lines else 0

    @property
    def sha256(self) -> str:
        """Digest of the complete lines."""
        return self._digest.hexdigest() if self.num_lines else hashlib.sha256().hexdigest()

    def append(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Appends `rows` in one write. Non-finite numbers become null."""
        lines = [json.dumps(json_value(row), ensure_ascii=False, allow_nan=False) + "\n" for row in rows]
        if not lines:
            return
        written = "".join(lines).encode("utf-8", errors="replace")  # lone surrogates become "?"
        num_lines = self.num_lines + len(lines)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with self.path.open("ab") as file:
                file.truncate(self._num_bytes)  # drops part of a line that a killed process wrote
                file.write(written)
        except OSError:  # a full disk: part of a line may have been written
            with contextlib.suppress(OSError):
                os.truncate(self.path, self._num_bytes)
            raise
        self._num_lines = num_lines
        self._num_bytes += len(written)
        self._digest.update(written)

    def flush(self) -> None:
        """Flushes the file to disk, if there is one."""
        if self.path.exists():
            with self.path.open("rb") as file:
                os.fsync(file.fileno())

    def require(self, num_lines: int, sha256: str) -> None:
        """Raises CheckpointError unless the file begins with this many lines, which have this digest. Changes nothing."""
        digest = hashlib.sha256()
        if num_lines <= self.num_lines and num_lines:
            with self.path.open("rb") as file:
                for _ in range(num_lines):
                    digest.update(file.readline())
        if num_lines > self.num_lines or digest.hexdigest() != sha256:
            raise CheckpointError(
                f"the first {num_lines} lines of {self.path} are not as they were written; restore the file, or resume from an "
                "earlier checkpoint"
            )

    def keep(self, num_lines: int) -> None:
        """Drops all lines after the first `num_lines`. Raises CheckpointError if there are fewer."""
        if num_lines > self.num_lines:
            raise CheckpointError(
                f"{self.path} has {self.num_lines} lines, but the checkpoint was taken when it had {num_lines}; "
                "restore the file, or resume from an older checkpoint"
            )
        if num_lines == self.num_lines:
            return
        with self.path.open("r+b") as file:
            for _ in range(num_lines):
                file.readline()
            file.truncate(file.tell())
        self._num_lines = None

    def read(self) -> Iterator[dict[str, Any]]:
        """Yields every complete line in order. Raises CheckpointError for a line that is not a JSON object. Changes nothing."""
        if not self.path.exists():
            return
        for number, line in enumerate(lines_of(self.path), start=1):
            if not line.endswith(b"\n"):
                return
            try:
                row = json_object(line)
            except ValueError as error:
                raise CheckpointError(f"{self.path}, line {number}: not JSON ({error}); repair or delete it") from None
            yield row

    def _count(self) -> int:
        self._digest, self._num_bytes, num_lines = hashlib.sha256(), 0, 0
        if not self.path.exists():
            return 0
        for line in lines_of(self.path):
            if not line.endswith(b"\n"):
                break
            num_lines, self._num_bytes = num_lines + 1, self._num_bytes + len(line)
            self._digest.update(line)
        return num_lines


def json_value(value: Any, otherwise: Callable[[Any], Any] | None = None) -> Any:
    """Converts `value` to what JSON can represent: NaN and infinities become null, scalars of numpy Python's, tuples
    and sets lists.

    `otherwise` converts anything else, such as a date; None: raises TypeError.
    """
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): json_value(item, otherwise) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        items = _in_order(value) if isinstance(value, set | frozenset) else list(value)
        kinds = set(map(type, items))
        if kinds == {int} or (kinds == {float} and all(map(math.isfinite, items))):  # long lists of tokens
            return items
        return [json_value(item, otherwise) for item in items]
    if getattr(value, "ndim", None) == 0:  # numpy's bool is not a number for Python
        return json_value(value.item(), otherwise)
    if otherwise is not None:
        return otherwise(value)
    raise TypeError(f"{value!r} ({type(value).__name__}) cannot be written as JSON")


def _in_order(values: Iterable[Any]) -> list[Any]:
    try:
        return sorted(values)
    except TypeError:  # values of several types
        return sorted(values, key=repr)
