"""The record of an unfinished episode, from which the episode repeats its tokens and tool results without a model or tools.

This restores the state that the rollout loop keeps outside of the record (scanners, turns, budgets).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from midthought.engines.engine import Stopper
from midthought.errors import RecordError
from midthought.types import Completion, Finish, ToolEvent, Trajectory


class Replay:
    """What is left to repeat of a record with one segment."""

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
