"""Replays an unfinished episode from its record: returns recorded tokens and tool results without a model or tools.

After the end of the record, the engine and the tool executor continue. This restores the state that the rollout loop keeps
outside of the record (scanners, turns, budgets).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from midthought.engines.engine import Engine, Sampling, Stopper
from midthought.errors import RecordError
from midthought.rollout.episode import RolloutParts
from midthought.tools.executor import ToolExecutor
from midthought.types import Completion, Finish, ParsedAction, Task, ToolEvent, Trajectory


def replayed(parts: RolloutParts, record: Trajectory) -> RolloutParts:
    """Returns the parts with which an episode of the same task and seed first repeats its record.

    The episode fails with RecordError if its tokens differ: the prompt, the tool results or the call format have changed.
    """
    engine = cast(Engine, ReplayedEngine(parts.engine, record))
    executor = cast(ToolExecutor, ReplayedExecutor(parts.executor, record.tool_events))
    return replace(parts, engine=engine, executor=executor)


class ReplayedEngine:
    """Implements `Engine` for one episode of one segment: its record first, then another engine, which also does the rest."""

    def __init__(self, engine: Engine, record: Trajectory) -> None:
        self._engine = engine
        self._record = record

    async def sample(
        self, episode: int, token_ids: Sequence[int], sampling: Sampling, *, stopper: Stopper | None = None
    ) -> Completion:
        """Returns the recorded tokens, up to a call's end, the end of sequence or `max_tokens`; all of one policy version."""
        record, start = self._record, len(token_ids)
        if list(token_ids[: len(record.token_ids)]) != record.token_ids[:start]:
            raise self._other(start)
        if start >= len(record.token_ids):
            return await self._engine.sample(episode, token_ids, sampling, stopper=stopper)
        if not record.loss_mask[start]:
            raise self._other(start)
        versions = record.segments[-1].policy_versions
        span = next(span for span in record.spans if span.start <= start < span.end)
        end, finish = start, Finish.LENGTH
        while end < min(span.end, start + sampling.max_tokens) and finish is Finish.LENGTH:
            if versions[end] != versions[start]:
                break
            token_id = record.token_ids[end]
            end += 1
            if token_id in self._engine.eos_token_ids:
                finish = Finish.END
            elif stopper is not None and stopper.feed(token_id):
                finish = Finish.CALL
        return Completion(
            token_ids=tuple(record.token_ids[start:end]),
            sampled_logprobs=tuple(record.sampled_logprobs[start:end]),
            finish=finish,
            policy_version=versions[start],
            temperature=span.temperature,
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def _other(self, start: int) -> RecordError:
        return RecordError(
            f"task {self._record.task.task_id!r}: the episode that was carried over is not the same up to token {start} when "
            "it is played again; resume with the settings, tools and call format that it began with"
        )


class ReplayedExecutor:
    """Answers the first calls with recorded events, later ones with the given executor, which also does everything else."""

    def __init__(self, executor: ToolExecutor, events: Sequence[ToolEvent]) -> None:
        self._executor = executor
        self._events = list(events)

    async def run(self, calls: Sequence[ParsedAction], task: Task, **options: Any) -> list[ToolEvent]:
        if not self._events:
            return await self._executor.run(calls, task, **options)
        found, self._events = self._events[: len(calls)], self._events[len(calls) :]
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)
