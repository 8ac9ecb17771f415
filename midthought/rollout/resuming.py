"""How episodes go on after their process was stopped or killed: what they did after a checkpoint is written as it happens
(`Journal`), so that no finished group is played again, and an unfinished episode repeats its record (`Replay`).

The events of a journal are JSON objects; this module does not depend on what they mean: `in_flight`.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from midthought.engines.engine import Stopper
from midthought.errors import RecordError
from midthought.report.json_lines import JsonLines
from midthought.types import Completion, Finish, ToolEvent, Trajectory


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


class Replay:
    """What is left to repeat of the record of an unfinished episode with one segment: tokens and tool results, without a model
    or tools. This restores the state that the rollout loop keeps outside of the record (scanners, turns, budgets)."""

    def __init__(self, record: Trajectory) -> None:
        self._record = record
        self._events = list(record.tool_events)

    def completion(
        self, token_ids: Sequence[int], max_tokens: int, stopper: Stopper, eos_token_ids: Collection[int]
    ) -> Completion | None:
        """Returns the recorded tokens after `token_ids`, up to a call's end, the end of sequence or `max_tokens`; all of one
        policy version. None after the end of the record.

        Raises `RecordError` if `token_ids` differ from the record: the prompt, the results or the call format have changed.
        """
        record, start = self._record, len(token_ids)
        if list(token_ids[: len(record.token_ids)]) != record.token_ids[:start]:
            raise self._other(start)
        if start >= len(record.token_ids):
            return None
        if not record.loss_mask[start]:
            raise self._other(start)
        versions = record.segments[-1].policy_versions
        span = next(span for span in record.spans if span.start <= start < span.end)
        end, finish = start, Finish.LENGTH
        while end < min(span.end, start + max_tokens) and finish is Finish.LENGTH:
            if versions[end] != versions[start]:
                break
            token_id = record.token_ids[end]
            end += 1
            if token_id in eos_token_ids:
                finish = Finish.END
            elif stopper.feed(token_id):
                finish = Finish.CALL
        return Completion(
            token_ids=tuple(record.token_ids[start:end]),
            sampled_logprobs=tuple(record.sampled_logprobs[start:end]),
            finish=finish,
            policy_version=versions[start],
            temperature=span.temperature,
        )

    def events(self, num_calls: int) -> list[ToolEvent]:
        """Returns the recorded results of the next calls; empty after the end of the record."""
        found, self._events = self._events[:num_calls], self._events[num_calls:]
        return found

    def _other(self, start: int) -> RecordError:
        return RecordError(
            f"task {self._record.task.task_id!r}: the episode that goes on is not the same up to token {start} when "
            "it is played again; resume with the settings, tools and call format that it began with"
        )
