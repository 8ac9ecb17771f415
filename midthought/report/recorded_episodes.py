"""Episodes as rows of `trajectories.jsonl`: a Trajectory as one readable JSON row, the tokens of a recorded one with their
values, and typed records of such rows; the quantities of a token, in one list. The caller decodes.

Columns of numbers are base64 of little-endian arrays, so they are exact and short.
"""

from __future__ import annotations

import base64
import math
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import Any, Literal

import numpy as np

from midthought.errors import CheckpointError
from midthought.report.json_lines import json_value
from midthought.report.run_folder import RunFolder
from midthought.tokenization import Renderer
from midthought.types import Segment, Trajectory

Scale = Literal["none", "diverging", "sequential", "reversed"]
"""How a heat map colors a quantity: not at all; two colors, above and below `center`; one color, the larger the darker, or the
smaller the darker."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """One quantity of a token."""

    name: str
    """Name in the page's addresses."""
    label: str
    meaning: str
    scale: Scale = "none"
    center: float = 0.0
    column: str = ""
    """Column of float32 numbers in the recording; empty if it is not such a number."""
    minus: str = ""
    """Column that is subtracted from `column`."""


# fmt: off
QUANTITIES = (
    Quantity("token_id", "id", "Id in the vocabulary."),
    Quantity("text", "text", "The text that the token completes."),
    Quantity("author", "author", "Who wrote it: policy, tool, prompt, or reply (of the environment or user)."),
    Quantity("in_loss", "mask", "Whether the update trained on it.", "sequential"),
    Quantity("policy_version", "policy version", "Version of the policy that sampled it.", "sequential"),
    Quantity("advantage", "advantage",
             "As the loss used it: above 0 the update makes the token more likely, below 0 less likely.",
             "diverging", column="advantages"),
    Quantity("sampled_logprob", "log-probability, sampled", "As the engine recorded it, in nats.", "reversed",
             column="sampled_logprobs"),
    Quantity("logprob", "log-probability, recomputed", "By the learner before the update, in nats.", "reversed",
             column="logprobs"),
    Quantity("reference_logprob", "log-probability, reference", "Of the reference policy, in nats.", "reversed",
             column="reference_logprobs"),
    Quantity("ratio", "ratio", "exp(log π − log π_old) in the last pass of the update.", "diverging", column="ratios",
             center=1.0),
    Quantity("value", "value", "Of the critic, before the update.", "diverging", column="values"),
    Quantity("entropy", "entropy", "Of the distribution at the token in the last pass, in nats.", "sequential",
             column="entropies"),
    Quantity("recomputed_minus_sampled", "recomputed − sampled",
             "Difference of both log-probabilities: 0 if engine and learner compute the same.", "diverging",
             column="logprobs", minus="sampled_logprobs"),
    Quantity("policy_minus_reference", "policy − reference",
             "Log-probability before the update minus the reference policy's: the token's term of the KL divergence (k1).",
             "diverging", column="logprobs", minus="reference_logprobs"),
)
# fmt: on
"""The quantities of a token, in the order in which they are shown."""
COLUMNS = tuple(each.column for each in QUANTITIES if each.column and not each.minus)
"""Columns of float32 numbers in a recording. A row has them for the policy's tokens only."""


Decode = Callable[[list[int]], str]
Array = np.ndarray[Any, Any]
TRAINING_ARM = "train"


def trajectory_row(
    trajectory: Trajectory, decode: Decode, *, step: int, arm: str, exact_match: bool | None = None
) -> dict[str, Any]:
    """Returns the row of one episode: its task, its end, its reward, the texts of its spans, and its tool events.

    `arm` is its origin (`before`, `after`, `after.tool_off`, `train`); rows of one `task_id` are shown side by side.
    `exact_match` is whether the answer was right, None if it was not judged. Spans are in order over all segments (a
    later prompt starts a new segment), each decoded separately. Labels, parameters and metadata that JSON cannot represent
    (dates) are written as text. `token` of an event is the place, over all segments, of the last policy token before the result.
    """
    task, reward = trajectory.task, trajectory.reward
    runs = ((span, segment.token_ids) for segment in trajectory.segments for span in segment.spans)
    spans = [(span.kind, token_ids[span.start : span.end]) for span, token_ids in runs]
    starts = [0, *accumulate(len(segment.token_ids) for segment in trajectory.segments)]
    places: list[dict[str, int]] = [{"token": starts[segment] + index} for segment, index in trajectory.call_ends]
    places += [{}] * (len(trajectory.tool_events) - len(places))
    return {
        "step": step,
        "arm": arm,
        "task_id": task.task_id,
        "group": trajectory.group,
        "labels": json_value(task.labels, str),
        "question": task.prompt,
        "answer": task.answer,
        "exact_match": exact_match,
        "stop_reason": trajectory.stop_reason,
        "error": trajectory.error,
        "policy_version": max([0, *(max(segment.policy_versions) for segment in trajectory.segments)]),
        "reward": None if reward is None else {"total": reward.total, "parts": dict(reward.parts)},
        "num_calls": trajectory.num_calls,
        "time/tool_seconds": trajectory.tool_seconds,
        "time/engine_seconds": trajectory.engine_seconds,
        "spans": [{"kind": kind, "text": decode(ids), "num_tokens": len(ids)} for kind, ids in spans],
        "events": [
            {
                "tool_name": event.call.tool_name,
                "parameters": json_value(event.call.parameters, str),
                "outcome": event.outcome,
                "time/seconds": event.seconds,
                "result": event.call.result,
                "metadata": json_value(event.metadata, str),
                **place,
            }
            for event, place in zip(trajectory.tool_events, places, strict=True)
        ],
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedSegment:
    """A sequence of T tokens; a later prompt starts a new segment."""

    token_ids: Array  # [T] int32
    texts: list[str]
    """The text that each token completes; empty within a character of several tokens."""
    authors: list[str]
    """`policy`, `tool`, `prompt` or `reply` (of the environment or user)."""
    in_loss: Array  # [T] bool
    """Whether the update trained on the token."""
    policy_versions: Array  # [T] int32
    """-1 if the token was not sampled."""
    columns: Mapping[str, Array]
    """By the names of `COLUMNS`: [T] float32, NaN if a token has no value: it is not the policy's, or the episode was not trained
    on."""

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, kw_only=True, slots=True)
class Episode:
    """One row of `trajectories.jsonl`."""

    facts: Mapping[str, Any]
    """The row without its spans and segments: task, reward, calls (`events`), …"""
    spans: list[tuple[str, str, int]]
    """Author, text and number of tokens."""
    segments: list[RecordedSegment] | None = None
    """None if its tokens were not recorded."""
    before: int | None = None
    """Place of the episode before training, or of the first validation, that answers the same question in the same way
    (`page_episodes`)."""

    @property
    def arm(self) -> str:
        """`train`, `validation`, `before`, `after.sampled`, …"""
        return str(self.facts.get("arm"))

    @property
    def step(self) -> int:
        """Training iterations done; 0 for the arms of a recipe's evaluation."""
        return int(self.facts.get("step") or 0)

    @property
    def question(self) -> tuple[str, str]:
        """Id and text of the task: the same id with another text is another question."""
        return str(self.facts.get("task_id")), str(self.facts.get("question") or "")

    @property
    def right(self) -> bool | None:
        """Whether the answer was right; None if it was not judged."""
        found = self.facts.get("exact_match")
        return None if found is None else bool(found)


def token_values(
    trajectory: Trajectory, renderer: Renderer, learned: Sequence[Mapping[str, Array]] = ()
) -> dict[str, Any]:
    """Returns what a recorded episode's row has besides that of `trajectory_row`. `learned`: per segment, columns of the update
    ([T], NaN without a value) and `in_loss`."""
    columns = learned or [{}] * len(trajectory.segments)
    pairs = zip(trajectory.segments, columns, strict=True)
    return {"segments": [_segment_row(segment, renderer, each) for segment, each in pairs]}


def _segment_row(segment: Segment, renderer: Renderer, columns: Mapping[str, Array]) -> dict[str, Any]:
    own = np.array(segment.loss_mask, dtype=bool)
    runs = [segment.token_ids[span.start : span.end] for span in segment.spans]
    found: dict[str, Array] = {"sampled_logprobs": np.array(segment.sampled_logprobs, dtype=np.float32), **columns}
    in_loss = found.pop("in_loss", np.full(len(own), np.nan))
    return {
        "spans": [[str(span.kind), len(token_ids)] for span, token_ids in zip(segment.spans, runs, strict=True)],
        "token_ids": packed(segment.token_ids, "<i4"),
        "texts": [text for token_ids in runs for text in _texts(token_ids, renderer)],
        "policy_versions": packed(np.array(segment.policy_versions)[own], "<i4"),
        "in_loss": packed(in_loss[own] == 1, "u1"),
        **{name: packed(values[own], "<f4") for name, values in found.items()},
    }


def _texts(token_ids: Sequence[int], renderer: Renderer) -> list[str]:
    stream = renderer.decode_stream()
    return [stream.step(token_id) for token_id in token_ids]


def read_recording(
    run_path: str | os.PathLike[str], *, arms: Collection[str] | None = None, iterations: Collection[int] | None = None
) -> Iterator[Episode]:
    """Yields the recorded episodes of a run in the order of writing; of these arms and iterations, if given.

    Reads one line at a time, also of a running run. Raises `CheckpointError` if nothing was recorded, or a line is damaged.
    """
    is_recorded = False
    for row in RunFolder(run_path).trajectories.read():
        is_recorded |= "segments" in row
        is_wanted = (arms is None or row["arm"] in arms) and (iterations is None or row["step"] in iterations)
        if "segments" in row and is_wanted:
            yield episode_of(row, run_path)
    if not is_recorded:
        raise CheckpointError(f"{run_path} has no recorded tokens; a run records with checkpoint.record_episodes=16")


def episode_of(row: Mapping[str, Any], run_path: str | os.PathLike[str]) -> Episode:
    """Returns a row of `trajectories.jsonl` as a record. Raises `CheckpointError` if its tokens are damaged."""
    facts = {name: value for name, value in row.items() if name not in ("spans", "segments")}
    if "segments" not in row:
        ones = row.get("spans") or []
        spans = [(str(one.get("kind")), str(one.get("text")), int(one.get("num_tokens") or 0)) for one in ones]
        return Episode(facts=facts, spans=spans)
    try:
        spans = [span for segment in row["segments"] for span in _spans(segment)]
        return Episode(facts=facts, spans=spans, segments=list(map(_segment, row["segments"])))
    except (LookupError, TypeError, ValueError) as error:
        place = f"episode {row.get('task_id')!r} of {row.get('arm')} {row.get('step')}"
        raise CheckpointError(
            f"{run_path}/trajectories.jsonl: the tokens of {place} cannot be read ({error!r:.200}); delete this line"
        ) from None


def _spans(row: Mapping[str, Any]) -> Iterator[tuple[str, str, int]]:
    texts = iter(row["texts"])
    for author, length in row["spans"]:
        yield author, "".join(islice(texts, length)), length


def _segment(row: Mapping[str, Any]) -> RecordedSegment:
    token_ids, texts = unpacked(row["token_ids"], "<i4"), row["texts"]
    authors = [author for author, length in row["spans"] for _ in range(length)]
    if not len(token_ids) == len(texts) == len(authors):
        raise ValueError(f"{len(token_ids)} tokens, {len(texts)} texts and {len(authors)} authors")
    own = np.array([author == "policy" for author in authors], dtype=bool)

    def spread(name: str, dtype: str, missing: float) -> Array:
        column = np.full(len(token_ids), missing, dtype=dtype)
        if name in row:
            column[own] = unpacked(row[name], dtype)
        return column

    return RecordedSegment(
        token_ids=token_ids,
        texts=texts,
        authors=authors,
        in_loss=spread("in_loss", "u1", 0).astype(bool),
        policy_versions=spread("policy_versions", "<i4", -1),
        columns={name: spread(name, "<f4", math.nan) for name in COLUMNS},
    )


def packed(values: Any, dtype: str) -> str:
    """Returns an array as base64 of its bytes; `dtype` as numpy names it (`<f4`, `<i4`, `u1`)."""
    return base64.b64encode(np.ascontiguousarray(values, dtype=dtype).tobytes()).decode("ascii")


def unpacked(text: str, dtype: str) -> Array:
    """The inverse of `packed`: [n]."""
    return np.frombuffer(base64.b64decode(text), dtype=dtype)
