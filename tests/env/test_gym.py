"""Gymnasium's environments under our loop, and ours under Gymnasium's own checks."""

from __future__ import annotations

import asyncio
import copy
import sys
import warnings

import pytest

from midthought.config import EnvironmentConfig
from midthought.env.environment import BaseEnvironment
from midthought.env.environment_tasks import EnvironmentTasks
from midthought.env.game import SimpleGameEnvironment
from midthought.env.gym import GymnasiumEnvironment, as_gymnasium
from midthought.errors import EpisodeError, MissingExtraError, SettingsError

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


def lake(**options) -> GymnasiumEnvironment:
    """Gymnasium's own FrozenLake, in words."""
    directions = {"left": 0, "down": 1, "right": 2, "up": 3}
    return GymnasiumEnvironment(
        gymnasium.make("FrozenLake-v1", is_slippery=False, render_mode="ansi"),
        observation_to_text=lambda place: f"row {place // 4}, column {place % 4}",
        text_to_action=lambda text: directions[text.lower()],
        **options,
    )


def test_an_environment_of_text_plays_as_it_is():
    world = GymnasiumEnvironment(Parrot())
    first = world.reset(seed=4)
    assert first == world.reset(seed=4) != world.reset(seed=5)
    assert world.step("polly") == ("polly", 1.0, False, {"heard": 1, "truncated": False})
    assert world.step("bye") == ("bye", 1.0, True, {"heard": 2, "truncated": False})
    assert world.is_done() and world.get_episode_reward() == 2.0


def test_what_gymnasium_cuts_off_is_truncated():
    world = GymnasiumEnvironment(Parrot())
    world.reset()
    world.step("a")
    world.step("b")
    assert world.step("c")[2:] == (True, {"heard": 3, "truncated": True})


@pytest.mark.parametrize("action", ["", "far too long a word", "ÄÖ", "two words"])
def test_a_text_outside_the_action_space_is_answered_and_not_done(action):
    world = GymnasiumEnvironment(Parrot())
    world.reset()
    observation, reward, done, _ = world.step(action)
    assert observation == "Not an action: 1 to 8 of these characters: abcdefghijklmnopqrstuvwxyz"
    assert (reward, done, world.gym_env.heard, world.get_step_count()) == (0.0, False, [], 1)


def test_a_real_environment_with_numbers_plays_in_words():
    world = lake()
    assert world.reset(seed=0) == "row 0, column 0"
    assert world.step("fly")[:3] == ("Not an action: 'fly'", 0.0, False)
    for action in ("down", "down", "right", "Right", "down"):
        assert world.step(action)[1:3] == (0.0, False)
    assert "\n" in world.get_state_description()
    assert world.step("right")[:3] == ("row 3, column 3", 1.0, True)


def test_our_own_limit_on_steps_holds_too():
    world = lake(config=EnvironmentConfig(max_steps=2))
    world.reset(seed=0)
    world.step("left")
    assert world.step("left")[2:] == (True, {"prob": 1.0, "truncated": True})


def test_groups_of_gymnasium_environments_begin_alike():
    tasks = EnvironmentTasks(GymnasiumEnvironment(Parrot()))
    (task,) = tasks.make(1, seed=0)
    one, other = tasks.start(task), tasks.start(task)
    one.step("a")
    assert (one.gym_env.heard, other.gym_env.heard) == (["a"], [])
    assert task.prompt.startswith("hello ")


@pytest.mark.parametrize(
    ("given", "wanted"),
    [({}, "observation_to_text"), ({"observation_to_text": str}, "text_to_action")],
)
def test_a_space_that_is_no_text_needs_a_function(given, wanted):
    with pytest.raises(SettingsError, match=rf"speaks Discrete\(.*\), not text; give {wanted}="):
        GymnasiumEnvironment(gymnasium.make("FrozenLake-v1"), **given)


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(MissingExtraError, match=r"midthought\[gym\]"):
        as_gymnasium(SimpleGameEnvironment())
    with pytest.raises(MissingExtraError, match=r"midthought\[gym\]"):
        GymnasiumEnvironment(object())


def test_the_game_passes_gymnasiums_own_checks():
    from gymnasium.utils.env_checker import check_env

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(as_gymnasium(SimpleGameEnvironment()), skip_render_check=True)


def test_the_game_plays_under_gymnasium():
    world = as_gymnasium(SimpleGameEnvironment())
    observation, info = world.reset(seed=18)
    assert (observation, info) == ("The key is south east.", {})
    assert world.render().endswith("The key is south east.") and "@" in world.render()
    for action in ("south", "east", "take"):
        assert world.step(action)[2:4] == (False, False)
    assert world.step("complete")[2:4] == (True, False)
    assert "Ünï\ncode" in world.observation_space and world.action_space.sample() in world.action_space


def test_an_end_by_the_limit_is_truncated_under_gymnasium():
    world = as_gymnasium(SimpleGameEnvironment(EnvironmentConfig(max_steps=1)))
    world.reset(seed=0)
    assert world.step("dance")[2:4] == (False, True)


def test_there_and_back_again_nothing_is_lost():
    ours = SimpleGameEnvironment()
    back = GymnasiumEnvironment(as_gymnasium(SimpleGameEnvironment()))
    assert ours.reset(seed=18) == back.reset(seed=18)
    for action in ("south", "fly", "east", "take", "complete"):
        one, other = ours.step(action), back.step(action)
        assert one[:3] == other[:3] and one[3].items() <= other[3].items()
    assert back.get_state_description() == ours.get_state_description()
    assert copy.deepcopy(back).is_done()


def test_asynchronous_environments_are_waited_for():
    class Later(BaseEnvironment):
        async def reset(self):
            await asyncio.sleep(0)
            return "begin"

        async def step(self, action):
            if action == "break":
                raise OSError("no server")
            return action, 1.0, True, {}

    world = as_gymnasium(Later())
    assert world.reset()[0] == "begin"
    with pytest.raises(EpisodeError, match="Later raised OSError: no server"):
        world.step("break")
    assert world.step("go") == ("go", 1.0, True, False, {})
