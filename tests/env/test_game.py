"""The game: its rules, and how it reads."""

from __future__ import annotations

import random

import pytest

from midthought.env.game import SimpleGameEnvironment
from midthought.errors import SettingsError


def game(seed: int = 0, **settings) -> SimpleGameEnvironment:
    made = SimpleGameEnvironment(**settings)
    made.reset(seed=seed)
    return made


@pytest.mark.parametrize("wrong", [{"grid_size": 1}, {"num_items": 0}, {"num_items": 5}])
def test_a_size_that_is_no_game_is_refused(wrong):
    with pytest.raises(SettingsError, match="give a grid_size of 2 or more, and 1 to 4 items"):
        SimpleGameEnvironment(**wrong)


def placed(room: tuple[int, int], *items: tuple[int, int], **settings) -> SimpleGameEnvironment:
    """A game whose player and items stand in these rooms."""

    class Placing(random.Random):
        def choices(self, rooms, *, k):
            assert {room, *items} <= set(rooms) and k == 1 + len(items)
            return [room, *items]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("midthought.env.game.random.Random", Placing)
        return game(num_items=len(items), **settings)


def room_of_player(world: SimpleGameEnvironment) -> tuple[int, int]:
    lines = world.get_state_description().splitlines()
    return next((row, line.split().index("@")) for row, line in enumerate(lines) if "@" in line)


def test_a_game_worked_by_hand():
    world = placed((0, 0), (1, 1))
    assert world.get_state_description() == "@ . .\n. k .\n. . .\nThe key is south east."
    assert world.step("move south") == ("The key is east.", 0.04, False, {"success": False, "possible": True})
    assert world.step("Go EAST, please!")[:3] == ("The key is here.", pytest.approx(0.04 * 0.95), False)
    assert world.get_state_description().splitlines()[1] == ". @ ."
    assert world.step("take key")[:3] == ("You have the key.", pytest.approx(0.5 * 0.95**2), False)
    answer = world.step("complete")
    assert answer == ("Done.", pytest.approx(0.95**3), True, {"success": True, "possible": True})
    assert world.get_episode_reward() == pytest.approx(0.04 + 0.04 * 0.95 + 0.5 * 0.95**2 + 0.95**3)


def test_what_cannot_be_done_changes_nothing_is_told_what_can_and_uses_up_a_step():
    world = placed((0, 0), (0, 1))
    before = world.get_state_description()
    for action in ("move north", "take key", "complete", "fly", ""):
        answer, reward, done, info = world.step(action)
        assert answer == "You can move south, move east. The key is east."
        assert (reward, done, info) == (0.0, False, {"success": False, "possible": False})
    assert world.get_state_description() == before and world.get_step_count() == 5
    assert world.step("move east")[1] == pytest.approx(0.04 * 0.95**5)


TEXTS = [
    ("move north", "north"),
    ("<answer>north</answer>", "north"),
    ("take key", "take"),
    ("take the golden key", "take"),
    ("pick up the key", None),
    ("complete", None),
    ("x" * 100_000 + " take", "take"),
]


def test_the_first_action_in_the_text_is_done():
    for text, done in TEXTS:
        world = placed((1, 1), (1, 1), (0, 0))
        world.step(text)
        reached = {"north": (0, 1), "south": (2, 1)}.get(done or "", (1, 1))
        assert room_of_player(world) == reached
        assert ("You have the key." in world.get_state_description()) is (done == "take")


def test_the_same_seed_begins_the_same_game_and_other_seeds_others():
    starts = [game(seed).get_state_description() for seed in range(30)]
    assert starts == [game(seed).get_state_description() for seed in range(30)]
    assert len(set(starts)) > 15


def test_before_the_first_reset_there_is_nothing_to_see():
    world = SimpleGameEnvironment()
    assert world.get_state_description() == "" and world.get_prompt_prefix().startswith("Take every item")
