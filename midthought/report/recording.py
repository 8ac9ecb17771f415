"""`recording/` in a run folder: episodes with the values of every token, as numbered files of compressed JSON lines.

Rows are compressed and written in a background thread. Does not depend on the learner: it gets rows. Gzip and JSON because
pyarrow (Parquet) is no base dependency.
"""

from __future__ import annotations

import gzip
import json
import logging
import re
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from midthought.errors import CheckpointError
from midthought.files.atomic import atomic_path
from midthought.files.regular import json_object, lines_in, open_regular
from midthought.report.json_lines import json_value

FOLDER = "recording"
TRAINING_ARM = "train"
MAX_WAITING = 2
"""Files that wait to be written at most; then `add` waits, so that the memory stays bounded."""
_NAME = re.compile(r"(\d{6,})-([\w.-]*?)-(\d{6,})\.jsonl\.gz")
_UNSAFE = re.compile(r"[^\w.-]")
_HEADER = {"midthought_recording": 1}
_log = logging.getLogger(__name__)
Row = Mapping[str, Any]


class Recording:
    """The files of one run: `000012-train-000004.jsonl.gz` is the twelfth, with training episodes of iteration 4.

    Nothing is created before the first `add`. The files never exceed `max_bytes` in total: if they would, training iterations
    are thinned to every second, every fourth, … of them. If a file cannot be written, the run continues without recording.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stride = 1
        """Training iterations that are a multiple of this number are kept."""
        self._num_files: int | None = None
        self._sizes: dict[Path, int] = {}
        self._thread: ThreadPoolExecutor | None = None
        self._waiting: deque[Future[None]] = deque()
        self._is_broken = False

    @property
    def num_files(self) -> int:
        """Number of files added so far, thinned ones included. Waits until all of them are written."""
        self.flush()
        if self._num_files is None:
            self._num_files = max((number for number, _, _ in map(_parts, recorded_files(self.path))), default=0)
        return self._num_files

    def add(self, arm: str, step: int, rows: Sequence[Row], *, max_bytes: int) -> None:
        """Adds a file of rows (`recorded_row`), which the thread writes. Waits if `MAX_WAITING` files wait already."""
        if self._is_broken or not rows or (arm == TRAINING_ARM and step % self.stride):
            return
        if self._num_files is None:
            self._num_files = self.num_files
        self._num_files += 1
        name = f"{self._num_files:06}-{_UNSAFE.sub('_', arm)}-{step:06}.jsonl.gz"
        if self._thread is None:
            self._sizes = {path: path.stat().st_size for path in recorded_files(self.path)}
            self._thread = ThreadPoolExecutor(1, "recording")
        if len(self._waiting) > MAX_WAITING:
            self._waiting.popleft().result()
        self._waiting.append(self._thread.submit(self._write, self.path / name, rows, max_bytes))

    def keep(self, num_files: int) -> None:
        """Drops the files after the first `num_files`, and what a killed process left behind."""
        self.close()
        for path in recorded_files(self.path):
            if _parts(path)[0] > num_files:
                path.unlink()
        for partial in self.path.glob(".*.partial"):
            partial.unlink(missing_ok=True)
        self._num_files = num_files

    def flush(self) -> None:
        """Waits until every file is written."""
        while self._waiting:
            self._waiting.popleft().result()

    def close(self) -> None:
        """Writes every file and ends the thread. A later `add` starts another one."""
        self.flush()
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None

    # -- in the thread -----------------------------------------------------------------------------------------

    def _write(self, path: Path, rows: Sequence[Row], max_bytes: int) -> None:
        _, arm, step = _parts(path)
        if self._is_broken or (arm == TRAINING_ARM and step % self.stride):
            return
        try:
            data = _compressed(rows)
            with atomic_path(path) as partial:
                partial.write_bytes(data)
            self._sizes[path] = len(data)
            self._thin(max_bytes)
            if sum(self._sizes.values()) > max_bytes:
                path.unlink()
                self._sizes.pop(path)
                _log.warning(
                    "%s was not kept: the recording would exceed checkpoint.record_max_mib=%g", path, max_bytes / 2**20
                )
        except Exception as error:  # the run does not end because of its recording
            self._is_broken = True
            _log.warning(
                "%s cannot be written (%s). The run continues without recording; free space, and resume the run to record "
                "again",
                self.path,
                error,
            )

    def _thin(self, max_bytes: int) -> None:
        while sum(self._sizes.values()) > max_bytes:
            steps = {path: step for path in self._sizes for _, arm, step in [_parts(path)] if arm == TRAINING_ARM}
            if self.stride > max(steps.values(), default=0):
                return
            self.stride *= 2
            for path, step in steps.items():
                if step % self.stride:
                    path.unlink(missing_ok=True)
                    self._sizes.pop(path)


def recorded_files(folder: Path) -> list[Path]:
    """Returns the files of a recording in the order in which they were added."""
    found = [path for path in folder.glob("*.jsonl.gz") if _NAME.fullmatch(path.name)] if folder.is_dir() else []
    return sorted(found, key=_parts)


def read_rows(path: Path, read: Callable[[Row], Any] = dict) -> Iterator[Any]:
    """Yields `read(row)` of the rows of a file. Raises CheckpointError if the file is damaged or of a later version, or if `read`
    fails."""
    try:
        with open_regular(path) as compressed, gzip.open(compressed) as file:
            lines = lines_in(file, path)
            if json_object(next(lines)) != _HEADER:
                raise ValueError("its first line is of another version")
            yield from map(read, map(json_object, lines))
    except (OSError, EOFError, zlib.error, LookupError, TypeError, ValueError, StopIteration) as error:
        raise CheckpointError(f"{path} is no recording that can be read ({error!r:.200}); delete it") from None


def arm_and_step(path: Path) -> tuple[str, int]:
    """Returns arm and iteration in a file's name."""
    return _parts(path)[1:]


def _parts(path: Path) -> tuple[int, str, int]:
    found = _NAME.fullmatch(path.name)
    assert found is not None, path
    return int(found[1]), found[2], int(found[3])


def _compressed(rows: Iterable[Row]) -> bytes:
    lines = [json.dumps(json_value(row), ensure_ascii=False, allow_nan=False) + "\n" for row in (_HEADER, *rows)]
    return gzip.compress("".join(lines).encode("utf-8", errors="replace"), compresslevel=6, mtime=0)
