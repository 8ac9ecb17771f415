"""The episodes of a run for its page, and which ones answer the same question before and after training."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

from midthought.report.recorded_episodes import TRAINING_ARM, Episode, episode_of
from midthought.report.run_folder import RunFolder

MIN_TOKEN_BYTES, MIN_TEXT_BYTES = 8, 1
"""Bytes that a token takes in a page at least, approximately, with and without its values: more training episodes than would fit
are not kept in memory."""
Item = TypeVar("Item")


def read_page_episodes(run_path: str | os.PathLike[str], *, max_episodes: int, max_bytes: int) -> list[Episode]:
    """Returns the episodes of a run, in the order of arms and iterations. Nothing is an error but a damaged line
    (`CheckpointError`).

    Of the training iterations as many are read as a page of `max_episodes` and `max_bytes` can have, evenly spread over the run.
    """
    rows = RunFolder(run_path).trajectories
    sizes: dict[int, Counter[str]] = {}
    for row in rows.read():
        if row.get("arm") == TRAINING_ARM:
            num_tokens = sum(int(span.get("num_tokens") or 0) for span in row.get("spans") or [])
            size = num_tokens * (MIN_TOKEN_BYTES if "segments" in row else MIN_TEXT_BYTES)
            sizes.setdefault(int(row.get("step") or 0), Counter()).update(episodes=1, bytes=size)
    chosen, total = set[int](), Counter[str]()
    for step in spread([*sizes]):
        if total["episodes"] >= max_episodes or total["bytes"] > max_bytes:
            break
        chosen.add(step)
        total += sizes[step]
    found = [
        episode_of(row, run_path)
        for row in rows.read()
        if row.get("arm") != TRAINING_ARM or int(row.get("step") or 0) in chosen
    ]
    return with_counterparts(sorted(found, key=lambda each: (each.arm == TRAINING_ARM, each.step)))


def with_counterparts(episodes: Sequence[Episode]) -> list[Episode]:
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
