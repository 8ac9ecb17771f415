"""The files of a cassette: one per part (a batch of episodes), one line per call, and a last line when the part is complete."""

from __future__ import annotations

import difflib
import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from midthought.cassette.entries import RecordedCall, to_line
from midthought.errors import CassetteError
from midthought.regular_files import json_object, lines_of

SUFFIX = ".jsonl"
_END = "num_calls"
"""Key of the last line of a complete part."""


class PartWriter:
    """Writes the calls of one part. An earlier recording of the part is replaced, so a part that is repeated after the process
    was killed holds each call once. When `write` returns, the call is with the operating system.

    May be used from several threads. Raises `CassetteError` if the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._num_calls = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("wb", buffering=0)
        except OSError as error:
            raise self._failure(error) from None

    def write(self, entry: Mapping[str, Any]) -> None:
        """Appends one call."""
        self._append(entry)
        self._num_calls += 1

    def end(self) -> None:
        """Marks the part as complete."""
        self._append({_END: self._num_calls})

    def close(self) -> None:
        """Closes the file. Without `end` before, the part is incomplete."""
        self._file.close()

    def _append(self, entry: Mapping[str, Any]) -> None:
        line = to_line(entry)
        try:
            with self._lock:
                self._file.write(line)
        except (OSError, ValueError) as error:  # ValueError: the file is closed
            raise self._failure(error) from None

    def _failure(self, error: Exception) -> CassetteError:
        return CassetteError(
            f"{self._path} cannot be written: {error}; free or mount the disk, or set another cassette.record"
        )


class PartReader:
    """The recorded calls of one part, by what was asked. Raises `CassetteError` if the part is missing, incomplete or damaged."""

    def __init__(self, folder: Path, name: str) -> None:
        self._path = folder / f"{name}{SUFFIX}"
        if not self._path.is_file():
            recorded = sorted(path.stem for path in self._path.parent.glob(f"*{SUFFIX}"))
            held = f"it holds {recorded[0]} to {recorded[-1]}" if recorded else "it holds no calls of this stage"
            raise CassetteError(
                f"the cassette {folder} has no part {name!r}: {held}; replay with the settings of the recorded run, for at most "
                "as many iterations and evaluations"
            )
        self._lines: dict[bytes, bytes] = {}
        is_complete = False
        for entry, line in self._entries():
            if _END in entry:
                is_complete = True
            else:
                self._lines[_call_of(entry, self._path).key] = line
        if not is_complete:
            raise CassetteError(
                f"{self._path} is incomplete: the recorded run was stopped here; resume it, or replay fewer iterations"
            )

    def find(self, call: RecordedCall) -> dict[str, Any]:
        """Returns the entry of a call. Raises `CassetteError`, which names the nearest recorded call, if there is none."""
        line = self._lines.get(call.key)
        if line is not None:
            entry: dict[str, Any] = json.loads(line)
            return entry
        nearest = max(
            (_call_of(entry, self._path) for entry, _ in self._entries() if _END not in entry),
            default=None,
            key=_likeness(call),
        )
        recorded = "nothing was recorded in this part" if nearest is None else f"the nearest recorded call is {nearest}"
        raise CassetteError(
            f"{self._path}: not recorded: {call}; {recorded}. Replay with the settings, data and tools of the recorded run, or "
            "record again"
        )

    def damaged(self, call: RecordedCall, error: Exception) -> CassetteError:
        """Returns the error for an entry with values that do not fit its kind."""
        return CassetteError(
            f"{self._path}: the result of {call} is damaged ({type(error).__name__}: {error}); record again"
        )

    def _entries(self) -> Iterator[tuple[dict[str, Any], bytes]]:
        for number, line in enumerate(lines_of(self._path), start=1):
            try:
                yield json_object(line), line
            except ValueError as error:
                raise CassetteError(f"{self._path}, line {number}: not JSON ({error}); record again") from None


def _call_of(entry: Mapping[str, Any], path: Path) -> RecordedCall:
    try:
        return RecordedCall.from_entry(entry)
    except KeyError as error:
        raise CassetteError(f"{path}: a call has no field {error}; record again") from None


def _likeness(call: RecordedCall) -> Any:
    """Returns the order of nearness to a call: same episode and tool first, then similar arguments."""
    asked = json.dumps(call.arguments, sort_keys=True)[:2000]

    def likeness(other: RecordedCall) -> tuple[bool, bool, bool, float]:
        words = json.dumps(other.arguments, sort_keys=True)[:2000]
        return (
            other.kind == call.kind,
            (other.episode, other.task) == (call.episode, call.task),
            other.name == call.name,
            difflib.SequenceMatcher(None, asked, words).quick_ratio(),
        )

    return likeness
