"""`SimpleGameEnvironment`: a text game on a square of rooms, in which the player collects items."""

from __future__ import annotations

import itertools
import random
import re
from typing import Any, NamedTuple

from midthought.config import EnvironmentConfig
from midthought.env.environment import BaseEnvironment
from midthought.errors import SettingsError

ITEMS = ("key", "lamp", "coin", "map")
DIRECTIONS = {"north": (-1, 0), "south": (1, 0), "east": (0, 1), "west": (0, -1)}
"""Change of (row, column) by a move; rows count from the north, columns from the west."""

Room = tuple[int, int]


class GameState(NamedTuple):
    """Position of the player, and the rooms of the items that are not taken."""

    room: Room
    lying: tuple[tuple[str, Room], ...]


class SimpleGameEnvironment(BaseEnvironment):
    """Take every item, then complete: `grid_size` × `grid_size` rooms, 1 to 4 items (`num_items`), random start.
    Raises `SettingsError` for other numbers.

    Actions are `move north` (south, east, west), `take key` (lamp, coin, map) and `complete`, which ends the episode if all
    items are taken. Parsing is lenient: the first action in the text counts, other words and case do not matter, a direction
    alone is a move, `take` alone takes the item in this room. An impossible action changes nothing; the observation lists
    the possible ones.

    Taking an item gives 0.5, completing 1, a move towards the nearest item 0.04. Each earlier step, possible or not, reduces
    a reward by 5 %. No return is negative, so a policy gains nothing by never ending a turn.

    By default, optimal play takes 2 to 6 steps and returns 1.39 on average. A policy that draws uniformly
    from the possible actions gets 0.27 of that, one that writes three random words of the game's vocabulary 0.08.
    `info`: `success` is True once completed; `possible` is False if the action was impossible.

    Examples:
        >>> game = SimpleGameEnvironment()
        >>> game.reset(seed=18)
        'The key is south east.'
        >>> game.step("First I move south.")[:3]
        ('The key is east.', 0.04, False)
    """

    NEARER_REWARD = 0.04
    TAKE_REWARD = 0.5
    COMPLETE_REWARD = 1.0
    KEPT_PER_STEP = 0.95

    def __init__(self, config: EnvironmentConfig | None = None, *, grid_size: int = 3, num_items: int = 1) -> None:
        super().__init__(config)
        if grid_size < 2 or not 1 <= num_items <= len(ITEMS):
            remedy = f"give a grid_size of 2 or more, and 1 to {len(ITEMS)} items"
            raise SettingsError(f"grid_size={grid_size}, num_items={num_items}: {remedy}")
        self.grid_size, self.num_items = grid_size, num_items

    def reset(self, seed: int | None = None) -> str:
        """Puts the player and the items into random rooms, which depend only on the seed."""
        draw = random.Random(seed)
        size = range(self.grid_size)
        rooms = list(itertools.product(size, size))
        room, *item_rooms = draw.choices(rooms, k=1 + self.num_items)
        self._state = GameState(room, tuple(zip(ITEMS, item_rooms, strict=False)))
        return self._sight()

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        """Executes the first action in the text. `done` is True once completed."""
        possible = self._possible(self._state)
        chosen = self._first_action(action)
        if chosen not in possible:
            answer = f"You can {', '.join(possible)}. {self._sight()}"
            return answer, 0.0, False, {"success": False, "possible": False}
        following = possible[chosen]
        reward = self._reward(self._state, following, self.get_step_count())
        if following is None:
            return "Done.", reward, True, {"success": True, "possible": True}
        self._state = following
        return self._sight(), reward, False, {"success": False, "possible": True}

    def get_prompt_prefix(self) -> str:
        """Returns the rules, in two lines."""
        actions = [*(f"move {direction}" for direction in DIRECTIONS), *(f"take {name}" for name in self._items())]
        return f"Take every item, then complete.\nYou can {', '.join(actions)}, complete."

    def get_state_description(self) -> str:
        """Returns a map with north at the top (`@`: player, letter: item) and what the player sees; empty before `reset`."""
        if not hasattr(self, "_state"):
            return ""
        signs = {room: name[0] for name, room in reversed(self._state.lying)} | {self._state.room: "@"}
        size = range(self.grid_size)
        lines = [" ".join(signs.get((row, column), ".") for column in size) for row in size]
        return "\n".join([*lines, self._sight()])

    def _reward(self, state: GameState, reached: GameState | None, num_steps: int) -> float:
        """Returns the reward of the transition from `state` to `reached` after `num_steps` steps."""
        if reached is None:
            pay = self.COMPLETE_REWARD
        elif len(reached.lying) < len(state.lying):
            pay = self.TAKE_REWARD
        else:
            pay = self.NEARER_REWARD if _to_nearest(reached) < _to_nearest(state) else 0.0
        return pay * self.KEPT_PER_STEP**num_steps

    def _items(self) -> tuple[str, ...]:
        return ITEMS[: self.num_items]

    def _possible(self, state: GameState) -> dict[str, GameState | None]:
        """Returns the possible actions in a state and the state after each; None is the end."""
        size, (row, column) = self.grid_size, state.room
        possible: dict[str, GameState | None] = {}
        for direction, (down, right) in DIRECTIONS.items():
            if 0 <= row + down < size and 0 <= column + right < size:
                possible[f"move {direction}"] = state._replace(room=(row + down, column + right))
        for item in state.lying:
            if item[1] == state.room:
                possible[f"take {item[0]}"] = state._replace(lying=tuple(each for each in state.lying if each != item))
        if not state.lying:
            possible["complete"] = None
        return possible

    def _first_action(self, text: str) -> str:
        """Returns the first action in a text, in the form of `_possible`; empty if there is none."""
        words = re.findall(r"[a-z]+", text.lower())
        for position, word in enumerate(words):
            if word in DIRECTIONS:
                return f"move {word}"
            if word == "complete":
                return word
            if word == "take":
                here = (name for name, room in self._state.lying if room == self._state.room)
                named = next((each for each in words[position + 1 :] if each in self._items()), None)
                return f"take {named or next(here, '')}"
        return ""

    def _sight(self) -> str:
        """Returns one sentence for each item: taken, here, or its direction."""
        lying = dict(self._state.lying)
        return " ".join(
            f"The {name} is {self._direction(lying[name])}." if name in lying else f"You have the {name}."
            for name in self._items()
        )

    def _direction(self, room: Room) -> str:
        down, right = room[0] - self._state.room[0], room[1] - self._state.room[1]
        vertical = "south" if down > 0 else "north" if down < 0 else ""
        horizontal = "east" if right > 0 else "west" if right < 0 else ""
        return f"{vertical} {horizontal}".strip() or "here"


def _to_nearest(state: GameState) -> int:
    """Returns the number of moves to the nearest item; 0 if none is left."""
    return min((abs(room[0] - state.room[0]) + abs(room[1] - state.room[1]) for _, room in state.lying), default=0)
