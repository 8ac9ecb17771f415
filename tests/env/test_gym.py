"""Gymnasium's environments under our loop."""

from __future__ import annotations

import copy
import json
import sys

import numpy as np
import pytest

from midthought.env.gym import GymnasiumEnvironment
from midthought.errors import MissingExtraError, SettingsError

gymnasium = pytest.importorskip("gymnasium")


class Parrot(gymnasium.Env):
    """Text in, text out: repeats, pays one for a word it has not heard, ends at `bye`, is cut off after three words."""

    observation_space = gymnasium.spaces.Text(100, min_length=0)
    action_space = gymnasium.spaces.Text(8, charset="abcdefghijklmnopqrstuvwxyz")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.heard = []
        return f"hello {self.np_random.integers(10**6)}", {}

    def step(self, action):
        reward = float(action not in self.heard)
        self.heard.append(action)
        return action, reward, action == "bye", len(self.heard) >= 3, {"heard": len(self.heard)}


def test_an_environment_of_text_plays_as_it_is():
    world = GymnasiumEnvironment(Parrot())
    first = world.reset(seed=4)
    assert first == world.reset(seed=4) != world.reset(seed=5)
    assert world.step("polly") == ("polly", 1.0, False, {"heard": 1, "truncated": False})
    assert world.step(" bye\n") == ("bye", 1.0, True, {"heard": 2, "truncated": False})
    assert world.is_done() and world.get_episode_reward() == 2.0
    world.reset()
    assert [world.step(word)[2:] for word in "abc"][-1] == (True, {"heard": 3, "truncated": True})
    world.reset()
    assert [world.step(word) for word in ("a", "b", "bye")][-1][2:] == (True, {"heard": 3, "truncated": False})
    assert not world.is_truncated(), "it ended by itself in the last step of the limit"


def test_a_text_outside_the_action_space_is_answered_and_not_done():
    for action in ["", "far too long a word", "ÄÖ", "two words"]:
        world = GymnasiumEnvironment(Parrot())
        world.reset()
        observation, reward, done, _ = world.step(action)
        assert observation == "Not an action: answer with 1 to 8 of these characters: abcdefghijklmnopqrstuvwxyz"
        assert (reward, done, world.gym_env.heard, world.get_step_count()) == (0.0, False, [], 1)


def test_a_real_environment_with_numbers_plays_in_words():
    directions = {"left": 0, "down": 1, "right": 2, "up": 3}
    world = GymnasiumEnvironment(
        gymnasium.make("FrozenLake-v1", is_slippery=False, render_mode="ansi"),
        observation_to_text=lambda place: f"row {place // 4}, column {place % 4}",
        text_to_action=lambda text: directions[text.lower()],
    )
    assert world.reset(seed=0) == "row 0, column 0"
    assert world.step("fly")[:3] == ("Not an action: 'fly'", 0.0, False)
    for action in ("down", "down", "right", "Right", "down"):
        assert world.step(action)[1:3] == (0.0, False)
    assert "\n" in world.get_state_description()
    assert world.step("right")[:3] == ("row 3, column 3", 1.0, True)


SPACES = gymnasium.spaces


class Mirror(gymnasium.Env):
    """Observes the last action, first a sample of the space; 1.0 for every step. Counts how often it was closed."""

    def __init__(self, space: SPACES.Space, observed: SPACES.Space | None = None) -> None:
        self.action_space, self.observation_space = space, observed or space
        self.num_closed = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        assert action in self.action_space
        return action, 1.0, False, False, {}

    def close(self):
        self.num_closed += 1


NESTED = SPACES.Dict(
    {"on": SPACES.MultiBinary(3), "rest": SPACES.Tuple((SPACES.Text(5), SPACES.Box(-1, 1, (2, 2)), SPACES.Discrete(3)))}
)


def test_an_integer_is_an_action_of_a_discrete_space():
    world = GymnasiumEnvironment(Mirror(SPACES.Discrete(4)))
    assert world.get_prompt_prefix() == "Answer with an integer from 0 to 3."
    first = world.reset(seed=0)
    assert first == world.reset(seed=0)
    assert world.step("I go 1, no: 3")[:2] == ("3", 1.0)
    assert world.step(first)[:2] == (first, 1.0), "an observation is an action, because both spaces are the same"
    for text in ("north", "4", "-1", "1" * 400):
        assert world.step(text)[:3] == ("Not an action: answer with an integer from 0 to 3", 0.0, False)


def test_an_action_of_several_parts_needs_a_function_and_an_observation_of_them_is_json():
    sample = {"on": [1, 0, 1], "rest": ("ab", np.float32([[0, 1], [0.5, -1]]), 2)}
    for space in (NESTED, SPACES.Box(-1, 1, (2,)), SPACES.MultiDiscrete([2, 3])):
        with pytest.raises(SettingsError, match="has no form as text here; give text_to_action="):
            GymnasiumEnvironment(Mirror(space))
    world = GymnasiumEnvironment(Mirror(NESTED), text_to_action=lambda _: {**sample, "on": np.int8(sample["on"])})
    world.reset(seed=0)
    assert world.step("x")[0] == '{"on": [1, 0, 1], "rest": ["ab", [[0.0, 1.0], [0.5, -1.0]], 2]}'


def test_an_action_of_a_function_that_is_outside_the_space_is_not_executed():
    for space, good, bad in (
        (SPACES.Discrete(4), "3", "4"),
        (SPACES.Box(-1, 1, (2,)), "[0.1, -1]", "[0, 2]"),
        (SPACES.Box(-1, 1, (2,)), "[1, 0]", '{"x": 1}'),
        (SPACES.MultiDiscrete([2, 3]), "[1, 2]", "[2, 0]"),
    ):
        world = GymnasiumEnvironment(Mirror(space), text_to_action=json.loads)
        world.reset(seed=0)
        assert json.loads(world.step(good)[0]) == json.loads(good) and world.step(good)[1] == 1.0
        assert world.step(bad)[:3] == (f"Not an action: answer with an action of {space}", 0.0, False)
    world = GymnasiumEnvironment(Mirror(SPACES.Discrete(4)), text_to_action=lambda text: int(text.split()[1]))
    world.reset(seed=0)
    assert world.step("north")[:2] == ("Not an action: list index out of range", 0.0)


def test_an_observation_that_json_does_not_have_is_named():
    class Wrong(Mirror):
        def step(self, action):
            return object(), 1.0, False, False, None

    world = GymnasiumEnvironment(Wrong(SPACES.Discrete(2)))
    world.reset(seed=0)
    words = "observed <object .*, which cannot be converted to text; give observation_to"
    with pytest.raises(SettingsError, match=words):
        world.step("1")


def test_actions_may_have_names():
    lake = gymnasium.make("FrozenLake-v1", is_slippery=False)
    world = GymnasiumEnvironment(lake, action_names=["left", "down", "right", "up"])
    assert world.get_prompt_prefix() == "Answer with left, down, right or up."
    assert world.reset(seed=0) == "0"
    assert world.step("Not left but DOWN, to the supplies.")[0] == "4"
    assert world.step("fly")[0] == "Not an action: answer with left, down, right or up"
    with pytest.raises(SettingsError, match=r"action_names has 2 names; the action space is Discrete\(4\)"):
        GymnasiumEnvironment(lake, action_names=["left", "right"])
    with pytest.raises(SettingsError, match="one name per action, all different"):
        GymnasiumEnvironment(lake, action_names=["left", "down", "right", "Left"])
    with pytest.raises(SettingsError, match="the same thing twice"):
        GymnasiumEnvironment(lake, action_names=["left"], text_to_action=int)


NO_TEXT = [
    (SPACES.Box(0, 255, (8, 8, 3), np.uint8), "is an image; policies read text only"),
    (SPACES.Box(0, 1, (300,)), "has more than 256 numbers"),
    (SPACES.Dict(seen=SPACES.Box(0, 255, (8, 8), np.uint8)), "is an image"),
]


def test_a_space_that_cannot_be_text_needs_a_function():
    for space, words in NO_TEXT:
        with pytest.raises(SettingsError, match=f"{words}.*; give observation_to_text="):
            GymnasiumEnvironment(Mirror(SPACES.Discrete(2), observed=space))
        world = GymnasiumEnvironment(Mirror(SPACES.Discrete(2), observed=space), observation_to_text=lambda _: "seen")
        assert world.reset(seed=0) == "seen"


def test_what_is_not_one_environment_of_gymnasium_is_refused():
    with pytest.raises(SettingsError, match="contains several environments; give one"):
        GymnasiumEnvironment(gymnasium.make_vec("CartPole-v1", num_envs=2))
    with pytest.raises(SettingsError, match=r"is not a gymnasium\.Env"):
        GymnasiumEnvironment(lambda: None)


def test_environments_of_the_package_play_without_functions():
    for name in ["CartPole-v1", "Blackjack-v1", "Taxi-v4"]:
        world = GymnasiumEnvironment(gymnasium.make(name))
        assert world.reset(seed=0) == world.reset(seed=0) != ""
        assert world.step("1")[3]["truncated"] is False
        copy.deepcopy(world).close()


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(MissingExtraError, match=r"midthought\[gym\]"):
        GymnasiumEnvironment(object())
