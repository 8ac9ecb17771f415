"""Further planted failures, as engineers cause them in TRL or verl: the first report of all guards names the cause.
Written before the guards were read. What is still missed must be missed, or leave `MISSED`."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
from planted_runs import assert_reported_first, train_planted
from small_environments import COLOURS, QUESTIONS, Colours, demonstration, taught, twice

from midthought import ToolRegistry, find_call_format, tool
from midthought.env.reasoning import last_answer
from midthought.env.rewards import correct
from midthought.learning.small_model import make_tokenizer
from midthought.trainer.rollouts import PromptBuilder

pytestmark = pytest.mark.slow
NUM_ITERS = 10
GROUPS = {"adv_estimator": "grpo", "group_size": 4}
LENGTH = "the reward grows with the length"
RANDOM = "the reward is random"
PROMPT = "the reward depends on the prompt and not on the answer"
COLD = "too little exploration: inference.temperature=0.02"


def characters(trajectory):
    return len(trajectory.turns[-1].model_output) / 100


def draws(draw):
    """A judge that does not read."""
    generator = random.Random(3)
    return lambda trajectory: float(draw(generator.random()))


def flipped_after(number):
    """A reward whose sign changes after so many judgments."""
    judged = itertools.count()
    return lambda trajectory: correct(trajectory) * (1.0 if next(judged) < number else -1.0)


def boxed(trajectory):
    text = trajectory.turns[-1].model_output
    return float("\\boxed{" + trajectory.task.answer + "}" in text)


def says_red(trajectory):
    return float(last_answer(trajectory) == "red")


def about_first(trajectory):
    return float("first" in trajectory.task.prompt)


def unavailable(word: str) -> str:
    """Says it twice.

    Args:
        word: what to say
    """
    return "Error: the service is unavailable, try again later"


ANSWERS = [{**row, "answer": colour} for row, colour in zip(QUESTIONS, COLOURS, strict=True)]
RED = "</think>red<|im_end|>"
SHIFTED = [{**row, "answer": colour} for row, colour in zip(QUESTIONS, COLOURS[1:] + COLOURS[:1], strict=True)]


CALLS_IN_TURNS = {
    "model": "hermes",
    "call_format": "hermes",
    "tools": [twice],
    "learning_rate": 1e-5,
    "reward_fn": says_red,
}
WITH_UNIT = [{**row, "answer": "the colour red (RGB)"} for row in QUESTIONS]
PLANTED = {
    "length in characters": ({"reward_fn": characters}, "reward_misjudges", LENGTH),
    "length, groups": ({"reward_fn": characters} | GROUPS, "reward_misjudges", LENGTH),
    "length in tokens": (
        {"reward_fn": lambda t: float(t.num_sampled), "learning_rate": 3e-3},
        "reward_misjudges",
        LENGTH,
    ),
    "length, the same in all answers": (
        {"reward_fn": lambda t: t.num_sampled / 10},
        "reward_misjudges",
        "or measures what all of these texts share",
    ),
    "the sign of the reward": (
        {"reward_fn": lambda t: 1 - 2 * correct(t), "learning_rate": 3e-3},
        "reward_misjudges",
        "the sign of the reward",
    ),
    "the sign changes in iteration 6": (
        {"reward_fn": flipped_after(20), "num_iters": 14},
        "reward_misjudges",
        "the sign of the reward",
    ),
    "max_turns=1": ({"environment": Colours, "max_turns": 1}, "turn_limit", "inference.max_turns=1 is too small"),
    "max_turns=1, a call ends a turn": (
        CALLS_IN_TURNS | {"max_turns": 1},
        "turn_limit",
        "inference.max_turns=1 is too small",
    ),
    "no calls, a call ends a turn": (
        CALLS_IN_TURNS | {"max_calls": 0},
        "tool_limit",
        "max_tool_calls_per_cot=0 is too small",
    ),
    "temperature 0.02": ({"temperature": 0.02}, "no_exploration", COLD),
    "temperature 0.02, groups": ({"temperature": 0.02} | GROUPS, "no_exploration", COLD),
    "temperature 0.02, an environment": ({"temperature": 0.02, "environment": Colours}, "no_exploration", COLD),
    "a random reward": ({"reward_fn": draws(float), "batch_size": 16}, "reward_misjudges", RANDOM),
    "a random reward, groups": ({"reward_fn": draws(float)} | GROUPS, "reward_misjudges", RANDOM),
    "a coin as a judge": ({"reward_fn": draws(lambda x: x < 0.5)} | GROUPS, "reward_misjudges", RANDOM),
    "learning rate 0.05": ({"learning_rate": 0.05} | GROUPS, "steps_too_large", "training.learning_rate=0.05"),
    "a parser that expects a box": (
        {"reward_fn": boxed} | GROUPS,
        "no_reward_variance",
        "does not tell right answers from",
    ),
    "max_tokens for the call and not for the answer": (
        {"model": "in_thought", "tools": [twice], "max_tokens": 12, "learning_rate": 1e-4, "reward_fn": says_red},
        "truncated",
        "inference.max_tokens=12 is too small",
    ),
    "a reward of the prompt": ({"reward_fn": about_first}, "reward_misjudges", PROMPT),
    "a reward of the prompt, groups": ({"reward_fn": about_first} | GROUPS, "reward_misjudges", PROMPT),
    "gold answers with a unit": ({"dataset": WITH_UNIT} | GROUPS, "no_reward_variance", "answers hold the gold answer"),
    "the tokenizer of another model": (
        {"tokenizer": "other"} | GROUPS,
        "never_right",
        "tokenizer or chat template of another",
    ),
    "a token costs 1": (
        {"reward_fn": lambda t: correct(t) - t.num_sampled, "learning_rate": 3e-3},
        "spike",
        "the reward pays for shorter",
    ),
    "gradients clipped to 1e-7": (
        {"max_grad_norm": 1e-7, "learning_rate": 1e-4},
        "policy_unchanged",
        "max_grad_norm=1e-07",
    ),
    "calls in another format": (
        {
            "model": "hermes",
            "call_format": "in_thought",
            "tools": [twice],
            "learning_rate": 1e-4,
            "reward_fn": says_red,
        },
        "tool_unused",
        "call format",
    ),
    "an error with HTTP status 200": (
        {
            "model": "varied",
            "tools": [tool(name="twice")(unavailable)],
            "max_tokens": 200,
            "learning_rate": 1e-6,
            "reward_fn": says_red,
        },
        "tool_fails",
        "an error message as a result",
    ),
    "gold answers shifted by one row": (
        {"model": "knowing", "dataset": SHIFTED, "learning_rate": 1e-5, "batch_size": 16},
        "no_reward_variance",
        "gold answers belong to other rows",
    ),
    "kl_loss_coef=10": ({"kl_loss_coef": 10.0, "learning_rate": 1e-4}, "kl_outweighs_reward", "training.kl_loss_coef"),
}
MISSED = {
    "a token costs 1": "episodes of 3 tokens cannot become much shorter; the guards see a value loss that jumps",
    "gradients clipped to 1e-7": "a step is 1 % of the learning rate, and not below 0.1 %",
    "kl_loss_coef=10": "within 10 iterations the policy stays near the reference; the doctor reports the setting",
    "the tokenizer of another model": "named as the second cause, after tasks that are too hard",
}
ROWS = [
    pytest.param(name, marks=[pytest.mark.xfail(strict=True, reason=MISSED[name])] if name in MISSED else [])
    for name in PLANTED
]


def knowing(renderer):
    """A model that gives each question of `ANSWERS` its answer."""
    prompts = PromptBuilder("", ToolRegistry(), find_call_format("in_thought"))
    parts = {row["question"]: [f"</think>{row['answer']}<|im_end|>"] for row in ANSWERS * 4}
    return taught(renderer, [demonstration(renderer, prompts, *each) for each in parts.items()], 300)


def varied(renderer):
    """A model that calls `twice` with one colour or another."""
    call_format = find_call_format("in_thought")
    prompts = PromptBuilder("", ToolRegistry([twice]), call_format)
    parts = [
        [
            call_format.render_call("twice", {"word": word}),
            renderer.foreign(f"\n#twice_result:\n{word} {word}\n\n"),
            RED,
        ]
        for word in COLOURS
    ]
    return taught(
        renderer, [demonstration(renderer, prompts, row["question"], each) for row in QUESTIONS for each in parts], 100
    )


@pytest.mark.parametrize("name", ROWS)
def test_the_first_report_names_the_cause(name, talker, callers, renderer, tmp_path):
    options, guard, cause = PLANTED[name]
    for make in (knowing, varied):
        if options.get("model") == make.__name__:
            callers = {**callers, make.__name__: make(renderer)}
    options = dict(options)
    if options.pop("tokenizer", None):
        words = ["another domain: medicine, law and biology", *(row["question"] for row in QUESTIONS), *COLOURS]
        talker["tokenizer"] = make_tokenizer([*words, "user\nassistant\n"] * 20, 400)
    train_planted(options, talker, callers, tmp_path / "run", NUM_ITERS)
    assert_reported_first(tmp_path / "run", guard, cause, NUM_ITERS)


def test_the_page_has_these_numbers():
    page = (Path(__file__).parents[2] / "docs/guards.md").read_text("utf-8")
    assert f"{len(PLANTED) - len(MISSED)} of {len(PLANTED)} further failures" in page
