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
    ("seed", "max_steps", "sizes"),
    [(0, 4, {"grid_size": 2}), (1, 2, {"grid_size": 2}), (3, 4, {"grid_size": 2, "num_items": 2}), (5, 3, {})],
)
def test_the_best_return_is_that_of_all_plays(seed, max_steps, sizes):
    world = Game(EnvironmentConfig(max_steps=max_steps), **sizes)
    world.reset(seed=seed)
    assert world.optimal_return() == pytest.approx(best_of_all(world))
