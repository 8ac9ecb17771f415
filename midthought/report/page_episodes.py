"""The episodes of a run for its page: from `recording/` with the values of every token, and from `trajectories.jsonl`.

An episode that is in both is taken from the recording. Training files of a recording that would not fit the page are not read.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from midthought.report.json_lines import json_value
from midthought.report.recorded_episodes import unpacked
from midthought.report.recording import FOLDER, TRAINING_ARM, arm_and_step, read_rows, recorded_files
from midthought.report.run_folder import RunFolder
from midthought.report.run_record import is_right

Row = Mapping[str, Any]
Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True, slots=True)
class PageEpisode:
    """One episode as the page has it."""

    facts: Row
    """`episode_row` with `group` and `events`; an event's `token` counts over all segments."""
    spans: list[tuple[str, str, int]]
    """Author, text and number of tokens."""
    segments: Sequence[Row] | None = None
    """Rows of its segments in the recording; None if it was not recorded."""
    before: int | None = None
    """Place of the episode before training, or of the first validation, that answers the same question in the same way."""

    @property
    def arm(self) -> str:
        return str(self.facts.get("arm"))

    @property
    def step(self) -> int:
        return int(self.facts.get("step") or 0)

    @property
    def question(self) -> tuple[str, str]:
        """Id and text of the task: the same id with another text is another question."""
        return str(self.facts.get("task_id")), str(self.facts.get("question") or "")

    @property
    def right(self) -> bool | None:
        """Whether the answer was right; None if it was not judged."""
        return is_right(self.facts)


def read_page_episodes(run_path: str | os.PathLike[str], *, max_episodes: int, max_bytes: int) -> list[PageEpisode]:
    """Returns the episodes of a run, in the order of arms and iterations. Nothing is an error but a damaged file
    (`CheckpointError`).

    Reads at most about twice `max_bytes` of the recording's training files and `max_episodes` rows of training in
    `trajectories.jsonl`, both evenly spread over the run.
    """
    folder = RunFolder(run_path)
    recorded = [each for path in _chosen_files(folder.path / FOLDER, max_bytes) for each in read_rows(path, _recorded)]
    known = Counter(_identity(each.facts) for each in recorded)
    shown = []
    for row in _chosen_rows(folder, max_episodes):
        if known[_identity(row)] > 0:
            known[_identity(row)] -= 1
        else:
            shown.append(_shown(row))
    return with_counterparts(sorted([*recorded, *shown], key=lambda each: (each.arm == TRAINING_ARM, each.step)))


def with_counterparts(episodes: Sequence[PageEpisode]) -> list[PageEpisode]:
    """Sets `before` of the episodes, like for like: greedy with greedy, sampled with sampled, the n-th sample with the n-th.

    The counterpart of arm `after.X` is `before.X`; of a validation it is the first validation.
    """
    first_steps: dict[str, int] = {}
    for each in episodes:
        first_steps[each.arm] = min(first_steps.get(each.arm, each.step), each.step)
    numbers: Counter[tuple[Any, ...]] = Counter()
    keys = []
    for each in episodes:
        key = (each.arm, each.step, each.question)
        keys.append((*key, numbers[key]))
        numbers[key] += 1
    places = {key: place for place, key in enumerate(keys)}

    def before(arm: str, *rest: Any) -> int | None:
        kind, _, detail = arm.partition(".")
        other = {"after": f"before.{detail}".rstrip("."), "validation": arm}.get(kind, "")
        return places.get((other, first_steps.get(other), *rest))

    found = [before(arm, *rest) for arm, _, *rest in keys]
    return [replace(each, before=None if found[n] == n else found[n]) for n, each in enumerate(episodes)]


def spread(items: Sequence[Item]) -> list[Item]:
    """Returns the items in an order in which the first few, however many, are evenly spread; the last item is first.

    >>> spread([1, 2, 3, 4, 5, 6, 7, 8])
    [8, 4, 6, 2, 7, 3, 5, 1]
    """
    bits = max(len(items) - 1, 1).bit_length()
    order = sorted(range(len(items)), key=lambda number: f"{number:0{bits}b}"[::-1])
    return [items[-1 - number] for number in order]


def _identity(row: Row) -> tuple[Any, ...]:
    """What an episode's rows in both files have in common, and hardly another episode."""
    return tuple(
        row.get(name) for name in ("arm", "step", "task_id", "num_calls", "time/engine_seconds", "time/tool_seconds")
    )


def _chosen_files(folder: Path, max_bytes: int) -> list[Path]:
    files = recorded_files(folder)
    training = [path for path in files if arm_and_step(path)[0] == TRAINING_ARM]
    chosen, size = set(files) - set(training), 0
    for path in spread(training):
        if size > 2 * max_bytes:
            break
        chosen.add(path)
        size += path.stat().st_size
    return [path for path in files if path in chosen]


def _chosen_rows(folder: RunFolder, max_episodes: int) -> Iterator[Row]:
    is_training = [row.get("arm") == TRAINING_ARM for row in folder.trajectories.read()]
    training = [number for number, found in enumerate(is_training) if found]
    dropped = set(spread(training)[max_episodes:])
    for number, row in enumerate(folder.trajectories.read()):
        if number not in dropped:
            yield json_value(row)


def _shown(row: Row) -> PageEpisode:
    spans = [
        (str(one.get("kind")), str(one.get("text")), int(one.get("num_tokens") or 0)) for one in row.get("spans") or []
    ]
    return PageEpisode(facts={name: value for name, value in row.items() if name != "spans"}, spans=spans)


def _recorded(row: Row) -> PageEpisode:
    segments = row["segments"]
    lengths = [len(segment["texts"]) for segment in segments]
    if lengths != [len(unpacked(segment["token_ids"], "<i4")) for segment in segments]:
        raise ValueError(f"{sum(lengths)} texts of another number of tokens")
    events = [{**event, "token": sum(lengths[: event["segment"]]) + event["token"]} for event in row["events"]]
    spans = []
    for segment in segments:
        texts = iter(segment["texts"])
        spans += [(author, "".join(islice(texts, length)), length) for author, length in segment["spans"]]
    facts = {name: value for name, value in row.items() if name != "segments"} | {"events": events}
    return PageEpisode(facts=facts, spans=spans, segments=segments)
