"""Games of the package `textarena`: the policy is one player, the others are functions. Imports the package for a game's name."""

from __future__ import annotations

import contextlib
import functools
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from midthought.config import EnvironmentConfig
from midthought.env.environment import BaseEnvironment, StepResult
from midthought.env.episode import call_blocking
from midthought.errors import EpisodeError, SettingsError
from midthought.references import optional

MAX_OPPONENT_MOVES = 1000
"""Moves of opponents between two moves of the policy; more are an error."""

Opponent = Callable[[str], Any]
"""From everything a player has seen to its move, plain or `async def`: a function or a `textarena.Agent`."""


def from_textarena(
    game: Any,
    *,
    opponent: Opponent | Mapping[int, Opponent] | None = None,
    num_players: int | None = None,
    player: int | None = 0,
    config: EnvironmentConfig | None = None,
) -> BaseEnvironment:
    """Returns an environment in which the policy plays a game of TextArena.

    >>> world = from_textarena("TicTacToe-v0", opponent=lambda seen: "[4]")

    An observation is what the player has been told since its last move; the chat keeps the earlier messages, so the observation
    wrappers of the game are not used. The player's reward is the reward of the last step; `info["reason"]` says why the game
    ended, and `info["success"]` whether the reward is positive (with one player: at least 1). An invalid move is the game's to
    judge: most repeat the request once, then the player loses.

    Args:
        game: a name such as `"GuessTheNumber-v0"`, or what `textarena.make` returned.
        opponent: plays all other players, or a mapping from player to function. It does not learn. It reads everything that its
            player has seen, and has `config.step_timeout_seconds` for a move.
        num_players: default: 1 without an opponent, 2 with one, or one more than the mapping has.
        player: the policy's number, from 0. None: drawn by the seed of `reset`.

    Raises `SettingsError` for players without an opponent, and for an unknown name; `MissingExtraError` without TextArena.
    """
    moves: dict[int, Opponent] = dict(opponent) if isinstance(opponent, Mapping) else {}
    if num_players is None:
        num_players = 1 if opponent is None else max(2, 1 + len(moves))
    if num_players > 1 and opponent is None:
        raise SettingsError(f"a game of {num_players} players needs opponent=…, a function from text to a move")
    if player is not None and not 0 <= player < num_players:
        raise SettingsError(f"player={player}: a game of {num_players} players has the players 0 to {num_players - 1}")
    if opponent is not None and not isinstance(opponent, Mapping):
        moves = dict.fromkeys(range(num_players), opponent)
    if num_players > 1 and (missing := {*range(num_players)} - {*moves, player}):
        raise SettingsError(
            f"players without an opponent: {', '.join(map(str, sorted(missing)))}; name them in opponent"
        )
    return TextArenaEnvironment(_made(game), _Opponents(moves), num_players, player, config)


class TextArenaEnvironment(BaseEnvironment):
    """See `from_textarena`. Each copy has its own random numbers, although the games draw from Python's global generator."""

    def __init__(
        self, game: Any, opponents: _Opponents, num_players: int, player: int | None, config: EnvironmentConfig | None
    ) -> None:
        super().__init__(config)
        self._game = game
        self._opponents = opponents
        self._num_players = num_players
        self._fixed_player = player
        self._player = player or 0
        self._seen: dict[int, str] = {}
        """Text that each opponent has read."""
        self._random_state: Any = None

    def reset(self, seed: int | None = None) -> str:
        """Starts a game, lets the opponents before the policy move, and returns what the policy reads."""
        self._random_state = random.Random(seed).getstate()
        if self._fixed_player is None:
            self._player = random.Random(f"player-{seed}").randrange(self._num_players)
        self._seen = {}
        with self._own_random_numbers():
            self._game.reset(num_players=self._num_players, seed=None)
        observation = self._until_policy_moves()
        if observation is None:
            raise EpisodeError(f"the game ended before the policy moved: {self._reason()}")
        return observation

    def step(self, action: str) -> StepResult:
        """Makes the policy's move; then the opponents move until it is the policy's turn again."""
        self._move(action)
        observation = self._until_policy_moves()
        if observation is not None:
            return observation, 0.0, False, {}
        reward = float((self._game.state.rewards or {}).get(self._player, 0.0))
        is_success = reward >= 1 if self._num_players == 1 else reward > 0
        return self._reason(), reward, True, {"reason": self._reason(), "success": is_success}

    def get_state_description(self) -> str:
        """Returns the game's own picture of the board if it has one, else the last observation."""
        draw: Callable[[], str] | None = getattr(_base(self._game), "get_board_str", None)
        if draw is None or self._random_state is None:
            return super().get_state_description()
        return draw()

    def _until_policy_moves(self) -> str | None:
        """Returns what the policy reads at its turn; None if the game is over."""
        for _ in range(MAX_OPPONENT_MOVES):
            if self._game.state.done:
                return None
            number, told = _base(self._game).get_observation()
            text = self._text_of(told, number)
            if number == self._player:
                return text
            self._seen[number] = "\n".join(filter(None, (self._seen.get(number), text)))
            ask = functools.partial(self._opponents.moves[number], self._seen[number])
            move = call_blocking(ask, self.config.step_timeout_seconds, f"the opponent (player {number})")
            if not isinstance(move, str):
                raise EpisodeError(f"the opponent (player {number}) must return its move as a str, got {move!r}")
            self._move(move)
        raise EpisodeError(f"the opponents made {MAX_OPPONENT_MOVES} moves and the policy was not asked for one")

    def _move(self, action: str) -> None:
        with self._own_random_numbers():
            self._game.step(action=action)

    def _text_of(self, told: Any, player: int) -> str:
        """Returns messages as text, without the player's own moves, which it knows."""
        roles = {-1: "GAME", **self._game.state.role_mapping}
        return "\n".join(
            f"[{roles.get(who, f'Player {who}')}] {text.strip()}" for who, text, _ in told if who != player
        )

    def _reason(self) -> str:
        info = self._game.state.game_info
        return str(info.get(self._player, {}).get("reason") or "The game is over.")

    @contextlib.contextmanager
    def _own_random_numbers(self) -> Iterator[None]:
        """Gives the games, which use the `random` module, the random state of this episode."""
        with _random_lock:
            outside = random.getstate()
            random.setstate(self._random_state)
            try:
                yield
            finally:
                self._random_state = random.getstate()
                random.setstate(outside)


_random_lock = threading.Lock()


class _Opponents:
    """The functions of the other players; copies of an environment share them."""

    def __init__(self, moves: Mapping[int, Opponent]) -> None:
        self.moves = moves

    def __deepcopy__(self, memo: dict[int, Any]) -> _Opponents:
        return self


def _base(game: Any) -> Any:
    """Returns the game without its wrappers."""
    while "env" in vars(game):
        game = game.env
    return game


def _made(game: Any) -> Any:
    if not isinstance(game, str):
        return game
    try:
        return optional("textarena", "textarena").make(game)
    except ValueError as error:
        raise SettingsError(f"{error} The names are the keys of textarena.envs.registration.ENV_REGISTRY.") from None
