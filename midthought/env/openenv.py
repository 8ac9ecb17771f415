"""Environments of OpenEnv servers: every episode is a session over the server's WebSocket.

The package `openenv` is not imported. Needs the extra `openenv` (the package `websockets`).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from midthought.config import EnvironmentConfig
from midthought.config.references import optional
from midthought.env.environment import BaseEnvironment, StepResult
from midthought.errors import EpisodeError, SettingsError
from midthought.http.network import is_local

_MAX_MESSAGE_BYTES = 16 * 2**20
"""Larger messages of a server are an error."""
_MAX_REASON_CHARS = 1000
"""Characters of a reason for refusing an action that the policy reads."""


class OpenEnvEnvironment(BaseEnvironment):
    """Environment on an OpenEnv server at a URL.

    >>> world = OpenEnvEnvironment("http://localhost:8000", text_to_action=lambda text: {"code": text})

    Every episode has its own session (a WebSocket connection), which the first `reset` opens and which is closed with the
    episode; an environment is copied only before that. The server must allow as many sessions as there are episodes at once
    (`max_concurrent_envs`). Its HTTP routes `/reset` and `/step` are not used: they create a new environment for every request.

    Args:
        url: `http://…` or `https://…`.
        text_to_action: converts the policy's text to an action, a mapping or a model of pydantic. An action that it refuses with
            ValueError, or that the server finds invalid, is not executed: the observation is the reason, the reward 0. Default:
            the JSON object in the text.
        observation_to_text: default: the observation if it is text, its only field if that is text, or its JSON; without
            `metadata`.
        reset_options: further arguments of the server's `reset`, also as a function of the seed, for example
            `lambda seed: {"split": "train", "index": seed % 1000}`.
        headers: HTTP headers of a session, for example for authorization.

    Raises `SettingsError` for an invalid URL, `MissingExtraError` without `websockets`.
    """

    def __init__(
        self,
        url: str,
        *,
        text_to_action: Callable[[str], Any] | None = None,
        observation_to_text: Callable[[Any], str] | None = None,
        reset_options: Mapping[str, Any] | Callable[[int], Mapping[str, Any]] | None = None,
        headers: Mapping[str, str] | None = None,
        config: EnvironmentConfig | None = None,
    ) -> None:
        super().__init__(config)
        if not isinstance(url, str) or urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            remedy = "give one like 'http://localhost:8000'"
            raise SettingsError(f"{url!r} is not the address of an OpenEnv server; {remedy}")
        self._url = url.rstrip("/")
        self._text_to_action = text_to_action or _json_in
        self._observation_to_text = observation_to_text or _as_text
        self._reset_options = reset_options or {}
        self._headers = dict(headers or {})
        self._socket: Any = None

    def __getstate__(self) -> dict[str, Any]:
        if self._socket is not None:
            raise TypeError("a session with an OpenEnv server cannot be copied after its first reset")
        return self.__dict__

    async def reset(self, seed: int | None = None) -> str:
        """Starts an episode. Raises `EpisodeError` if the server cannot be reached, has no free session, or fails."""
        given = self._reset_options
        options = dict(given(seed or 0) if callable(given) else given)
        if seed is not None:
            options.setdefault("seed", seed)
        if self._socket is None:
            self._socket = await _connected(self._url, self._headers)
        return self._observation_to_text((await self._request("reset", options)).get("observation"))

    async def step(self, action: str) -> StepResult:
        """Executes the action of the text."""
        try:
            converted = self._text_to_action(action)
            data = converted.model_dump() if hasattr(converted, "model_dump") else converted
            if not isinstance(data, Mapping):
                raise ValueError("the action must be a JSON object")
            result = await self._request("step", data)
        except ValueError as error:
            return f"Not an action: {error}"[:_MAX_REASON_CHARS], 0.0, False, {}
        metadata = result.get("metadata")
        info = {"metadata": metadata} if metadata else {}
        observation = self._observation_to_text(result.get("observation"))
        return observation, result.get("reward") or 0.0, bool(result.get("done")), info

    async def close(self) -> None:
        """Ends the session; the server closes its environment."""
        socket, self._socket = self._socket, None
        if socket is not None:
            await socket.close()

    async def _request(self, kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the data of the server's reply. Raises ValueError for an action that the server finds invalid."""
        from websockets.exceptions import ConnectionClosed

        if self._socket is None:
            raise EpisodeError(f"the session with {self._url} is closed; call reset() first")
        try:
            request = json.dumps({"type": kind, "data": data}, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"it is not JSON: {error}") from error
        try:
            with contextlib.suppress(ConnectionClosed):  # a server without a free session sends its reason and closes
                await self._socket.send(request)
            reply = json.loads(await self._socket.recv())
        except ConnectionClosed as error:
            self._socket = None
            raise EpisodeError(f"the OpenEnv server at {self._url} closed the connection: {error}") from error
        except (ValueError, RecursionError) as error:
            raise EpisodeError(f"the OpenEnv server at {self._url} answered {kind} with no JSON: {error}") from error
        except BaseException:  # a deadline: the reply may come later and would be read as the next one
            socket, self._socket = self._socket, None
            socket.transport.abort()
            raise
        if reply.get("type") == "error":
            self._raise(kind, reply.get("data", {}))
        found: dict[str, Any] = reply["data"]
        return found

    def _raise(self, kind: str, data: Mapping[str, Any]) -> None:
        words, code = data.get("message", "no message"), data.get("code", "no code")
        if kind == "step" and code == "VALIDATION_ERROR":
            errors = data.get("errors") or ()
            details = [f"{'.'.join(map(str, each.get('loc', ())))}: {each.get('msg')}" for each in errors]
            raise ValueError("; ".join(details) or words)
        hint = "; start the server with a larger max_concurrent_envs, or use fewer episodes at once"
        hint = hint if code == "CAPACITY_REACHED" else ""
        raise EpisodeError(f"the OpenEnv server at {self._url} answered {kind} with {code}: {words}{hint}")


async def _connected(url: str, headers: Mapping[str, str]) -> Any:
    client, errors = optional("websockets.asyncio.client", "openenv"), optional("websockets.exceptions", "openenv")
    proxy: dict[str, Any] = {"proxy": None} if is_local(url) else {}
    try:
        options = {"additional_headers": headers, "max_size": _MAX_MESSAGE_BYTES, **proxy}
        return await client.connect(f"ws{url.removeprefix('http')}/ws", **options)
    except (OSError, errors.WebSocketException, TimeoutError) as error:
        problem = f"no connection to the OpenEnv server at {url} ({type(error).__name__}: {error})"
        raise EpisodeError(f"{problem}; is it running?") from error


def _json_in(text: str) -> Any:
    try:
        return json.loads(text[text.index("{") : text.rindex("}") + 1])
    except (ValueError, RecursionError):
        raise ValueError("answer with a JSON object") from None


def _as_text(observation: Any) -> str:
    if isinstance(observation, str):
        return observation
    if isinstance(observation, Mapping):
        seen = {name: value for name, value in observation.items() if name != "metadata"}
        (*_, last) = seen.values() or [None]
        return last if len(seen) == 1 and isinstance(last, str) else json.dumps(seen, ensure_ascii=False)
    raise EpisodeError(f"the observation is a {type(observation).__name__}, not text; give observation_to_text=…")
