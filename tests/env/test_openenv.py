"""OpenEnv: sessions with a server over its WebSocket, and a real server of the package `openenv`."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from served import served
from stepping import begin, check_training, do

from midthought.env.environment_tasks import EnvironmentTaskSampler
from midthought.env.episode import call_blocking
from midthought.env.openenv import OpenEnvEnvironment
from midthought.errors import EpisodeError, MissingExtraError, SettingsError


class Server:
    """An ASGI application with the route `/ws` of an OpenEnv server. Echoes `say`; other actions break it."""

    def __init__(self) -> None:
        self.num_open = 0
        self.headers: list[bytes] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.headers += [value for name, value in scope.get("headers", ()) if name == b"authorization"]
        if scope["type"] == "websocket" and scope["path"] == "/ws":
            await receive()
            await send({"type": "websocket.accept"})
            self.num_open += 1
            try:
                while (event := await receive())["type"] == "websocket.receive":
                    if (answer := await self.answer(**json.loads(event["text"]))) is None:
                        await send({"type": "websocket.close"})
                        break
                    text = answer if isinstance(answer, str) else json.dumps(answer)
                    await send({"type": "websocket.send", "text": text})
            finally:
                self.num_open -= 1

    async def answer(self, type: str, data: Any = None) -> dict[str, Any] | str | None:
        if type == "reset":
            seen = ", ".join(f"{name} {value}" for name, value in data.items())
            return {"type": "observation", "data": {"observation": {"text": seen}, "done": False}}
        said = data.get("say", "")
        if said == "sleep":
            await asyncio.sleep(3600)
        if said in ("leave", "oops"):
            return None if said == "leave" else said
        if said in ("VALIDATION_ERROR", "EXECUTION_ERROR", "CAPACITY_REACHED"):
            return {"type": "error", "data": {"message": "no", "code": said}}
        paid = {"reward": 0.5, "done": said == "end", "metadata": {"a": 1}}
        return {"type": "observation", "data": {"observation": {"text": said, "metadata": {}}, **paid}}


def playing(url: str, **options: Any) -> OpenEnvEnvironment:
    return OpenEnvEnvironment(url, text_to_action=lambda text: {"say": text}, **options)


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def url(server: Server) -> Iterator[str]:
    pytest.importorskip("websockets")
    with served(server) as address:
        yield address


def test_a_session_is_reset_stepped_also_after_an_invalid_action_and_closed(url: str, server: Server) -> None:
    world = playing(url, headers={"Authorization": "Bearer x"})
    assert begin(world, seed=3) == "seed 3"
    assert do(world, "VALIDATION_ERROR") == ("Not an action: no", 0.0, False, {})
    assert do(world, "hello") == ("hello", 0.5, False, {"metadata": {"a": 1}})
    assert do(world, "end")[2] and world.get_episode_reward() == 1.0
    assert server.num_open == 1 and set(server.headers) == {b"Bearer x"}
    call_blocking(world.close, 30.0, "close")
    assert is_soon(lambda: server.num_open == 0)


def is_soon(condition: Any) -> bool:
    for _ in range(500):
        if condition():
            return True
        time.sleep(0.02)
    return False


def test_reset_options_may_follow_from_the_seed_and_an_action_may_be_refused_here(url: str) -> None:
    world = OpenEnvEnvironment(
        url, text_to_action=lambda text: {"say": str(int(text))}, reset_options=lambda seed: {"index": seed % 10}
    )
    assert begin(world, seed=27) == "index 7, seed 27"
    assert do(world, "x")[:3] == ("Not an action: invalid literal for int() with base 10: 'x'", 0.0, False)
    assert do(world, "5")[0] == "5"
    world = OpenEnvEnvironment(url, observation_to_text=str, reset_options={"split": "train"})
    assert begin(world) == "{'text': 'split train'}"


def test_an_observation_that_is_no_text_is_named() -> None:
    class Silent(Server):
        async def answer(self, type: str, data: Any = None) -> dict[str, Any]:
            return {"type": "observation", "data": {"observation": None}}

    pytest.importorskip("websockets")
    with served(Silent()) as url, pytest.raises(EpisodeError, match="is a NoneType, not text; give observation_to"):
        begin(OpenEnvEnvironment(url))


@pytest.mark.parametrize(
    ("action", "words"),
    [
        ("EXECUTION_ERROR", "answered step with EXECUTION_ERROR: no$"),
        ("CAPACITY_REACHED", "CAPACITY_REACHED: no; start the server with a larger max_concurrent_envs"),
        ("leave", "closed the connection"),
        ("oops", "answered step with no JSON: Expecting value"),
        ("sleep", "did not finish within 0.3 seconds"),
    ],
)
def test_a_server_that_fails_ends_the_episode(url: str, server: Server, action: str, words: str) -> None:
    world = playing(url)
    begin(world)
    with pytest.raises(EpisodeError, match=words):
        call_blocking(lambda: world.step(action), 0.3 if action == "sleep" else 30.0, "step")
    if action in ("leave", "sleep"):
        with pytest.raises(EpisodeError, match=r"the session with .* is closed; call reset\(\) first"):
            do(world, "hello")
    assert begin(world, seed=1) == "seed 1", "a reset connects again"


def test_without_a_function_an_action_is_the_json_in_the_text(url: str) -> None:
    world = OpenEnvEnvironment(url)
    begin(world)
    assert do(world, "I say hello.")[0] == "Not an action: answer with a JSON object"
    assert do(world, '{"say": NaN}')[0].startswith("Not an action: it is not JSON: ")
    assert do(world, 'So: {"x": 1, "say": "hello"}.')[0] == "hello"


def test_episodes_of_a_group_have_sessions_of_their_own(url: str, server: Server) -> None:
    tasks = EnvironmentTaskSampler(playing(url), seed=0)
    (task,) = tasks.draw(0, 1)
    worlds = [tasks.episode(task).environment for _ in range(3)]
    assert server.num_open == 3 and all(world.get_state_description() == task.prompt for world in worlds)
    for world in worlds:
        call_blocking(world.close, 30.0, "close")
    tasks.close()
    assert is_soon(lambda: server.num_open == 0)


def test_a_model_trains_on_a_server_and_leaves_no_session(url: str, server: Server) -> None:
    check_training(playing(url))
    assert is_soon(lambda: server.num_open == 0)


def test_a_server_that_is_not_there_is_named() -> None:
    pytest.importorskip("websockets")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    with pytest.raises(EpisodeError, match=f"no connection to the OpenEnv server at {address} .*is it runn"):
        begin(OpenEnvEnvironment(address))


@pytest.mark.parametrize("address", ["localhost:8000", "ws://localhost", "http://"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(SettingsError, match=r"is not the address of an OpenEnv server; give one like 'http://"):
        OpenEnvEnvironment(address)


def test_without_the_websocket_client_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "websockets.asyncio.client", None)
    with pytest.raises(MissingExtraError, match=r"midthought\[openenv\]"):
        asyncio.run(OpenEnvEnvironment("http://localhost:1").reset())


@pytest.fixture(scope="module")
def real_url() -> Iterator[str]:
    """A server of the package `openenv`: guess a number that follows from the seed; four sessions at once."""
    pytest.importorskip("openenv.core", reason="needs the package openenv: make test-all")
    from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app

    class Guess(Action):
        number: int

    class Hint(Observation):
        text: str

    class Game(Environment):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def reset(self, seed=None, episode_id=None, **options):
            self.number, self.num_guesses = (seed or 0) % 9, 0
            return Hint(text=f"a number below {options.get('top', 9)}")

        def step(self, action, timeout_s=None, **options):
            self.num_guesses += 1
            if action.number < 0:
                raise RuntimeError("negative")
            is_right = action.number == self.number
            return Hint(text="right" if is_right else "wrong", reward=is_right, done=is_right)

        @property
        def state(self):
            return State(step_count=self.num_guesses)

    with served(create_fastapi_app(Game, Guess, Hint, max_concurrent_envs=4)) as address:
        yield address


def test_a_server_of_the_package_is_played(real_url: str) -> None:
    world = OpenEnvEnvironment(real_url, reset_options={"top": 10})
    assert begin(world, seed=5) == "a number below 10"
    assert do(world, '{"number": 4}') == ("wrong", 0.0, False, {})
    assert do(world, '{"number": "many"}')[0].startswith("Not an action: number: Input should be a valid integer")
    assert do(world, '{"number": 5}') == ("right", 1.0, True, {})
    begin(world, seed=0)
    with pytest.raises(EpisodeError, match=r"answered step with EXECUTION_ERROR: .*negative"):
        do(world, '{"number": -1}')
    call_blocking(world.close, 30.0, "close")
