"""An append-only file of JSON objects, one a line, that can be cut back to where a checkpoint stood.

It does not know what the lines mean.
"""

from __future__ import annotations

import json
import math
import numbers
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from midthought.errors import CheckpointError


class JsonLines:
    """One file of JSON lines. Every `append` is on its way to the disk when it returns.

    A last line without its line feed is what a killed process left: it counts as not written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._num_lines: int | None = None

    @property
    def num_lines(self) -> int:
        """Number of whole lines; 0 where there is no file."""
        if self._num_lines is None:
            self._num_lines = self._count_and_mend()
        return self._num_lines

    def append(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write `rows` at the end, in one go. Numbers that are not finite become null."""
        lines = [json.dumps(json_value(row), ensure_ascii=False, allow_nan=False) + "\n" for row in rows]
        if not lines:
            return
        num_lines = self.num_lines
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            file.write("".join(lines).encode("utf-8", errors="replace"))  # a lone surrogate has no UTF-8
        self._num_lines = num_lines + len(lines)

    def keep(self, num_lines: int) -> None:
        """Drop every line after the first `num_lines`; CheckpointError where there are fewer than that."""
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
        self._num_lines = num_lines

    def read(self) -> Iterator[dict[str, Any]]:
        """Every whole line in order; CheckpointError names a line that is no JSON object. Changes nothing."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    return
                try:
                    row = json.loads(line)
                except ValueError as error:
                    raise CheckpointError(
                        f"{self.path}, line {number}: not JSON ({error}); repair or delete it"
                    ) from None
                if not isinstance(row, dict):
                    raise CheckpointError(f"{self.path}, line {number}: not a JSON object; repair or delete it")
                yield row

    def _count_and_mend(self) -> int:
        if not self.path.exists():
            return 0
        num_lines, end = 0, 0
        with self.path.open("r+b") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    file.truncate(end)
                    break
                num_lines, end = num_lines + 1, end + len(line)
        return num_lines


def json_value(value: Any) -> Any:
    """`value` as what JSON can say: NaN and infinities become null, numpy's numbers Python's, tuples lists.

    TypeError for anything that has no place in JSON.
    """
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [json_value(item) for item in (sorted(value) if isinstance(value, set | frozenset) else value)]
    raise TypeError(f"{value!r} ({type(value).__name__}) cannot be written as JSON")
