"""The episodes of a run for its page: from `recording/` with the values of every token, and from `trajectories.jsonl`.

An episode that is in both is taken from the recording. Training files of a recording that would not fit the page are not read.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from midthought.report.json_lines import json_value
from midthought.report.page_selection import spread
from midthought.report.recorded_episodes import COLUMNS, Array, unpacked
from midthought.report.recording import FOLDER, TRAINING_ARM, arm_and_step, read_rows, recorded_files
from midthought.report.run_folder import RunFolder
from midthought.report.run_record import is_right

Row = Mapping[str, Any]
_INTEGERS = {"token_ids": "<i4", "in_loss": "u1", "policy_versions": "<i4"}


@dataclass(frozen=True, kw_only=True, slots=True)
class PageTokens:
    """The tokens of an episode, segments joined: T tokens, P of them the policy's."""

    segment_lengths: list[int]
    text_lengths: Array  # [T] int32, in UTF-16 code units, which the page counts in
    token_ids: Array  # [T] int32
    in_loss: Array  # [P] int32
    policy_versions: Array  # [P] int32
    columns: Mapping[str, Array]
    """By the names of `COLUMNS`: [P] float32, NaN if a token has no value; without those that the episode does not have."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PageEpisode:
    """One episode as the page has it."""

    facts: Row
    """`episode_row` with `group` and `events`; an event's `token` counts over all segments."""
    right: bool | None
    spans: list[tuple[str, str, int]]
    """Author, text and number of tokens."""
    tokens: PageTokens | None
    """None if it was not recorded."""
    before: int | None = None
    """Place of the episode before training, or of the first validation, that answers the same question in the same way."""

    @property
    def arm(self) -> str:
        return str(self.facts.get("arm"))

    @property
    def step(self) -> int:
        return int(self.facts.get("step") or 0)

    @property
    def task_id(self) -> str:
        return str(self.facts.get("task_id"))

    @property
    def group(self) -> tuple[str, int, str]:
        """Episodes of one group are samples of the same prompt."""
        return self.arm, self.step, self.task_id


def read_page_episodes(run_path: str | os.PathLike[str], *, max_episodes: int, max_bytes: int) -> list[PageEpisode]:
    """Returns the episodes of a run, in the order of arms and iterations. Nothing is an error but a damaged file
    (`CheckpointError`).

    Reads at most about twice `max_bytes` of the recording's training files and `max_episodes` rows of training in
    `trajectories.jsonl`, both evenly spread over the run.
    """
    folder = RunFolder(run_path)
    recorded = [each for path in _chosen_files(folder.path / FOLDER, max_bytes) for each in read_rows(path, _recorded)]
    known = Counter(map(_identity, (each.facts for each in recorded)))
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
        key = (each.arm, each.step, each.task_id, str(each.facts.get("question")))
        keys.append((*key, numbers[key]))
        numbers[key] += 1
    places = {key: place for place, key in enumerate(keys)}

    def before(arm: str, *rest: Any) -> int | None:
        kind, _, detail = arm.partition(".")
        other = {"after": f"before.{detail}".rstrip("."), "validation": arm}.get(kind, "")
        return places.get((other, first_steps.get(other), *rest))

    found = [before(arm, *rest) for arm, _, *rest in keys]
    return [replace(each, before=None if found[n] == n else found[n]) for n, each in enumerate(episodes)]


def _identity(row: Row) -> tuple[Any, ...]:
    """What an episode's rows in both files have in common, and hardly another episode."""
    times = (row.get("time/engine_seconds"), row.get("time/tool_seconds"))
    return (row.get("arm"), row.get("step"), row.get("task_id"), row.get("num_calls"), *times)


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
    facts = {name: value for name, value in row.items() if name != "spans"}
    return PageEpisode(facts=facts, right=is_right(row), spans=spans, tokens=None)


def _recorded(row: Row) -> PageEpisode:
    segments = row["segments"]
    lengths = [len(segment["texts"]) for segment in segments]
    events = [{**event, "token": sum(lengths[: event["segment"]]) + event["token"]} for event in row["events"]]
    spans = []
    for segment in segments:
        texts = iter(segment["texts"])
        spans += [(author, "".join(islice(texts, length)), length) for author, length in segment["spans"]]
    numbers = {name: _joined(unpacked(one[name], dtype) for one in segments) for name, dtype in _INTEGERS.items()}
    if len(numbers["token_ids"]) != sum(lengths):
        raise ValueError(f"{sum(lengths)} texts of {len(numbers['token_ids'])} tokens")
    tokens = PageTokens(
        segment_lengths=lengths,
        text_lengths=np.array([_utf16_length(text) for one in segments for text in one["texts"]], dtype=np.int32),
        columns={name: column for name in COLUMNS if (column := _float_column(segments, name)) is not None},
        **numbers,
    )
    facts = {name: value for name, value in row.items() if name != "segments"} | {"events": events}
    return PageEpisode(facts=facts, right=is_right(row), spans=spans, tokens=tokens)


def _float_column(segments: Sequence[Row], name: str) -> Array | None:
    if not any(name in segment for segment in segments):
        return None
    counts = [len(unpacked(segment["in_loss"], "u1")) for segment in segments]
    return np.concatenate(
        [
            unpacked(one[name], "<f4") if name in one else np.full(count, np.nan, dtype=np.float32)
            for one, count in zip(segments, counts, strict=True)
        ]
    )


def _joined(columns: Iterable[Array]) -> Array:
    return np.concatenate([np.zeros(0, dtype=np.int32), *columns]).astype(np.int32)


def _utf16_length(text: str) -> int:
    return len(text) + (0 if text.isascii() else sum(character > "\uffff" for character in text))
