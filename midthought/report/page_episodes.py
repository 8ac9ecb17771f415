"""The episodes of a run for its page: which ones answer the same question before and after training, and all of them as
compressed texts: an index, and blocks that the page decodes when it shows one.

A block is two texts of base64: gzip of JSON, with everything that is read as text, and gzip of the tokens' numbers. A column of
numbers is four planes of bytes: all first bytes, all second bytes, … of 4-byte little-endian numbers, which compresses better.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, TypeVar

import numpy as np

from midthought.report.json_lines import json_value
from midthought.report.recorded_episodes import COLUMNS, TRAINING_ARM, Array, Episode, RecordedSegment, episode_of
from midthought.report.run_folder import RunFolder

MIN_TOKEN_BYTES, MIN_TEXT_BYTES = 8, 1
"""Bytes that a token takes in a page at least, approximately, with and without its values: more training episodes than would fit
are not kept in memory."""
Item = TypeVar("Item")
RULE = (
    "Held-out questions with all their arms and training groups were chosen in turn, each evenly spread over the run, "
    "until the page was full."
)
MAX_BLOCK_TOKENS = 20_000
MAX_BLOCK_EPISODES = 48
MAX_QUESTION = 200
"""Characters of a question in the index."""
_INDEX = "task arm step right reward parts stop tools calls failed repeated length seconds recorded block at before"


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
    kept = (row for row in rows.read() if row.get("arm") != TRAINING_ARM or int(row.get("step") or 0) in chosen)
    found = [episode_of(row, run_path) for row in kept]
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


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedEpisodes:
    """What a page contains of the episodes."""

    index: str
    """Base64 of gzip of JSON: the episodes' columns, in the order of arms and iterations."""
    blocks: Sequence[tuple[str, str]]
    """Texts and numbers of each block."""
    num_episodes: int
    num_recorded: int
    """Episodes with the values of their tokens."""

    def sentence(self, num_found: int) -> str:
        """How many of the run's `num_found` episodes, also those that were not read, the page has, for its reader."""
        if not num_found:
            return "No episode has been written yet."
        is_whole = self.num_episodes == num_found
        values = {
            0: "None has the values of its tokens: checkpoint.record_episodes=16 records them.",
            self.num_episodes: "All have the values of their tokens.",
        }.get(self.num_recorded, f"{self.num_recorded:,} have the values of their tokens.")
        of_all, rule = ("", "") if is_whole else (f" of {num_found:,}", f" {RULE}")
        return f"{self.num_episodes:,}{of_all} episodes. {values}{rule}"


def column_layout() -> list[tuple[str, str, bool]]:
    """Returns the columns of a block in their order: name, whose tokens (`token`: all, `policy`), whether it has floats."""
    of_tokens = [(name, "token", False) for name in ("text_lengths", "token_ids")]
    of_policy = [(name, "policy", name in COLUMNS) for name in ("in_loss", "policy_versions", *COLUMNS)]
    return [*of_tokens, *of_policy]


def pack_episodes(episodes: Sequence[Episode], *, max_episodes: int, max_bytes: int) -> PackedEpisodes:
    """Packs as many episodes as the limits allow, chosen by `in_order_of_choice`. `max_bytes` limits the blocks."""
    units = in_order_of_choice([_unit(each) for each in episodes])
    chosen = [place for unit in units for place in unit][:max_episodes]
    blocks: list[tuple[str, str]] = []
    where: dict[int, tuple[int, int]] = {}
    size = 0
    for places in _cut(chosen, episodes):
        block = _block([episodes[place] for place in places])
        size += sum(map(len, block))
        if size > max_bytes:
            break
        where |= {place: (len(blocks), at) for at, place in enumerate(places)}
        blocks.append(block)
    kept = {place: number for number, place in enumerate(sorted(where))}
    shown = [(episodes[place], *where[place], kept.get(_before(episodes[place]))) for place in kept]
    return PackedEpisodes(
        index=_compressed(_index(shown)),
        blocks=blocks,
        num_episodes=len(kept),
        num_recorded=sum(episodes[place].segments is not None for place in kept),
    )


def in_order_of_choice(keys: Sequence[tuple[Hashable, bool]]) -> list[list[int]]:
    """Returns units of places in `keys`, in the order in which a page takes them: held-out and training units in turn.

    `keys`: of each episode, the unit that must stay together, and whether it is of training.
    """
    units: dict[tuple[Hashable, bool], list[int]] = {}
    for place, key in enumerate(keys):
        units.setdefault(key, []).append(place)
    held_out, training = (
        spread([unit for (_, is_training), unit in units.items() if is_training == kind]) for kind in (False, True)
    )
    return [unit for pair in zip_longest(held_out, training) for unit in pair if unit]


def _unit(episode: Episode) -> tuple[Any, bool]:
    """Samples of one training prompt stay together, and all answers to a held-out question."""
    task_id, is_training = episode.question[0], episode.arm == TRAINING_ARM
    return (episode.step, task_id) if is_training else task_id, is_training


def _before(episode: Episode) -> int:
    return -1 if episode.before is None else episode.before


def _cut(chosen: Sequence[int], episodes: Sequence[Episode]) -> Iterator[list[int]]:
    """Yields the members of each block."""
    members: list[int] = []
    num_tokens = 0
    for place in chosen:
        length = sum(length for _, _, length in episodes[place].spans)
        if members and (num_tokens + length > MAX_BLOCK_TOKENS or len(members) == MAX_BLOCK_EPISODES):
            yield members
            members, num_tokens = [], 0
        members.append(place)
        num_tokens += length
    if members:
        yield members


class _Numbers(dict[Any, int]):
    """Numbers values in the order in which they are first looked up."""

    def __missing__(self, value: Any) -> int:
        return self.setdefault(value, len(self))


def _index(shown: Sequence[tuple[Episode, int, int, int | None]]) -> dict[str, Any]:
    """`shown`: episode, number of its block, place in the block, and number of its counterpart."""
    tasks, arms, stops, tools = _Numbers(), _Numbers(), _Numbers(), _Numbers()
    rewards: list[Mapping[str, Any]] = [
        {"total": None, "parts": {}, **(each.facts.get("reward") or {})} for each, *_ in shown
    ]
    parts = dict.fromkeys(name for reward in rewards for name in reward["parts"])
    rows = []
    for (each, *place), reward in zip(shown, rewards, strict=True):
        events = each.facts.get("events") or []
        calls = [json.dumps([event.get("tool_name"), event.get("parameters")], sort_keys=True) for event in events]
        rows.append(
            [
                tasks[each.question],
                arms[each.arm],
                each.step,
                each.right,
                reward["total"],
                [reward["parts"].get(name) for name in parts],
                stops[str(each.facts.get("stop_reason") or "")],
                sorted({tools[str(event.get("tool_name") or "")] for event in events}),
                len(events),
                sum(event.get("outcome") != "ok" for event in events),
                len(calls) - len(set(calls)),
                sum(length for author, _, length in each.spans if author == "policy"),
                (each.facts.get("time/engine_seconds") or 0.0) + (each.facts.get("time/tool_seconds") or 0.0),
                each.segments is not None,
                *place,
            ]
        )
    return {
        "tasks": [[task_id, question[:MAX_QUESTION]] for task_id, question in tasks],
        "arms": [*arms],
        "stops": [*stops],
        "parts": [*parts],
        "tools": [*tools],
        "columns": dict(zip(_INDEX.split(), map(list, zip(*rows, strict=True)), strict=True)) if rows else {},
    }


def _block(members: Sequence[Episode]) -> tuple[str, str]:
    texts = []
    for each in members:
        lengths = None if each.segments is None else list(map(len, each.segments))
        values = {"right": each.right, "spans": each.spans, "segment_lengths": lengths, "columns": COLUMNS}
        texts.append({**each.facts, **values})
    segments = [segment for each in members for segment in each.segments or ()]
    numbers = b"".join(_planes(_column(segments, name)) for name, _, _ in column_layout())
    return _compressed(texts), _base64(numbers)


def _column(segments: Sequence[RecordedSegment], name: str) -> Array:
    """Returns a column of all segments as 4-byte numbers, text lengths in UTF-16 code units, which the page counts in; NaN if a
    token has no value."""
    if name == "text_lengths":
        return np.array([_utf16_length(text) for segment in segments for text in segment.texts], dtype="<i4")
    dtype = "<f4" if name in COLUMNS else "<i4"
    found: list[Array] = [np.zeros(0, dtype=dtype)]
    for each in segments:
        if name == "token_ids":
            found.append(each.token_ids)
            continue
        values = each.columns[name] if name in COLUMNS else getattr(each, name)
        found.append(values[np.array(each.authors) == "policy"])
    return np.concatenate(found).astype(dtype)


def _utf16_length(text: str) -> int:
    return len(text) + (0 if text.isascii() else sum(character > "\uffff" for character in text))


def _planes(column: Array) -> bytes:
    """Returns the four planes of bytes of a column of 4-byte numbers."""
    return np.ascontiguousarray(column).view(np.uint8).reshape(-1, 4).T.tobytes()


def _compressed(value: Any) -> str:
    text = json.dumps(json_value(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return _base64(text.encode("utf-8", errors="replace"))


def _base64(data: bytes) -> str:
    return base64.b64encode(gzip.compress(data, compresslevel=6, mtime=0)).decode("ascii")
