"""What users write is little; what is counted around it is right, whatever they write."""

from __future__ import annotations

import asyncio
import copy
import math
from typing import Any

import numpy as np
import pytest

from midthought.config import ConfigStore, EnvironmentConfig
from midthought.env.environment import BaseEnvironment
from midthought.errors import EpisodeError, SettingsError


class Script(BaseEnvironment):
    """Gives the rewards that it was told to, one a step, and ends after the last."""

    def __init__(self, *rewards: float, config: EnvironmentConfig | None = None) -> None:
        super().__init__(config)
        self.rewards = list(rewards)
        self.heard: list[str] = []

    def reset(self) -> str:
        self.left = list(self.rewards)
        return "begin"

    def step(self, action: str) -> tuple[str, float, bool, dict]:
        self.heard.append(action)
        reward = self.left.pop(0)
        return f"after {action}", reward, not self.left, {}


class Returning(BaseEnvironment):
    """Its `step` and its `reset` give whatever they were told to. Does not call the base class's constructor."""

    def __init__(self, outcome: Any, first: Any = "begin") -> None:
        self.outcome, self.first = outcome, first

    def reset(self) -> Any:
        return self.first

    def step(self, action: str) -> Any:
        return self.outcome


def counted(world: BaseEnvironment) -> tuple[bool, int, float]:
    return world.is_done(), world.get_step_count(), world.get_episode_reward()


def test_steps_rewards_and_the_end_are_counted():
    world = Script(1.0, -0.5)
    assert counted(world) == (False, 0, 0.0) and world.get_prompt_prefix() == ""
    assert world.reset() == "begin" and world.get_state_description() == "begin"
    assert world.step("a") == ("after a", 1.0, False, {}) and counted(world) == (False, 1, 1.0)
    assert world.step("b") == ("after b", -0.5, True, {}) and world.get_state_description() == "after b"
    assert counted(world) == (True, 2, 0.5)
    world.reset()
    assert counted(world) == (False, 0, 0.0)


def test_what_an_environment_calls_of_itself_is_its_own_affair():
    """A step that begins anew for itself is a step all the same, and a reset that steps is no step."""

    class Restless(Script):
        def reset(self):
            super().reset()
            return self.step("look")[0]

        def step(self, action):
            outcome = super().step(action)
            if outcome[2]:
                super().reset()
            return outcome

    world = Restless(0.0, 1.0, 2.0)
    assert world.reset() == "after look" and world.get_step_count() == 0
    world.step("a")
    assert world.step("b")[2] and counted(world) == (True, 2, 3.0)


class Later(BaseEnvironment):
    async def reset(self):
        await asyncio.sleep(0)
        return "begin"

    async def step(self, action):
        await asyncio.sleep(0.001)
        return action, 1.0, action == "end", {}


class EvenLater(Later):
    async def step(self, action):
        observation, reward, done, info = await super().step(action)
        return observation, reward + 1, done, info


def test_asynchronous_environments_are_counted_when_awaited_also_side_by_side():
    async def play() -> list[EvenLater]:
        worlds = [EvenLater() for _ in range(5)]
        assert await worlds[0].reset() == "begin"
        await asyncio.gather(*(world.reset() for world in worlds[1:]))
        for action in ("a", "end"):
            steps = await asyncio.gather(*(world.step(action) for world in worlds))
            assert steps == [(action, 2.0, action == "end", {})] * 5
        with pytest.raises(EpisodeError, match="ended after 2 steps"):
            await worlds[0].step("more")
        return worlds

    assert [counted(world) for world in asyncio.run(play())] == [(True, 2, 4.0)] * 5


def test_the_limit_on_steps_ends_the_episode_as_truncated():
    world = Script(1.0, 1.0, 1.0, config=EnvironmentConfig(max_steps=2))
    world.reset()
    assert world.step("a")[2:] == (False, {})
    assert not world.is_truncated()
    assert world.step("b")[2:] == (True, {"truncated": True}) and world.is_done() and world.is_truncated()
    world.reset()
    assert not world.is_truncated()
    world = Script(1.0, config=EnvironmentConfig(max_steps=1))  # ends by itself at the limit
    world.reset()
    assert world.step("a")[2:] == (True, {}) and not world.is_truncated()
    world = Returning(("seen", 0.0, False, {"truncated": True}))  # goes on
    world.reset()
    assert world.step("a")[3] == {"truncated": True} and not world.is_truncated()


def test_a_step_before_reset_and_one_after_the_end_are_refused():
    world = Script(1.0)
    with pytest.raises(EpisodeError, match=r"Script\.step was called before reset; call reset\(\) first"):
        world.step("a")
    world.reset()
    world.step("a")
    with pytest.raises(EpisodeError, match=r"Script\.step: the episode ended after 1 steps; call reset\(\) first"):
        world.step("b")
    assert world.heard == ["a"]


def test_a_step_that_raises_is_not_counted_and_after_a_reset_that_raised_there_is_no_episode():
    class Fragile(Script):
        def reset(self):
            if len(self.heard) == 1:
                raise OSError("no more worlds")
            return super().reset()

        def step(self, action):
            if action == "break":
                raise ZeroDivisionError("broken")
            return super().step(action)

    world = Fragile(1.0, 1.0)
    world.reset()
    with pytest.raises(ZeroDivisionError, match="broken"):
        world.step("break")
    world.step("a")
    assert world.get_step_count() == 1
    with pytest.raises(OSError, match="no more worlds"):
        world.reset()
    assert world.get_step_count() == 0
    with pytest.raises(EpisodeError, match="before reset"):
        world.step("a")


WRONG_STEPS = [
    (None, r"Returning\.step must return the tuple \(observation, reward, done, info\); it returned None"),
    (("seen", 1.0, False), r"it returned \('seen', 1.0, False\) \(tuple\)"),
    (("seen", 1.0, False, False, {}), r"Gymnasium's .*return \(observation, reward, terminated or truncated, info\)"),
    ((["seen"], 1.0, False, {}), r"the observation must be a str, got \['seen'\] \(list\)"),
    (("seen", math.nan, False, {}), r"Returning\.step: the reward must be a finite number, got nan \(float\)"),
    (("seen", 10**400, False, {}), "finite number, got 1000"),
    (("seen", 1.0, "no", {}), "done must be True or False, got 'no'"),
    (("seen", 1.0, False, None), r"info must be a mapping, got None \(NoneType\); return \{\} for none"),
]


def test_a_step_of_the_wrong_shape_is_named_with_its_remedy():
    for outcome, message in WRONG_STEPS:
        world = Returning(outcome)
        world.reset()
        with pytest.raises(EpisodeError, match=message):
            world.step("go")
        assert world.get_step_count() == 0 and not world.is_done()


def test_a_reset_of_the_wrong_shape_is_named_with_its_remedy():
    with pytest.raises(EpisodeError, match="must return the first observation, a str; it returned None"):
        Returning((), None).reset()
    with pytest.raises(EpisodeError, match="return its first part"):
        Returning((), ("seen", {})).reset()


def test_scalars_of_numpy_are_taken_as_numbers_and_truth_values():
    world = Returning(("seen", np.float32(0.5), np.bool_(True), {"n": 1}))
    world.reset()
    outcome = world.step("go")
    assert outcome == ("seen", 0.5, True, {"n": 1})
    assert [type(part) for part in outcome] == [str, float, bool, dict]
    assert world.get_step_count() == 1 and world.config == EnvironmentConfig(), "without the base class's constructor"


def test_the_whole_settings_in_place_of_the_section_are_refused_and_overwritten_ones_noticed_at_the_first_reset():
    takes = r"Script takes an EnvironmentConfig \(config\.environment\), got a ConfigStore"
    with pytest.raises(SettingsError, match=takes):
        Script(config=ConfigStore())
    world = Script(1.0)
    world.config = {"max_steps": 3}
    with pytest.raises(SettingsError, match=r"Script\.config must be an EnvironmentConfig, got \{'max_steps': 3\}"):
        world.reset()


def test_a_deep_copy_has_the_same_counts_and_goes_its_own_way():
    world = Script(1.0, 2.0, 3.0)
    world.reset()
    world.step("a")
    twin = copy.deepcopy(world)
    assert (twin.get_step_count(), twin.get_episode_reward(), twin.get_state_description()) == (1, 1.0, "after a")
    twin.step("b")
    twin.config.max_steps = 3
    assert (world.get_step_count(), world.get_episode_reward(), world.heard) == (1, 1.0, ["a"])
    assert world.config.max_steps == 10
    assert world.step("c")[1] == 2.0 and twin.step("d")[1] == 3.0
