"""`python -m benchmarks.credit`: episodes until 90 % of the calls are good, with credit per episode and per call.

A prompt names letters. In one thought, the policy calls `pick` once for each, with a number from 0 to 9; one number per letter
is good, and the call's reward is 1. Credit per episode (`grpo`) sees the sum only. Two kinds of policies to start from:
`independent` (every number is drawn from all ten), and `one_good` (two calls, of which one, drawn at random, is good in 98 % of
the thoughts).
`blind` is `independent` with a table of logits that does not see the results of earlier calls.
All settings are equal except the learning rate, which every estimator chooses from the same grid: the one with the lowest mean
over the seeds.

`--policy logits`: a table of logits by letter and result of the call before (seconds per run). `--policy model`: a small created
model, trained by `Trainer`, after a supervised warm-up on thoughts of that table's first policy. Finished runs are not repeated.
"""

from __future__ import annotations

import argparse
import copy
import functools
import itertools
import json
import math
import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from midthought import Reward, Task, ToolRegistry, Trainer, Trajectory, create_default_config, tool
from midthought.algo.advantages import compute_advantage
from midthought.config import TrainingConfig
from midthought.learning.batch import TokenBatch
from midthought.learning.learner import Learner
from midthought.models.small_model import make_policy, make_tokenizer
from midthought.tokenization import Renderer
from midthought.tools.parsers import find_call_format
from midthought.trainer.sources import PromptBuilder
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
LEARNING_RATES = {"model": (1e-4, 3e-4, 1e-3), "logits": (0.1, 0.2, 0.3, 0.4, 0.8, 1.6, 3.2, 6.4)}


@dataclass(frozen=True)
class Game:
    """A kind of thought: its number of calls, and whether nearly all thoughts of the start have exactly one good call of two."""

    name: str
    num_calls: int
    one_good: bool = False
    sees_results: bool = True
    """Whether the logits of a call depend on the result of the call before."""


GAMES = {
    game.name: game
    for game in (
        Game("one_good", 2, one_good=True),
        Game("independent-2", 2),
        Game("independent-4", 4),
        Game("independent-8", 8),
        Game("blind-2", 2, sees_results=False),
        Game("blind-8", 8, sees_results=False),
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
    """Draws the numbers of a thought as the table of logits does that `--policy logits` starts from."""
    chances, before = first_logits(game).softmax(-1).tolist(), 0
    numbers = []
    for letter in letters:
        numbers += draw.choices(range(10), chances[LETTERS.index(letter)][before])
        before = 1 if numbers[-1] == GOOD[letter] else 2
    return numbers


def demonstration(game: Game, renderer: Renderer, prompt: str, draw: random.Random) -> Trajectory:
    task = Task(task_id=prompt, prompt=prompt, answer="done")
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
def warmed_up(game: Game, seed: int, num_steps: int = 240) -> tuple[Any, Any]:
    """Returns the model after the warm-up, and its tokenizer."""
    tokenizer = make_tokenizer(corpus(), 320, joins_words=True)
    renderer, draw = Renderer(tokenizer), random.Random(f"warm-up-{seed}")
    model = make_policy(tokenizer, hidden_size=64, num_layers=2, num_heads=4, max_length=512, seed=seed)
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
    rows = [{"question": prompt, "answer": "done"} for prompt in prompts(game, seed)]
    options = {"tools": [pick], "call_format": "in_thought", "describe_tools": False, "progress": False}
    shares: list[float] = []
    model = copy.deepcopy(model)
    with Trainer(config, dataset=rows, reward_fn=per_call, model=model, tokenizer=tokenizer, **options) as trainer:
        while len(shares) * BATCH_SIZE < max_episodes and not has_reached(shares):
            metrics = trainer.train_step(trainer.rollout())
            shares.append(metrics["reward/mean"] / game.num_calls)
    return outcome(shares)


# -- one run of a table of logits --------------------------------------------------------------------------------------

SURE = 4.0
"""Logit of the good number, above (`one_good`: after a bad call) or below (after a good one) that of nine others at once."""


def first_logits(game: Game) -> torch.Tensor:
    """[letters, result of the call before (none, good, bad), 10] of the policy that a run starts from."""
    logits = torch.zeros(len(LETTERS), 3, 10)
    if game.one_good:
        for row, good in enumerate(GOOD.values()):
            logits[row, :, good] = math.log(9) + torch.tensor([0.0, -SURE, SURE])
    return logits


def run_logits(game: Game, credit: str, learning_rate: float, seed: int, max_episodes: int) -> dict[str, Any]:
    """As `run`, with a policy gradient of a table of logits instead of `Trainer`."""
    generator = torch.Generator().manual_seed(seed)
    logits = first_logits(game).requires_grad_()
    optimizer = torch.optim.Adam([logits], lr=learning_rate, betas=(0.9, 0.95))
    good, groups = torch.tensor([*GOOD.values()]), torch.arange(BATCH_SIZE) // GROUP_SIZE
    calls = torch.arange(game.num_calls).expand(BATCH_SIZE, -1)
    options = {"index": groups, "calls": calls, "gamma": CREDITS[credit].get("gamma", 1.0)}
    tasks = [[LETTERS.index(letter) for letter in prompt.split()] for prompt in prompts(game, seed)]
    shares: list[float] = []
    while len(shares) * BATCH_SIZE < max_episodes and not has_reached(shares):
        chosen = torch.randint(len(tasks), (BATCH_SIZE // GROUP_SIZE,), generator=generator)
        letters = torch.tensor(tasks)[chosen][groups]
        before, logprobs, rewards = torch.zeros(BATCH_SIZE, dtype=torch.int64), [], []
        for letter in letters.T:
            row = logits[letter, before].log_softmax(-1)
            number = torch.multinomial(row.detach().exp(), 1, generator=generator)
            logprobs.append(row.gather(1, number)[:, 0])
            rewards.append((number[:, 0] == good[letter]).float())
            if game.sees_results:
                before = 2 - rewards[-1].long()
        paid = torch.stack(rewards, dim=1)
        mask = torch.ones_like(paid, dtype=torch.bool)
        advantages, _ = compute_advantage(CREDITS[credit]["adv_estimator"], paid, mask, **options)
        optimizer.zero_grad()
        (-(advantages * torch.stack(logprobs, dim=1)).mean()).backward()
        optimizer.step()
        shares.append(float(paid.mean()))
    return outcome(shares)


def has_reached(shares: Sequence[float]) -> bool:
    return len(shares) >= WINDOW and statistics.fmean(shares[-WINDOW:]) >= TARGET


def outcome(shares: Sequence[float]) -> dict[str, Any]:
    episodes = len(shares) * BATCH_SIZE if has_reached(shares) else None
    return {"episodes": episodes, "shares": [round(each, 3) for each in shares]}


# -- all runs ----------------------------------------------------------------------------------------------------------


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("games", nargs="*", help=f"any of {', '.join(GAMES)}; all by default")
    parser.add_argument("--credits", nargs="+", default=list(CREDITS), choices=list(CREDITS))
    parser.add_argument("--learning-rates", nargs="+", type=float)
    parser.add_argument("--policy", choices=list(LEARNING_RATES), default="model")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--max-episodes", type=int, default=4800)
    parser.add_argument("--out", type=Path, default=Path("runs/credit"))
    parser.add_argument("--table", action="store_true", help="print what has been measured, run nothing")
    arguments = parser.parse_args(words)
    if unknown := sorted(set(arguments.games) - GAMES.keys()):
        parser.error(f"unknown kind {unknown[0]!r}; there is: {', '.join(GAMES)}")
    is_blind = {name for name, game in GAMES.items() if not game.sees_results and arguments.policy == "model"}
    if asked := sorted(is_blind.intersection(arguments.games)):
        parser.error(f"{asked[0]!r}: a model sees the results; use --policy logits")
    games = [GAMES[name] for name in arguments.games or GAMES if name not in is_blind]
    torch.set_num_threads(1)
    arguments.learning_rates = arguments.learning_rates or LEARNING_RATES[arguments.policy]
    arguments.out = arguments.out / arguments.policy
    play = {"model": run, "logits": run_logits}[arguments.policy]
    arguments.out.mkdir(parents=True, exist_ok=True)
    if not arguments.table:
        for game, seed, credit, rate in itertools.product(
            games, arguments.seeds, arguments.credits, arguments.learning_rates
        ):
            path = place(arguments.out, game, credit, rate, seed)
            if not path.exists():
                found = play(game, credit, rate, seed, arguments.max_episodes)
                path.write_text(json.dumps(found), "utf-8")
                print(path.stem, found["episodes"], found["shares"][:1], found["shares"][-1:], flush=True)
    print(table(arguments.out, games, arguments.credits, arguments.learning_rates, arguments.seeds))


def place(out: Path, game: Game, credit: str, rate: float, seed: int) -> Path:
    return out / f"{game.name}_{credit.replace(', ', '_').replace(' ', '')}_{rate:g}_{seed}.json"


def table(
    out: Path, games: Sequence[Game], credits: Sequence[str], rates: Sequence[float], seeds: Sequence[int]
) -> str:
    """Markdown: for each estimator its best learning rate, the episodes of every seed, and their mean as a share of the
    first estimator's. A run that did not reach the target counts as long as it was, marked with `>`."""
    lines = ["| thoughts | credit | best learning rate | episodes, by seed | mean | share |", "| --- " * 6 + "|"]
    for game in games:
        first = None
        for credit in credits:
            found = {rate: [place(out, game, credit, rate, seed) for seed in seeds] for rate in rates}
            known = {rate: [json.loads(path.read_text("utf-8")) for path in paths] for rate, paths in found.items()
                     if all(path.exists() for path in paths)}  # fmt: skip
            if not known:
                continue
            lengths = {rate: [len(each["shares"]) * BATCH_SIZE for each in runs] for rate, runs in known.items()}
            misses = {rate: sum(each["episodes"] is None for each in runs) for rate, runs in known.items()}
            best = min(known, key=lambda rate: (misses[rate], statistics.fmean(lengths[rate])))
            mean = statistics.fmean(lengths[best])
            first = mean if first is None else first
            runs = zip(known[best], lengths[best], strict=True)
            numbers = ", ".join(f"{'>' if each['episodes'] is None else ''}{length}" for each, length in runs)
            lines.append(f"| {game.name} | `{credit}` | {best:g} | {numbers} | {mean:.0f} | {mean / first:.2f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
