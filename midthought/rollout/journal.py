"""What the episodes of a run did after a checkpoint, written as it happens, so that a killed run plays no finished group again.

Events are JSON objects. This module does not depend on what they mean: `in_flight`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from midthought.report.json_lines import JsonLines


class Journal:
    """`FOLDER/NUMBER.jsonl`, …: every checkpoint begins a file, whose number it contains. Numbers ascend and are unique. `folder`
    None: nothing is written."""

    is_open = False
    """Whether events are written: after `begin` or `read`, until `close`. Other events are lost with the process."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    @property
    def needs_checkpoint(self) -> bool:
        """Whether events cannot be written before a checkpoint begins a file."""
        return self._folder is not None and not self.is_open

    @property
    def _numbers(self) -> list[int]:
        return [] if self._folder is None else sorted(int(path.stem) for path in self._folder.glob("*.jsonl"))

    def begin(self) -> int | None:
        """Starts an empty file and returns its number. Earlier files remain until `keep`, when the checkpoint is complete."""
        if self._folder is None:
            return None
        number = max([time.time_ns(), *(number + 1 for number in self._numbers)])
        self._folder.mkdir(parents=True, exist_ok=True)
        self._file, self.is_open = self._of(number), True
        self._file.path.touch()
        return number

    def read(self, number: int | None) -> Iterator[Mapping[str, Any]]:
        """Yields the events since the checkpoint with this number; 0: all. Later events follow them. Without such a file (None:
        the checkpoint is of another run) it yields none, and what is there is removed."""
        numbers = self._numbers
        if not numbers or number not in (0, *numbers):
            self.keep(self.begin())
            return
        self.keep(number)
        self._file, self.is_open = self._of(numbers[-1]), True
        for each in self._numbers:
            yield from self._of(each).read()

    def clear(self) -> None:
        """Drops all events, because they are of other settings. Files that checkpoints name remain."""
        for number in self._numbers:
            self._of(number).keep(0)

    def keep(self, number: int | None) -> None:
        """Removes the files before this one; None: no file."""
        for other in self._numbers:
            if number is not None and other < number:
                self._of(other).path.unlink()

    def write(self, event: Mapping[str, Any]) -> None:
        """Appends an event. When this returns, a kill of the process does not lose it. After an error the journal lacks it, so
        nothing follows until the next checkpoint."""
        try:
            if self.is_open:
                self._append(event)
        except BaseException:
            self.is_open = False
            raise

    def close(self) -> None:
        """Writes nothing until `begin` or `read`."""
        self.is_open = False

    def _append(self, event: Mapping[str, Any]) -> None:
        self._file.append([event])

    def _of(self, number: int) -> JsonLines:
        assert self._folder is not None
        return JsonLines(self._folder / f"{number}.jsonl")
