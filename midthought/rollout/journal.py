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
    """`FOLDER/NUMBER.jsonl`, …: every checkpoint begins a file, whose number it contains. Numbers ascend and are unique."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def _numbers(self) -> list[int]:
        return sorted(int(path.stem) for path in self._folder.glob("*.jsonl"))

    def begin(self) -> int:
        """Starts an empty file and returns its number. Earlier files remain until `keep`, when the checkpoint is complete."""
        number = max([time.time_ns(), *(number + 1 for number in self._numbers)])
        self._folder.mkdir(parents=True, exist_ok=True)
        self._file = self._of(number)
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
        self._file = self._of(numbers[-1])
        for each in self._numbers:
            yield from self._of(each).read()

    def clear(self) -> None:
        """Drops all events, because they are of other settings. Files that checkpoints name remain."""
        for number in self._numbers:
            self._of(number).keep(0)

    def keep(self, number: int) -> None:
        """Removes the files before this one."""
        for other in self._numbers:
            if other < number:
                self._of(other).path.unlink()

    def write(self, event: Mapping[str, Any]) -> None:
        """Appends an event. When this returns, a kill of the process does not lose it."""
        self._file.append([event])

    def _of(self, number: int) -> JsonLines:
        return JsonLines(self._folder / f"{number}.jsonl")
