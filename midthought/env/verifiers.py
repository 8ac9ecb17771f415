"""Adapters for environments of other libraries: OpenEnv clients, and `MultiTurnEnv` of `verifiers` (before 0.4).

They are duck-typed; neither package is imported.
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
    """Returns an environment for an OpenEnv client, synchronous or asynchronous.

    `client.reset()` and `client.step(action)` return a result with `observation`, `reward` (None counts as 0) and `done`.
    `text_to_action` converts the policy's text to an action, for example `lambda text: {"code": text}`;
    `observation_to_text` converts an observation to text, for example `lambda seen: seen.stdout`. A client is one session
    with a server: train with a factory, `lambda: from_openenv(Client(url), …)`.
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
        """Calls `client.reset`, with the seed if it takes one."""
        seeded = {"seed": seed} if seed is not None and _takes(self._client.reset, seed=seed) else {}
        return _then(self._client.reset(**seeded), lambda result: self._observation_to_text(result.observation))

    def step(self, action: str) -> Any:
        """Calls `client.step` with the action of the text."""

        def read(result: Any) -> StepResult:
            return self._observation_to_text(result.observation), result.reward or 0.0, bool(result.done), {}

        return _then(self._client.step(self._text_to_action(action)), read)


def from_verifiers(
    env: Any, *, rows: Sequence[Mapping[str, Any]] | None = None, config: EnvironmentConfig | None = None
) -> BaseEnvironment:
    """Returns an environment for the conversations of a `verifiers` `MultiTurnEnv` (versions 0.1 to 0.3).

    Every `reset` draws one of `rows` (None: `env.get_dataset()`), each with a `prompt` (a string or chat messages) and, if the
    environment needs them, `answer`, `info`, `task`. The policy's answers go through `setup_state`, `env_response` and
    `is_completed`. The rubric's reward is the reward of the last step, also if `config.max_steps` ends the episode; its metrics
    are `info["metrics"]`. Tools of a `ToolEnv` are not available: register them as tools of this library.
    """
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
        return _takes(self._shared.env.is_completed, [], {})

    async def _is_completed(self) -> bool:
        is_completed, state = self._shared.env.is_completed, self._state
        if self._reads_messages():
            return bool(await _result_of(is_completed([*state["prompt"], *state["completion"]], state)))
        return bool(await _result_of(is_completed(state)))

    async def _rubric_reward(self) -> float:
        """Returns the reward of `rubric.score_rollout`, with any of the signatures that it has had."""
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
    """Returns `function(value)`, or an awaitable of it if the value is awaitable."""
    if not inspect.isawaitable(value):
        return function(value)

    async def later() -> Any:
        return function(await value)

    return later()


async def _result_of(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
