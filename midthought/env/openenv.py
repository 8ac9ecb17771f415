"""Environments of OpenEnv servers: a session over the server's WebSocket, or a client object of the package `openenv`.

The package is not imported. Sessions need the extra `openenv` (the package `websockets`).
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from midthought.config import EnvironmentConfig
from midthought.config.references import optional
from midthought.env.environment import BaseEnvironment, StepResult
from midthought.env.episode import takes
from midthought.errors import EpisodeError, SettingsError

_MAX_MESSAGE_BYTES = 16 * 2**20
"""Larger messages of a server are an error."""
_MAX_REASON_CHARS = 1000
"""Characters of a server's reason for refusing an action that the policy reads."""


def from_openenv(
    client: Any,
    *,
    text_to_action: Callable[[str], Any] | None = None,
    observation_to_text: Callable[[Any], str] | None = None,
    reset_options: Mapping[str, Any] | Callable[[int], Mapping[str, Any]] | None = None,
    headers: Mapping[str, str] | None = None,
    config: EnvironmentConfig | None = None,
) -> BaseEnvironment:
    """Returns an environment for a server at a URL, or for an OpenEnv client, synchronous or asynchronous.

    >>> world = from_openenv("http://localhost:8000", text_to_action=lambda text: {"code": text})

    With a URL, every episode has its own session (a WebSocket connection), which is closed with the episode. The server must
    allow as many sessions as there are episodes at once (`max_concurrent_envs`). A client is one session: train with a factory,
    `lambda: from_openenv(Client(url), …)`.

    Args:
        client: `http://…`, `https://…`, or an object with `reset()` and `step(action)` that return a result with `observation`,
            `reward` (None counts as 0) and `done`; `close()` is called if there is one.
        text_to_action: converts the policy's text to an action, for example `lambda text: {"code": text}`. An action that it
            refuses with ValueError, or that the server finds invalid, is not executed: the observation is the reason, the reward
            0. Default with a URL: the text, if the server's action has one required field and that is a string; else the JSON
            object in the text. Default with a client: the text.
        observation_to_text: default: the observation if it is text, its only field if that is text, or a mapping's JSON; without
            `metadata`.
        reset_options: further arguments of the server's `reset`, also as a function of the seed, for example
            `lambda seed: {"split": "train", "index": seed % 1000}`.
        headers: HTTP headers of a session, for example for authorization.

    Raises `SettingsError` for an invalid URL, `MissingExtraError` without `websockets`.
    """
    session = OpenEnvSession(client, headers) if isinstance(client, str) else client
    if headers is not None and session is client:
        raise SettingsError("headers are sent with a URL only; give them to the client")
    return OpenEnvEnvironment(session, text_to_action, observation_to_text or _as_text, reset_options, config)


class OpenEnvEnvironment(BaseEnvironment):
    """See `from_openenv`."""

    def __init__(
        self,
        client: Any,
        text_to_action: Callable[[str], Any] | None,
        observation_to_text: Callable[[Any], str],
        reset_options: Mapping[str, Any] | Callable[[int], Mapping[str, Any]] | None = None,
        config: EnvironmentConfig | None = None,
    ) -> None:
        super().__init__(config)
        self._client = client
        self._text_to_action = text_to_action
        self._observation_to_text = observation_to_text
        self._reset_options = reset_options

    def reset(self, seed: int | None = None) -> Any:
        """Calls `client.reset` with the options, and with the seed if it takes one."""
        options = self._reset_options
        options = dict(options(seed or 0) if callable(options) else options or {})
        if seed is not None and takes(self._client.reset, seed=seed):
            options.setdefault("seed", seed)
        return _then(self._client.reset(**options), lambda result: self._observation_to_text(result.observation))

    def step(self, action: str) -> Any:
        """Calls `client.step` with the action of the text."""

        def read(result: Any) -> StepResult:
            if isinstance(result, _Refused):
                return f"Not an action: {result.reason}", 0.0, False, {}
            metadata = getattr(result, "metadata", None)
            info = {"metadata": metadata} if metadata else {}
            return self._observation_to_text(result.observation), result.reward or 0.0, bool(result.done), info

        own: Callable[[str], Any] = getattr(self._client, "text_to_action", str)
        convert = self._text_to_action or own
        try:
            converted = convert(action)
        except ValueError as error:
            return read(_Refused(str(error)))
        return _then(self._client.step(converted), read)

    def get_prompt_prefix(self) -> str:
        """Returns the form of an action if the server's schema defines it; else empty."""
        return "" if self._text_to_action else getattr(self._client, "instructions", "")

    def state(self) -> Any:
        """Returns the server's state of the episode, from `client.state()`; awaitable if the client is asynchronous."""
        return self._client.state()

    def close(self) -> Any:
        """Closes the client, if it can be closed."""
        close = getattr(self._client, "close", None)
        return None if close is None else close()


class _Refused(NamedTuple):
    """An action that was not executed."""

    reason: str


class _Result(NamedTuple):
    """Result of `reset` and `step`."""

    observation: Any
    reward: float | None
    done: bool
    metadata: Any


class OpenEnvSession:
    """A session with an OpenEnv server over `/ws`: an environment of its own there. All calls run on one event loop.

    The server's HTTP routes `/reset` and `/step` are not used: they create a new environment for every request, so an episode of
    several steps is not possible there. The connection is made by the first `reset`. A session is copied only before that.
    """

    def __init__(self, url: str, headers: Mapping[str, str] | None = None) -> None:
        """Raises `SettingsError` for an address without `http://` or `https://`."""
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise SettingsError(
                f"{url!r} is not the address of an OpenEnv server; give one like 'http://localhost:8000'"
            )
        self.instructions = ""
        """Form of an action, by the server's schema; known after the first `reset`."""
        self._url = url.rstrip("/")
        self._headers = headers
        self._socket: Any = None
        self._read_action: Callable[[str], Any] | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> OpenEnvSession:
        if self._socket is not None:
            raise TypeError("a session with an OpenEnv server cannot be copied after its first reset")
        return OpenEnvSession(self._url, self._headers)

    def text_to_action(self, text: str) -> Any:
        """Converts text to an action by the server's schema. Raises ValueError for other text."""
        assert self._read_action is not None, "reset comes first"
        return self._read_action(text)

    async def reset(self, **options: Any) -> _Result:
        """Starts an episode. Raises `EpisodeError` if the server cannot be reached, has no free session, or fails."""
        if self._socket is None:
            self._socket = await _connected(self._url, self._headers)
            self.instructions, self._read_action = _action_form(await _schema(self._url, self._headers))
        return _result(await self._request("reset", options))

    async def step(self, action: Any) -> _Result | _Refused:
        """Executes an action, a mapping or a model of pydantic."""
        data = action.model_dump() if hasattr(action, "model_dump") else action
        if not isinstance(data, Mapping):
            return _Refused("the action must be a JSON object")
        try:
            return _result(await self._request("step", data))
        except _InvalidAction as error:
            return _Refused(str(error)[:_MAX_REASON_CHARS])

    async def state(self) -> dict[str, Any]:
        """Returns the server's state of the episode."""
        return await self._request("state")

    async def close(self) -> None:
        """Ends the session; the server closes its environment."""
        socket, self._socket = self._socket, None
        if socket is not None:
            await socket.close()

    async def _request(self, kind: str, data: Any = None) -> dict[str, Any]:
        from websockets.exceptions import ConnectionClosed

        if self._socket is None:
            raise EpisodeError(f"the session with {self._url} is closed; call reset() first")
        message = {"type": kind} if data is None else {"type": kind, "data": data}
        try:
            with contextlib.suppress(ConnectionClosed):  # a server without a free session sends its reason and closes
                await self._socket.send(json.dumps(message))
            reply = json.loads(await self._socket.recv())
        except ConnectionClosed as error:
            self._socket = None
            raise EpisodeError(f"the OpenEnv server at {self._url} closed the connection: {error}") from error
        except (TypeError, ValueError, RecursionError) as error:
            raise _InvalidAction(f"the action or the reply is not JSON: {error}") from error
        except BaseException:  # a deadline: the reply may come later and would be read as the next one
            socket, self._socket = self._socket, None
            socket.transport.abort()
            raise
        if reply.get("type") == "error":
            self._raise(kind, reply.get("data", {}))
        return reply["data"]

    def _raise(self, kind: str, data: Mapping[str, Any]) -> None:
        words, code = data.get("message", "no message"), data.get("code", "no code")
        if kind == "step" and code == "VALIDATION_ERROR":
            details = [
                f"{'.'.join(map(str, each.get('loc', ())))}: {each.get('msg')}" for each in data.get("errors") or ()
            ]
            raise _InvalidAction("; ".join(details) or words)
        hint = ""
        if code == "CAPACITY_REACHED":
            hint = "; start the server with a larger max_concurrent_envs, or use fewer episodes at once"
        raise EpisodeError(f"the OpenEnv server at {self._url} answered {kind} with {code}: {words}{hint}")


class _InvalidAction(ValueError):
    pass


async def _connected(url: str, headers: Mapping[str, str] | None) -> Any:
    client, errors = optional("websockets.asyncio.client", "openenv"), optional("websockets.exceptions", "openenv")
    address = f"ws{url.removeprefix('http')}/ws"
    is_local = urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")
    proxy: dict[str, Any] = {"proxy": None} if is_local else {}
    try:
        return await client.connect(
            address, additional_headers=dict(headers or {}), max_size=_MAX_MESSAGE_BYTES, **proxy
        )
    except (OSError, errors.WebSocketException, TimeoutError) as error:
        raise EpisodeError(
            f"no connection to the OpenEnv server at {url} ({type(error).__name__}: {error}); is it running?"
        ) from error


async def _schema(url: str, headers: Mapping[str, str] | None) -> Mapping[str, Any]:
    """Returns the JSON schema of the server's action; an empty one if it does not publish any."""

    def fetch() -> Mapping[str, Any]:
        request = urllib.request.Request(f"{url}/schema", headers=dict(headers or {}))  # noqa: S310  # http(s), see above
        try:
            with urllib.request.urlopen(request, timeout=10) as reply:  # noqa: S310
                return json.load(reply).get("action", {})
        except (OSError, ValueError, AttributeError, RecursionError):
            return {}

    return await asyncio.to_thread(fetch)


def _action_form(schema: Mapping[str, Any]) -> tuple[str, Callable[[str], Any]]:
    """Returns the form of an action for the policy, and the function that reads one."""
    fields = {name: part for name, part in schema.get("properties", {}).items() if name != "metadata"}
    required = [name for name in schema.get("required", ()) if name in fields]
    if len(required) == 1 and fields[required[0]].get("type") == "string":
        return "", lambda text: {required[0]: text}
    parts = ", ".join(f"{name} ({part.get('type', 'any')})" for name, part in fields.items())
    form = f"a JSON object with {parts}" if parts else "a JSON object"

    def read(text: str) -> Any:
        try:
            action = json.loads(text[text.index("{") : text.rindex("}") + 1])
        except (ValueError, RecursionError):
            raise ValueError(f"answer with {form}") from None
        return action

    return f"Answer with {form}.", read


def _result(data: Mapping[str, Any]) -> _Result:
    return _Result(data.get("observation"), data.get("reward"), bool(data.get("done")), data.get("metadata"))


def _as_text(observation: Any) -> str:
    if isinstance(observation, str):
        return observation
    if isinstance(observation, Mapping):
        seen = {name: value for name, value in observation.items() if name != "metadata"}
        (*_, last) = seen.values() or [None]
        return last if len(seen) == 1 and isinstance(last, str) else json.dumps(seen, ensure_ascii=False)
    fields = ", ".join(vars(observation)) if hasattr(observation, "__dict__") else "no fields"
    raise EpisodeError(
        f"the observation is a {type(observation).__name__} with {fields}, not text; give observation_to_text=…"
    )


def _then(value: Any, function: Callable[[Any], Any]) -> Any:
    """Returns `function(value)`, or an awaitable of it if the value is awaitable."""
    if not inspect.isawaitable(value):
        return function(value)

    async def later() -> Any:
        return function(await value)

    return later()
