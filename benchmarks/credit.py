"""`python -m benchmarks.credit`: episodes until 90 % of the calls are good, with credit per episode and per call.

A prompt names letters. In one thought, the policy calls `pick` once for each, with a number from 0 to 9; one number per letter
is good, and the call's reward is 1. Credit per episode (`grpo`) sees the sum only. A small created model learns the calls from
demonstrations; each run starts from that warm-up. Two kinds of demonstrations: `independent` (every number is drawn from all
ten), and `one_good` (two calls, of which exactly one, drawn at random, is good). All settings are equal except the learning
rate, which every estimator chooses from the same grid: the one with the lowest mean over the seeds. Finished runs are not
repeated. `--table` only prints what was measured.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import random
import statistics
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from midthought import Reward, Task, ToolRegistry, Trainer, Trajectory, create_default_config, tool
from midthought.config import TrainingConfig
from midthought.learning.batch import TokenBatch
from midthought.learning.learner import Learner
from midthought.learning.small_model import make_policy, make_tokenizer
from midthought.tokenization import Renderer
from midthought.tools.call_formats.registry import find_call_format
from midthought.trainer.rollouts import PromptBuilder
from midthought.types import ToolCall, ToolEvent, ToolOutcome

LETTERS = "ABCDEFGH"
GOOD = dict(zip(LETTERS, random.Random(0).choices(range(10), k=len(LETTERS)), strict=True))
TARGET = 0.9
NUM_TASKS = 64
BATCH_SIZE, GROUP_SIZE = 32, 8
WINDOW = 4
"""Iterations that the share of good calls is averaged over: 128 episodes."""
CREDITS: dict[str, dict[str, Any]] = {
    "grpo": {"adv_estimator": "grpo"},
    "grpo_calls": {"adv_estimator": "grpo_calls"},
    "grpo_calls, gamma 0": {"adv_estimator": "grpo_calls", "gamma": 0.0},
}
LEARNING_RATES = (1e-3, 3e-3, 1e-2)


@dataclass(frozen=True)
class Game:
    """A kind of thought: its number of calls, and whether demonstrations hold exactly one good call of two."""

    name: str
    num_calls: int
    one_good: bool = False


GAMES = {
    game.name: game
    for game in (
        Game("one_good", 2, one_good=True),
        Game("independent-2", 2),
        Game("independent-4", 4),
        Game("independent-8", 8),
    )
}


@tool
def pick(letter: str, number: int) -> str:
    """Picks a number for a letter.

    Args:
        letter: the letter
        number: the number, 0 to 9
    """
    return "good" if GOOD.get(letter) == number else "bad"


def per_call(trajectory: Trajectory) -> Reward:
    """1 for each call whose letter is the next one of the prompt and whose number is good."""
    wanted = iter(trajectory.task.prompt.split())
    calls = [event.call for event in trajectory.tool_events]
    good = [call.parameters.get("letter") == next(wanted, None) and call.result == "good" for call in calls]
    return Reward(calls=tuple(map(float, good)))


def prompts(game: Game, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.sample(LETTERS, game.num_calls)) for _ in range(NUM_TASKS)]


# -- the warm-up ---------------------------------------------------------------------------------------------------


CALL_FORMAT = find_call_format("in_thought")
END = "</think>\ndone<|im_end|>"


def event_of(letter: str, number: int) -> ToolEvent:
    call = ToolCall(tool_name="pick", parameters={"letter": letter, "number": number}, success=True)
    call.result = "good" if GOOD[letter] == number else "bad"
    return ToolEvent(call=call, outcome=ToolOutcome.OK)


def numbers_of(game: Game, letters: Sequence[str], draw: random.Random) -> list[int]:
    if not game.one_good:
        return [draw.randrange(10) for _ in letters]
    good = draw.randrange(2)
    wrong = [draw.choice([number for number in range(10) if number != GOOD[letter]]) for letter in letters]
    return [GOOD[letter] if place == good else wrong[place] for place, letter in enumerate(letters)]


def demonstration(game: Game, renderer: Renderer, prompt: str, draw: random.Random) -> Trajectory:
    task = Task(task_id=prompt, prompt=prompt, answer="")
    words = PromptBuilder("", ToolRegistry([pick]), CALL_FORMAT, False)
    trajectory = Trajectory(task, renderer.prompt(words.messages(task)))
    letters = prompt.split()
    for letter, number in zip(letters, numbers_of(game, letters, draw), strict=True):
        event = event_of(letter, number)
        trajectory.add_demonstrated(renderer.control(CALL_FORMAT.render_call("pick", event.call.parameters)))
        trajectory.add_results([event], renderer.foreign(CALL_FORMAT.render_results([event])))
    trajectory.add_demonstrated(renderer.control(END))
    return trajectory


def corpus() -> Iterator[str]:
    for letter in LETTERS * 20:
        yield CALL_FORMAT.render_call("pick", {"letter": letter, "number": 7})
        yield from (
            "\n#pick_result:\ngood\n\n",
            "\n#pick_result:\nbad\n\n",
            "\ndone",
            f"user\n{letter} ",
            "assistant\n",
        )


@functools.cache
def warmed_up(game: Game, seed: int, num_steps: int = 150) -> tuple[Any, Any]:
    """Returns the model after the warm-up, and its tokenizer."""
    tokenizer = make_tokenizer(corpus(), 320, joins_words=True)
    renderer, draw = Renderer(tokenizer), random.Random(f"warm-up-{seed}")
    model = make_policy(tokenizer, hidden_size=64, num_layers=2, num_heads=2, max_length=512, seed=seed)
    learner = Learner(model, None, None, TrainingConfig(learning_rate=3e-3, warmup_steps=0))
    for _ in range(num_steps):
        chosen = [" ".join(draw.sample(LETTERS, game.num_calls)) for _ in range(32)]
        episodes = [demonstration(game, renderer, prompt, draw) for prompt in chosen]
        learner.sft_step(TokenBatch.from_trajectories(episodes, demonstrations=True))
    return model, tokenizer


# -- one run ---------------------------------------------------------------------------------------------------------


def run(game: Game, credit: str, learning_rate: float, seed: int, max_episodes: int) -> dict[str, Any]:
    """Trains until the share of good calls reaches `TARGET`, at most `max_episodes` episodes."""
    model, tokenizer = warmed_up(game, seed)
    config = create_default_config(
        inference={"max_tokens": 40 * game.num_calls + 20, "max_tool_calls_per_cot": game.num_calls},
        training={
            "batch_size": BATCH_SIZE,
            "mini_batch_size": BATCH_SIZE,
            "group_size": GROUP_SIZE,
            "warmup_steps": 0,
            "kl_coef": 0.0,
            "entropy_coef": 0.0,
            "learning_rate": learning_rate,
            "lr_schedule": "constant",
            "num_epochs": 1000,
            "validate_every": 0,
            "seed": seed,
            **CREDITS[credit],
        },
    )
    rows = [{"question": prompt, "answer": ""} for prompt in prompts(game, seed)]
    options = {"tools": [pick], "call_format": "in_thought", "describe_tools": False, "progress": False}
    shares: list[float] = []
    recent: deque[float] = deque(maxlen=WINDOW)
    model = copy.deepcopy(model)
    with Trainer(config, dataset=rows, reward_fn=per_call, model=model, tokenizer=tokenizer, **options) as trainer:
        while len(shares) * BATCH_SIZE < max_episodes and (not recent or statistics.fmean(recent) < TARGET):
            metrics = trainer.train_step(trainer.rollout())
            shares.append(metrics["reward/mean"] / game.num_calls)
            recent.append(shares[-1])
    reached = len(recent) == WINDOW and statistics.fmean(recent) >= TARGET
    return {"episodes": len(shares) * BATCH_SIZE if reached else None, "shares": [round(each, 3) for each in shares]}


# -- all runs ----------------------------------------------------------------------------------------------------------


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("games", nargs="*", help=f"any of {', '.join(GAMES)}; all by default")
    parser.add_argument("--credits", nargs="+", default=list(CREDITS), choices=list(CREDITS))
    parser.add_argument("--learning-rates", nargs="+", type=float, default=list(LEARNING_RATES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--max-episodes", type=int, default=12800)
    parser.add_argument("--out", type=Path, default=Path("runs/credit"))
    parser.add_argument("--table", action="store_true", help="print what has been measured, run nothing")
    arguments = parser.parse_args(words)
    if unknown := sorted(set(arguments.games) - GAMES.keys()):
        parser.error(f"unknown kind {unknown[0]!r}; there is: {', '.join(GAMES)}")
    games = [GAMES[name] for name in arguments.games or GAMES]
    torch.set_num_threads(1)
    arguments.out.mkdir(parents=True, exist_ok=True)
    for game in () if arguments.table else games:
        for seed in arguments.seeds:
            for credit in arguments.credits:
                for rate in arguments.learning_rates:
                    path = (
                        arguments.out / f"{game.name}-{credit.replace(', ', '-').replace(' ', '')}-{rate:g}-{seed}.json"
                    )
                    if not path.exists():
                        found = run(game, credit, rate, seed, arguments.max_episodes)
                        path.write_text(json.dumps(found), "utf-8")
                        print(path.stem, found["episodes"], found["shares"][:1], found["shares"][-1:], flush=True)


if __name__ == "__main__":
    main()
