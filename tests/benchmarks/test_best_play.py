"""The best return of the game, which the benchmark searches for, is that of all plays."""

from __future__ import annotations

import copy

import pytest

from benchmarks.game import Game
from midthought.config import EnvironmentConfig
from midthought.env.game import DIRECTIONS, ITEMS

ACTIONS = [*(f"move {direction}" for direction in DIRECTIONS), *(f"take {item}" for item in ITEMS), "complete"]


def best_of_all(world: Game) -> float:
    """The best return over all sequences of actions that can be done, played out on copies."""
    if world.is_done():
        return world.get_episode_reward()
    returns = []
    for action in ACTIONS:
        twin = copy.deepcopy(world)
        if twin.step(action)[3]["possible"]:
            returns.append(best_of_all(twin))
    return max(returns)


@pytest.mark.parametrize(
    ("seed", "settings"),
    [
        (0, {"grid_size": 2, "max_steps": 4}),
        (1, {"grid_size": 2, "max_steps": 2}),
        (3, {"grid_size": 2, "num_items": 2, "max_steps": 4}),
        (5, {"grid_size": 3, "max_steps": 3}),
    ],
)
def test_the_best_return_is_that_of_all_plays(seed, settings):
    world = Game(EnvironmentConfig(**settings))
    world.reset(seed=seed)
    assert world.optimal_return() == pytest.approx(best_of_all(world))
