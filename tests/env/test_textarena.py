"""Games of TextArena, played by the package itself."""

from __future__ import annotations

import asyncio
import concurrent.futures
import copy
import math
import random
import re
import sys
from typing import Any

import pytest

from midthought import Trainer, create_default_config
from midthought.config import EnvironmentConfig
from midthought.env.environment_tasks import EnvironmentTasks
from midthought.env.textarena import from_textarena
from midthought.errors import EpisodeError, MissingExtraError, SettingsError

ta = pytest.importorskip("textarena", reason="needs the package textarena: make test-all")


def first_free(seen: str) -> str:
    """Takes the first cell that the newest board offers."""
    return re.findall(r"'(\[\d+\])'", seen.rpartition("Available Moves:")[2])[0]


def number_of(world: Any) -> int:
    """The secret number, found by asking copies."""
    return next(n for n in range(1, 21) if copy.deepcopy(world).step(f"[{n}]")[2])


def test_a_game_of_one_player_is_played_to_its_end() -> None:
    world = from_textarena("GuessTheNumber-v0")
    first = world.reset(seed=3)
    assert first.startswith("[GAME] You are Player 0. You are playing Guess The Number.")
    secret = number_of(world)
    wrong = secret % 20 + 1
    hint = "lower" if wrong > secret else "higher"
    assert world.step(f"[{wrong}]") == (f"[GAME] The target number is {hint}.", 0.0, False, {})
    reason = "Congratulations! You guessed the correct number."
    assert world.step(f"I say {secret}. [{secret}]") == (reason, 1.0, True, {"reason": reason, "success": True})


def test_an_observation_has_only_what_is_new() -> None:
    world = from_textarena("GuessTheNumber-v0")
    world.reset(seed=3)
    secret = number_of(world)
    guesses = [n for n in range(1, 21) if n != secret][:3]
    assert all("You are playing" not in world.step(f"[{n}]")[0] for n in guesses)


def test_an_invalid_move_is_judged_by_the_game() -> None:
    world = from_textarena("GuessTheNumber-v0")
    world.reset(seed=3)
    observation, _, done, _ = world.step("[99]")
    assert "You attempted an invalid move" in observation and not done
    _, reward, done, info = world.step("[99]")
    assert (reward, done, info["success"]) == (0.0, True, False)
    assert info["reason"].startswith("Invalid Move: ")


def test_the_seed_fixes_the_game_and_leaves_pythons_generator_alone() -> None:
    random.seed(1)
    expected = random.random()
    random.seed(1)
    world = from_textarena("GuessTheNumber-v0")
    secrets = []
    for seed in (1, 2, 3, 4, 1):
        world.reset(seed=seed)
        secrets.append(number_of(world))
    assert secrets[0] == secrets[-1] and len(set(secrets)) > 1
    assert random.random() == expected


def test_concurrent_games_do_not_share_random_numbers() -> None:
    def secret(seed: int) -> int:
        world = from_textarena("GuessTheNumber-v0")
        world.reset(seed=seed)
        return number_of(world)

    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        assert list(threads.map(secret, range(40))) == [secret(seed) for seed in range(40)]


@pytest.mark.parametrize("player", [0, 1])
def test_the_policy_plays_either_side_against_a_fixed_opponent(player: int) -> None:
    boards = []

    def opponent(seen: str) -> str:
        boards.append(seen)
        return first_free(seen)

    world = from_textarena("TicTacToe-v0", opponent=opponent, player=player)
    first = world.reset(seed=0)
    assert f"You are Player {player} in Tic Tac Toe." in first and len(boards) == player
    for move in ("[8]", "[4]"):
        assert "Current Board" in world.step(move)[0] or world.is_done()
    assert boards[-1].count("You are Player") == 1, "the opponent reads everything that its player has seen"


def test_winning_and_losing_are_paid() -> None:
    moves = iter(["[0]", "[1]", "[2]"])
    world = from_textarena("TicTacToe-v0", opponent=lambda seen: next(moves))
    world.reset(seed=0)
    world.step("[3]")
    world.step("[4]")
    reason = "Player 0 has won!"
    assert world.step("[5]") == (reason, 1.0, True, {"reason": reason, "success": True})
    moves = iter(["[0]", "[1]", "[2]"])
    world.reset(seed=0)
    world.step("[3]")
    world.step("[4]")
    assert world.step("[8]")[1:] == (-1.0, True, {"reason": "Player 1 has won!", "success": False})


def test_an_asynchronous_opponent_and_one_for_each_player() -> None:
    async def later(seen: str) -> str:
        await asyncio.sleep(0)
        return "[7]" if "[7]" in seen.rpartition("Available")[2] else "[8]"

    opponents = {1: later, 2: lambda seen: "[12]" if " 12 " in seen.rpartition("Board")[2] else "[13]"}
    world = from_textarena("ThreePlayerTicTacToe-v0", opponent=opponents)
    world.reset(seed=0)
    observation, _, done, _ = world.step("[0]")
    assert not done and "Player 1" in observation and "Player 2" in observation


def test_the_seat_may_be_drawn() -> None:
    world = from_textarena("TicTacToe-v0", opponent=first_free, player=None)
    seats = [re.search(r"You are Player (\d)", world.reset(seed=seed)).group(1) for seed in range(20)]
    assert set(seats) == {"0", "1"}
    assert seats == [re.search(r"You are Player (\d)", world.reset(seed=seed)).group(1) for seed in range(20)]


def test_groups_start_alike_and_share_nothing_but_the_opponent() -> None:
    calls = []

    def opponent(seen: str) -> str:
        calls.append(seen)
        return first_free(seen)

    tasks = EnvironmentTasks(from_textarena(ta.make("TicTacToe-v0"), opponent=opponent))
    (task,) = tasks.make(1, seed=0)
    one, other = tasks.start(task), tasks.start(task)
    assert one.step("[4]")[0] != other.step("[8]")[0]
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("opponent", "words"),
    [
        (lambda seen: 4, r"the opponent \(player 1\) must return its move as a str, got 4"),
        (lambda seen: 1 / 0, r"the opponent \(player 1\) raised ZeroDivisionError"),
        (lambda seen: asyncio.sleep(60), r"the opponent \(player 1\) did not finish within 0.2 seconds"),
    ],
)
def test_an_opponent_that_fails_ends_the_episode(opponent: Any, words: str) -> None:
    config = EnvironmentConfig(step_timeout_seconds=0.2)
    world = from_textarena("TicTacToe-v0", opponent=opponent, config=config)
    world.reset(seed=0)
    with pytest.raises(EpisodeError, match=words):
        world.step("[4]")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_players": 2}, "a game of 2 players needs opponent="),
        ({"opponent": first_free, "player": 2}, "player=2: a game of 2 players has the players 0 to 1"),
        ({"opponent": {1: first_free}, "num_players": 3}, "players without an opponent: 2"),
        ({"opponent": {1: first_free}, "player": None}, "players without an opponent: 0"),
    ],
)
def test_players_must_fit_the_game(options: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        from_textarena("TicTacToe-v0", **options)


def test_an_unknown_game_and_a_missing_package_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match="Environment NoGame-v0 not found in registry"):
        from_textarena("NoGame-v0")
    monkeypatch.setitem(sys.modules, "textarena", None)
    with pytest.raises(MissingExtraError, match="textarena is not installed"):
        from_textarena("TicTacToe-v0", opponent=first_free)


def test_a_model_trains_against_an_opponent() -> None:
    few = {"num_train_iters": 2, "batch_size": 4, "group_size": 2, "mini_batch_size": 4, "adv_estimator": "grpo"}
    config = create_default_config(training=few, inference={"max_tokens": 48}, environment={"max_steps": 3})
    with Trainer(config, from_textarena("TicTacToe-v0", opponent=first_free, player=None)) as trainer:
        history = trainer.fit()
    assert all(math.isfinite(metrics["reward/mean"]) for metrics in history)
    assert [metrics["env/num_failed_resets"] for metrics in history] == [0.0, 0.0]
