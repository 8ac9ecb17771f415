"""Calls of the rollout loop that a cassette records and replays: completions, and replies and rewards of environments."""

from __future__ import annotations

import functools
import hashlib
import math
from array import array
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from midthought.cassette.calls import current_calls, recorded
from midthought.cassette.entries import Codec
from midthought.engines.engine import Engine, Sampling, Stopper
from midthought.errors import EngineError, EpisodeError
from midthought.rollout.trajectory_json import turn_from_json, turn_to_json
from midthought.types import Completion, Finish, Reward, Trajectory

# -- completions ---------------------------------------------------------------------------------------------------


def _completion_to_json(completion: Completion) -> dict[str, Any]:
    logprobs = [None if math.isnan(value) else value for value in completion.sampled_logprobs]
    return {**asdict(completion), "sampled_logprobs": logprobs}


def _completion_from_json(row: dict[str, Any]) -> Completion:
    logprobs = tuple(math.nan if value is None else value for value in row["sampled_logprobs"])
    fields = {
        **row,
        "token_ids": tuple(row["token_ids"]),
        "sampled_logprobs": logprobs,
        "finish": Finish(row["finish"]),
    }
    return Completion(**fields)


_COMPLETION: Codec[Completion] = Codec(encode=_completion_to_json, decode=_completion_from_json, error=EngineError)


async def recorded_sample(
    engine: Engine, number: int, token_ids: Sequence[int], sampling: Sampling, *, stopper: Stopper
) -> Completion:
    """Returns `engine.sample(…)`, or the recorded completion after the same token ids; then the stopper gets its tokens here."""
    sample = functools.partial(engine.sample, number, token_ids, sampling, stopper=stopper)
    calls = current_calls()
    if calls is None or not calls.has_completions:
        return await sample()
    digest = hashlib.blake2b(array("q", token_ids).tobytes(), digest_size=16).hexdigest()
    arguments = {"num_tokens": len(token_ids), "tokens": digest, **asdict(sampling)}
    completion = await recorded("completion", "sample", arguments, sample, _COMPLETION)
    if calls.is_replayed:
        for token_id in completion.token_ids[: -1 if completion.finish is Finish.END else None]:
            stopper.feed(token_id)
    return completion


# -- environments --------------------------------------------------------------------------------------------------

_REWARD: Codec[Reward] = Codec(encode=Reward.to_dict, decode=Reward.from_dict, error=EpisodeError)
_TEXT_AND_TURN: Codec[dict[str, Any]] = Codec(error=EpisodeError)


def recorded_environment(environment: Any) -> Any:
    """Returns the `EpisodeEnvironment`, with recorded replies and rewards if it has a state (`environment`) and there is a
    cassette: recorded tool calls take no steps in it when they are replayed."""
    has_state = getattr(environment, "environment", None) is not None
    return RecordedEnvironment(environment) if has_state and current_calls() is not None else environment


class RecordedEnvironment:
    """Implements `EpisodeEnvironment` over another one."""

    def __init__(self, episode: Any) -> None:
        self._episode = episode
        self.environment = episode.environment
        self.is_truncated = False
        """Whether the environment had ended its episode at a limit when the latest reply was recorded."""

    async def reply(self, trajectory: Trajectory) -> str | None:
        """Returns the reply, and gives the last turn what the environment recorded in it."""

        async def run() -> dict[str, Any]:
            words = await self._episode.reply(trajectory)
            is_truncated = bool(getattr(self._episode, "is_truncated", False))
            return {"words": words, "turn": turn_to_json(trajectory.turns[-1]), "is_truncated": is_truncated}

        said = {"turn": len(trajectory.turns), "said": trajectory.turns[-1].model_output}
        found = await recorded("environment", "reply", said, run, _TEXT_AND_TURN)
        trajectory.turns[-1] = turn_from_json(found["turn"])
        self.is_truncated = found.get("is_truncated", False)  # older cassettes have none
        words: str | None = found["words"]
        return words

    async def score(self, trajectory: Trajectory) -> Reward:
        """Returns the reward."""
        said = {"turns": [turn.model_output for turn in trajectory.turns]}
        return await recorded("environment", "score", said, functools.partial(self._episode.score, trajectory), _REWARD)

    async def close(self) -> None:
        """Closes the environment, if it can be closed."""
        if (close := getattr(self._episode, "close", None)) is not None:
            await close()
