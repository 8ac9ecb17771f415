"""Episodes as the compressed texts inside a page: an index of all of them, and blocks that the page decodes when it shows one.

A block is two texts of base64: gzip of JSON, with everything that is read as text, and gzip of the tokens' numbers. A column of
numbers is four planes of bytes: all first bytes, all second bytes, … of 4-byte little-endian numbers, which compresses better.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from midthought.report.json_lines import json_value
from midthought.report.page_episodes import PageEpisode
from midthought.report.page_selection import in_order_of_choice
from midthought.report.recorded_episodes import COLUMNS, Array
from midthought.report.recording import TRAINING_ARM

MAX_BLOCK_TOKENS = 20_000
MAX_BLOCK_EPISODES = 48
MAX_QUESTION = 200
"""Characters of a question in the index."""
_TOKEN_COLUMNS = ("text_lengths", "token_ids")
_POLICY_COLUMNS = ("in_loss", "policy_versions", *COLUMNS)


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


def column_layout() -> list[tuple[str, str, bool]]:
    """Returns the columns of a block in their order: name, whose tokens (`token`: all, `policy`), whether it has floats."""
    of_tokens = [(name, "token", False) for name in _TOKEN_COLUMNS]
    return [*of_tokens, *((name, "policy", name in COLUMNS) for name in _POLICY_COLUMNS)]


def pack_episodes(episodes: Sequence[PageEpisode], *, max_episodes: int, max_bytes: int) -> PackedEpisodes:
    """Packs as many episodes as the limits allow, chosen by `in_order_of_choice`. `max_bytes` limits the blocks.

    If not all fit, a quarter of the space is for episodes without the values of their tokens.
    """
    units = in_order_of_choice([_unit(each) for each in episodes])
    chosen = [place for unit in units for place in unit][:max_episodes]
    members, blocks = _blocks(chosen, episodes, max_bytes)
    if sum(map(len, members)) < len(chosen):
        while members and _size(blocks) > max_bytes * 3 // 4:
            members.pop()
            blocks.pop()
        whole = {place for block in members for place in block}
        episodes = [each if place in whole else replace(each, tokens=None) for place, each in enumerate(episodes)]
        rest = [place for place in chosen if place not in whole]
        more = _blocks(rest, episodes, max_bytes - _size(blocks))
        members, blocks = [*members, *more[0]], [*blocks, *more[1]]
    places = {place: (number, at) for number, block in enumerate(members) for at, place in enumerate(block)}
    kept = {place: number for number, place in enumerate(sorted(places))}
    shown = [(episodes[place], places[place], kept.get(_before(episodes[place]))) for place in kept]
    return PackedEpisodes(
        index=_compressed(_index(shown)),
        blocks=blocks,
        num_episodes=len(kept),
        num_recorded=sum(episodes[place].tokens is not None for place in kept),
    )


def _blocks(
    chosen: Sequence[int], episodes: Sequence[PageEpisode], max_bytes: int
) -> tuple[list[list[int]], list[tuple[str, str]]]:
    """Returns the places of the episodes in each block, and the blocks: as many as fit. An episode that is too large is left
    out if no other is before it."""
    members: list[list[int]] = []
    blocks: list[tuple[str, str]] = []
    for places in _cut(chosen, episodes):
        block = _block([episodes[place] for place in places])
        if _size([*blocks, block]) <= max_bytes:
            members.append(places)
            blocks.append(block)
        elif blocks:
            break
    return members, blocks


def _size(blocks: Sequence[tuple[str, str]]) -> int:
    return sum(len(texts) + len(numbers) for texts, numbers in blocks)


def _before(episode: PageEpisode) -> int:
    return -1 if episode.before is None else episode.before


def _unit(episode: PageEpisode) -> tuple[Any, bool]:
    is_training = episode.arm == TRAINING_ARM
    return (episode.group if is_training else episode.task_id), is_training


def _cut(chosen: Sequence[int], episodes: Sequence[PageEpisode]) -> Iterable[list[int]]:
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


def _index(shown: Sequence[tuple[PageEpisode, tuple[int, int], int | None]]) -> dict[str, Any]:
    tasks = _numbered((each.task_id, str(each.facts.get("question") or "")) for each, _, _ in shown)
    arms = _numbered(each.arm for each, _, _ in shown)
    stops = _numbered(str(each.facts.get("stop_reason") or "") for each, _, _ in shown)
    parts = _numbered(name for each, _, _ in shown for name in _reward(each)["parts"])
    tools = _numbered(str(event.get("tool_name") or "") for each, _, _ in shown for event in _events(each))
    rows = [
        [
            tasks[each.task_id, str(each.facts.get("question") or "")],
            arms[each.arm],
            each.step,
            each.right,
            _reward(each)["total"],
            [_reward(each)["parts"].get(name) for name in parts],
            stops[str(each.facts.get("stop_reason") or "")],
            sorted({tools[str(event.get("tool_name") or "")] for event in _events(each)}),
            len(_events(each)),
            sum(event.get("outcome") != "ok" for event in _events(each)),
            _num_repeated(each),
            sum(length for author, _, length in each.spans if author == "policy"),
            (each.facts.get("time/engine_seconds") or 0.0) + (each.facts.get("time/tool_seconds") or 0.0),
            each.tokens is not None,
            *place,
            before,
        ]
        for each, place, before in shown
    ]
    names = "task arm step right reward parts stop tools calls failed repeated length seconds recorded block at before"
    return {
        "tasks": [[task_id, question[:MAX_QUESTION]] for task_id, question in tasks],
        "arms": [*arms],
        "stops": [*stops],
        "parts": [*parts],
        "tools": [*tools],
        "columns": dict(zip(names.split(), map(list, zip(*rows, strict=True)), strict=True)) if rows else {},
    }


def _numbered(values: Iterable[Any]) -> dict[Any, int]:
    return {value: number for number, value in enumerate(dict.fromkeys(values))}


def _reward(episode: PageEpisode) -> Mapping[str, Any]:
    return {"total": None, "parts": {}, **(episode.facts.get("reward") or {})}


def _events(episode: PageEpisode) -> Sequence[Mapping[str, Any]]:
    return episode.facts.get("events") or []


def _num_repeated(episode: PageEpisode) -> int:
    calls = [
        json.dumps([event.get("tool_name"), event.get("parameters")], sort_keys=True) for event in _events(episode)
    ]
    return len(calls) - len(set(calls))


def _block(members: Sequence[PageEpisode]) -> tuple[str, str]:
    texts = [
        {
            **each.facts,
            "right": each.right,
            "spans": each.spans,
            "segment_lengths": each.tokens.segment_lengths if each.tokens is not None else None,
            "columns": [*each.tokens.columns] if each.tokens is not None else [],
        }
        for each in members
    ]
    tokens = [each.tokens for each in members if each.tokens is not None]
    numbers = [np.concatenate([getattr(each, name) for each in tokens]) for name in _TOKEN_COLUMNS if tokens]
    for name in _POLICY_COLUMNS if tokens else ():
        found = [getattr(each, name, None) if name not in COLUMNS else each.columns.get(name) for each in tokens]
        missing = [np.full(len(each.in_loss), np.nan, dtype=np.float32) for each in tokens]
        numbers.append(
            np.concatenate(
                [column if column is not None else none for column, none in zip(found, missing, strict=True)]
            )
        )
    return _compressed(texts), _base64(b"".join(map(_planes, numbers)))


def _planes(column: Array) -> bytes:
    """Returns the four planes of bytes of a column of 4-byte numbers."""
    dtype = "<f4" if column.dtype.kind == "f" else "<i4"
    return np.ascontiguousarray(column, dtype=dtype).view(np.uint8).reshape(-1, 4).T.tobytes()


def _compressed(value: Any) -> str:
    text = json.dumps(json_value(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return _base64(text.encode("utf-8", errors="replace"))


def _base64(data: bytes) -> str:
    return base64.b64encode(gzip.compress(data, compresslevel=6, mtime=0)).decode("ascii")
