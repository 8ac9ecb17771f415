"""Environments of two other libraries as ours: OpenEnv clients, and `MultiTurnEnv` of `verifiers` (before its 0.4).

They are known by what they do; neither package is imported.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from midthought.config import EnvironmentConfig
from midthought.env.environment import BaseEnvironment, StepResult
from midthought.errors import EpisodeError, SettingsError


def from_openenv(
    client: Any,
    *,
    text_to_action: Callable[[str], Any] | None = None,
    observation_to_text: Callable[[Any], str] | None = None,
    config: EnvironmentConfig | None = None,
) -> BaseEnvironment:
    """An environment that plays on an OpenEnv client, asynchronous or not.

    `client.reset()` and `client.step(action)` give a result with `observation`, `reward` (None counts as 0) and `done`.
    `text_to_action` makes the client's action of the policy's text, for example `lambda text: {"code": text}`;
    `observation_to_text` makes text of its observation, for example `lambda seen: seen.stdout`. A client is one session
    with a server: train on a factory, `lambda: from_openenv(Client(url), …)`.
    """
    return OpenEnvEnvironment(client, text_to_action or str, observation_to_text or _already_text, config)


class OpenEnvEnvironment(BaseEnvironment):
    """See `from_openenv`."""

    def __init__(
        self,
        client: Any,
        text_to_action: Callable[[str], Any],
        observation_to_text: Callable[[Any], str],
        config: EnvironmentConfig | None,
    ) -> None:
        super().__init__(config)
        self._client = client
        self._text_to_action = text_to_action
        self._observation_to_text = observation_to_text

    def reset(self, seed: int | None = None) -> Any:
        """`client.reset`, with the seed where it takes one."""
        seeded = {"seed": seed} if seed is not None and _takes(self._client.reset, seed=seed) else {}
        return _then(self._client.reset(**seeded), lambda result: self._observation_to_text(result.observation))

    def step(self, action: str) -> Any:
        """`client.step` with the action that the text means."""

        def read(result: Any) -> StepResult:
            return self._observation_to_text(result.observation), result.reward or 0.0, bool(result.done), {}

        return _then(self._client.step(self._text_to_action(action)), read)


def from_verifiers(
    env: Any, *, rows: Sequence[Mapping[str, Any]] | None = None, config: EnvironmentConfig | None = None
) -> BaseEnvironment:
    """An environment that plays the chats of a `verifiers` `MultiTurnEnv` (of its versions 0.1 to 0.3).

    Every `reset` draws one of `rows` (None: `env.get_dataset()`), each with a `prompt` (a text or chat messages) and,
    where the environment wants them, `answer`, `info`, `task`. The policy's answers go through `setup_state`,
    `env_response` and `is_completed`; the rubric's reward is paid for the last one, also where `config.max_steps` ends the
    episode; the rubric's metrics are `info["metrics"]`. Tools of a `ToolEnv` are not offered: register them as ours.
    """
    if rows is None:
        rows = env.get_dataset()
    if not len(rows):
        raise SettingsError(f"{type(env).__name__} has no rows to play; give rows=[{{'prompt': …, 'answer': …}}]")
    return VerifiersEnvironment(env, rows, config)


class VerifiersEnvironment(BaseEnvironment):
    """See `from_verifiers`. Copies share `env` and `rows`: all that belongs to an episode is in its state."""

    def __init__(self, env: Any, rows: Sequence[Mapping[str, Any]], config: EnvironmentConfig | None) -> None:
        super().__init__(config)
        self._shared = _Shared(env, rows)
        self._state: Any = {}

    async def reset(self, seed: int | None = None) -> str:
        """The prompt of a row drawn by the seed, its messages one after the other."""
        rows = self._shared.rows
        row = rows[random.Random(seed).randrange(len(rows))]
        self._state = _first_state(row)
        setup = getattr(self._shared.env, "setup_state", None)
        if setup is not None:
            self._state = await _result_of(setup(self._state)) or self._state
        return _words(self._state["prompt"])

    async def step(self, action: str) -> StepResult:
        """Add the answer to the chat, then what the environment says to it."""
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
        """Up to 0.1.5 `is_completed` took the messages as well, and was asked again after the environment's reply."""
        return _takes(self._shared.env.is_completed, [], {})

    async def _is_completed(self) -> bool:
        is_completed, state = self._shared.env.is_completed, self._state
        if self._reads_messages():
            return bool(await _result_of(is_completed([*state["prompt"], *state["completion"]], state)))
        return bool(await _result_of(is_completed(state)))

    async def _rubric_reward(self) -> float:
        """What `rubric.score_rollout` says, in any of the forms that it has had."""
        state, score = self._state, self._shared.env.rubric.score_rollout
        if _takes(score, state):
            result = score(state)
        elif _takes(score, state, score_sem=None):
            result = score(state, score_sem=contextlib.nullcontext())
        else:
            about = {"task": state["task"], "info": state["info"]}
            result = score(state["prompt"], state["completion"], state["answer"], state, **about)
        if (scored := await _result_of(result)) is not None:
            state["reward"], state["metrics"] = scored.reward, scored.metrics
        return state["reward"]


class Message(dict[str, Any]):
    """A chat message whose parts can be had as items and as attributes: environments were written for either."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.get(name)


class _Shared:
    """What copies of an environment share."""

    def __init__(self, env: Any, rows: Sequence[Mapping[str, Any]]) -> None:
        self.env, self.rows = env, rows

    def __deepcopy__(self, memo: dict[int, Any]) -> _Shared:
        return self


def _first_state(row: Mapping[str, Any]) -> dict[str, Any]:
    """The state that a rollout begins with, with the keys of all versions."""
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
    """The contents of chat messages as one text; of contents in parts, the parts that are text."""
    contents = (message["content"] for message in messages)
    texts = (
        each if isinstance(each, str) else "\n".join(part["text"] for part in each or () if part.get("type") == "text")
        for each in contents
    )
    return "\n\n".join(texts)


def _already_text(observation: Any) -> str:
    if isinstance(observation, str):
        return observation
    names = observation if isinstance(observation, Mapping) else getattr(observation, "__dict__", {})
    raise EpisodeError(
        f"the client's observation is a {type(observation).__name__} with {', '.join(map(str, names)) or 'no fields'}, "
        "not text; give observation_to_text=…"
    )


def _takes(function: Callable[..., Any], *arguments: Any, **options: Any) -> bool:
    try:
        inspect.signature(function).bind(*arguments, **options)
    except (TypeError, ValueError):
        return False
    return True


def _then(value: Any, function: Callable[[Any], Any]) -> Any:
    """`function(value)`: at once, or to be awaited where the value is."""
    if not inspect.isawaitable(value):
        return function(value)

    async def later() -> Any:
        return function(await value)

    return later()


async def _result_of(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
