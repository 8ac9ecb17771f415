"""Environments of the package `verifiers`: `MultiTurnEnv` (versions 0.1 to 0.3) here, `verifiers.v1` in `verifiers_v1`.

The adapter of `MultiTurnEnv` is duck-typed and does not import the package.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any

from midthought.config import EnvironmentConfig
from midthought.env.environment import BaseEnvironment, StepResult
from midthought.env.episode import takes
from midthought.env.verifiers_v1 import VerifiersV1Environment
from midthought.errors import SettingsError


def from_verifiers(
    env: Any, *, rows: Sequence[Any] | None = None, config: EnvironmentConfig | None = None
) -> BaseEnvironment:
    """Returns an environment for a `MultiTurnEnv` (`verifiers` 0.1 to 0.3), or for a `Taskset` or an `Env` of `verifiers.v1`.

    `MultiTurnEnv`: every `reset` draws one of `rows` (None: `env.get_dataset()`), each with a `prompt` (a string or chat
    messages) and, if the environment needs them, `answer`, `info`, `task`. The policy's answers go through `setup_state`,
    `env_response` and `is_completed`. The rubric's reward is the reward of the last step, also if `config.max_steps` ends the
    episode; its metrics are `info["metrics"]`. Tools of a `ToolEnv` are not available: register them as tools of this library.

    `verifiers.v1`: every `reset` draws one of `rows`, tasks of the taskset (None: its first 10,000). A taskset's task is one
    answer; an `Env` of one agent may exchange several turns with it. The task's rewards are the reward of the last step. Tasks
    that need a runtime, tool servers or several agents are refused. A started episode cannot be copied: the other episodes of its
    group are started again with the same seed.

    Raises `SettingsError` for an empty set of rows, something else than these classes, and what is not supported.
    """
    if hasattr(env, "load") or hasattr(env, "taskset"):
        return VerifiersV1Environment(env, rows, config)
    if not hasattr(env, "env_response"):
        hint = "; a v1 environment is loaded by verifiers.v1.load_environment or load_taskset"
        raise SettingsError(
            f"{type(env).__name__} is neither a MultiTurnEnv nor a Taskset or Env of verifiers.v1{hint}"
        )
    if rows is None:
        rows = env.get_dataset()
    if not len(rows):
        raise SettingsError(f"{type(env).__name__} has no rows to play; give rows=[{{'prompt': …, 'answer': …}}]")
    return VerifiersEnvironment(env, rows, config)


class VerifiersEnvironment(BaseEnvironment):
    """See `from_verifiers`. Copies share `env` and `rows`; everything else is in the state of the episode."""

    def __init__(self, env: Any, rows: Sequence[Mapping[str, Any]], config: EnvironmentConfig | None) -> None:
        super().__init__(config)
        self._shared = _Shared(env, rows)
        self._state: Any = {}

    async def reset(self, seed: int | None = None) -> str:
        """Returns the prompt of a row drawn by the seed, its messages joined."""
        rows = self._shared.rows
        row = rows[random.Random(seed).randrange(len(rows))]
        self._state = _first_state(row)
        setup = getattr(self._shared.env, "setup_state", None)
        if setup is not None:
            self._state = await _result_of(setup(self._state)) or self._state
        return _words(self._state["prompt"])

    async def step(self, action: str) -> StepResult:
        """Adds the answer and then the environment's response to the conversation."""
        state, env = self._state, self._shared.env
        context = [*state["prompt"], *state["completion"]]
        answer = Message(role="assistant", content=action)
        state["completion"] = [*state["completion"], answer]
        state["trajectory"].append({"prompt": context, "completion": [answer], "response": None, "reward": None})
        state["turn"] += 1
        reply: list[Message] = []
        is_over = await self._is_completed()
        if not is_over:
            response = await _result_of(env.env_response([*context, answer], state))
            if isinstance(response, tuple):  # up to 0.1.5: with the state
                response, self._state = response
            reply = _messages(response)
            self._state["completion"] = [*self._state["completion"], *reply]
            is_over = self._state.get("final_env_response") is not None
            is_over = is_over or (self._reads_messages() and await self._is_completed())
        is_last = is_over or self.get_step_count() + 1 == self.config.max_steps
        reward = await self._rubric_reward() if is_last else 0.0
        return _words(reply), reward, is_over, {"metrics": dict(self._state.get("metrics") or {})}

    def _reads_messages(self) -> bool:
        """Whether `is_completed` also takes the messages (up to 0.1.5); then it is called again after the environment's reply."""
        return takes(self._shared.env.is_completed, [], {})

    async def _is_completed(self) -> bool:
        is_completed, state = self._shared.env.is_completed, self._state
        if self._reads_messages():
            return bool(await _result_of(is_completed([*state["prompt"], *state["completion"]], state)))
        return bool(await _result_of(is_completed(state)))

    async def _rubric_reward(self) -> float:
        """Returns the reward of `rubric.score_rollout`, with any of the signatures that it has had."""
        state, score = self._state, self._shared.env.rubric.score_rollout
        if takes(score, state):
            result = score(state)
        elif takes(score, state, score_sem=None):
            result = score(state, score_sem=contextlib.nullcontext())
        else:
            about = {"task": state["task"], "info": state["info"]}
            result = score(state["prompt"], state["completion"], state["answer"], state, **about)
        if (scored := await _result_of(result)) is not None:
            state["reward"], state["metrics"] = scored.reward, scored.metrics
        return state["reward"]


class Message(dict[str, Any]):
    """A chat message with access by item and by attribute, because environments use both."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.get(name)


class _Shared:
    """State that copies of an environment share."""

    def __init__(self, env: Any, rows: Sequence[Mapping[str, Any]]) -> None:
        self.env, self.rows = env, rows

    def __deepcopy__(self, memo: dict[int, Any]) -> _Shared:
        return self


def _first_state(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the initial state of a rollout, with the keys of all versions."""
    info = row.get("info") or {}
    return {
        **row,
        "prompt": _messages(row["prompt"]),
        "answer": row.get("answer", ""),
        "info": json.loads(info) if isinstance(info, str) else dict(info),
        "task": row.get("task", "default"),
        "completion": [],
        "trajectory": [],
        "responses": [],
        "turn": 0,
        "is_completed": False,
        "final_env_response": None,
        "error": None,
        "reward": None,
        "metrics": None,
        "timing": {"start_time": time.time(), "generation_ms": 0.0, "scoring_ms": 0.0, "total_ms": 0.0},
    }


def _messages(said: Any) -> list[Message]:
    if isinstance(said, str):
        return [Message(role="user", content=said)]
    listed = [said] if isinstance(said, Mapping) else said
    return [Message(each if isinstance(each, Mapping) else each.model_dump()) for each in listed]


def _words(messages: Sequence[Mapping[str, Any]]) -> str:
    """Returns the contents of chat messages as one string; of multi-part contents only the text parts."""
    contents = (message["content"] for message in messages)
    texts = (
        each if isinstance(each, str) else "\n".join(part["text"] for part in each or () if part.get("type") == "text")
        for each in contents
    )
    return "\n\n".join(texts)


async def _result_of(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
