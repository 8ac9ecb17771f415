"""Failures caused by settings, rewards, tools or data, never by editing metrics: guards report each within ten iterations, or two
validations, with the correct first cause. The table in docs/guards.md has the same rows."""

from __future__ import annotations

import copy
import itertools
import time
from pathlib import Path

import pytest
import torch
from planted_runs import assert_reported, train_planted
from small_environments import COLOURS, QUESTIONS, Colours, Raising, settings, twice

from midthought import RayPPOTrainer, tool
from midthought.env.rewards import correct
from midthought.guards.command import judge

pytestmark = pytest.mark.slow
NUM_ITERS = 10
GROUPS = {"adv_estimator": "grpo", "group_size": 4}
BROKEN = "steps that are too large"


def says(colour):
    """A reward for one word."""

    def reward(trajectory):
        return float(trajectory.turns[-1].model_output.endswith(colour))

    return reward


class Endless(Colours):
    """Forgets to say that it is over."""

    def step(self, action):
        observation, reward, _, info = super().step(action)
        return observation, reward, False, info


def words(trajectory):
    return trajectory.num_sampled / 10


def one_bad_row(bad=7, size=1000.0):
    """A reward function that pays a thousand times more from some iteration on."""
    judged = itertools.count()
    good = says("red")
    return lambda trajectory: good(trajectory) * (size if next(judged) >= 4 * (bad - 1) else 1.0)


def slow_reward(trajectory):
    time.sleep(5.2)
    return float(len(trajectory.token_ids) % 3)


def make_random(model):
    model.lm_head.register_forward_hook(lambda module, inputs, logits: logits + 3 * torch.randn_like(logits))


def judged_until(number):
    """A judge that returns 0 for every error, and fails after so many judgments."""
    judged = itertools.count()
    good = says("red")

    def reward(trajectory):
        return good(trajectory) if next(judged) < number else 0.0

    return reward


def fails_every(number):
    """A judge that answers all but every so many questions."""
    judged = itertools.count()
    good = says("red")

    def reward(trajectory):
        if next(judged) % number == 0:
            raise TimeoutError("the judge did not answer")
        return good(trajectory)

    return reward


def works_until(number):
    """A tool whose service is gone after so many calls."""
    called = itertools.count()

    def repeat(word: str) -> str:
        if next(called) >= number:
            raise ConnectionRefusedError("no service")
        return f"{word} {word}"

    return repeat


def head_only(model):
    """Only a part learns that the forward pass does not use."""
    model.requires_grad_(False)
    model.score = torch.nn.Linear(64, 1)


def never_ends(model):
    """Without the token that ends an answer."""
    end = torch.tensor(model.generation_config.eos_token_id).flatten()
    model.lm_head.register_forward_hook(lambda module, inputs, logits: logits.index_fill(-1, end, -30.0))


def named_twice(function):
    function.__name__, function.__doc__ = "twice", "Says it twice."
    return tool(function)


def raises(word: str) -> str:
    raise ConnectionRefusedError("no service")


def late(word: str) -> str:
    time.sleep(0.3)
    return word


def long(word: str) -> str:
    return f"{word} " * 500


def slow(word: str) -> str:
    time.sleep(1.1)
    return word


def other_argument(text: str) -> str:
    return text


@tool
def thrice(word: str) -> str:
    """Says it three times."""
    return f"{word} {word} {word}"


CALLS = {
    "model": "in_thought",
    "learning_rate": 1e-6,
    "reward_fn": lambda trajectory: float(len(trajectory.token_ids) % 3),
}
"""A model that always calls `twice`."""
HACKED = {"validation": True, "learning_rate": 3e-3, "batch_size": 8}
"""No right answer is left at the first validation."""
PLANTED = {
    "reward is constant": ({"reward_fn": lambda trajectory: 1.0} | GROUPS, "no_reward_variance", "does not tell"),
    "temperature 0.001": (
        {"temperature": 1e-3, "environment": Colours} | GROUPS,
        "no_reward_variance",
        "inference.temperature",
    ),
    "learning rate 1e-12": ({"learning_rate": 1e-12}, "policy_unchanged", "training.learning_rate=1e-12"),
    "gradients clipped to 1e-9": ({"max_grad_norm": 1e-9}, "policy_unchanged", "training.max_grad_norm=1e-09"),
    "epsilon of 1e6": ({"adam_epsilon": 1e6}, "policy_unchanged", "training.adam_epsilon=1e+06"),
    "warm-up of 1e7 steps": ({"warmup_steps": 10_000_000}, "policy_unchanged", "training.warmup_steps=10000000"),
    "frozen model": ({"change": head_only}, "policy_unchanged", "frozen parameters"),
    "right answers cost": ({"reward_fn": lambda t: -correct(t)}, "reward_misjudges", "the sign of the reward"),
    "a judge that is always content": (
        {"reward_fn": lambda t: 0.9 if not t.num_sampled % 31 else 1.0},
        "reward_misjudges",
        "content with nearly every answer",
    ),
    "temperature 5": ({"temperature": 5.0}, "random_samples", "inference.temperature=5"),
    "temperature 5, environment": (
        {"temperature": 5.0, "environment": Colours} | GROUPS,
        "random_samples",
        "inference.temperature=5",
    ),
    "weight decay 100": ({"weight_decay": 100.0, "num_iters": 14}, "random_samples", "training.weight_decay"),
    "learning rate 0.5": ({"learning_rate": 0.5}, "repetitive_text length_drift entropy_collapse truncated", BROKEN),
    "rewards of 1e30": ({"reward_fn": lambda t: 1e30 * len(t.token_ids)}, "not_finite", "rewards of this size"),
    "reward raises": ({"reward_fn": lambda trajectory: 1 / 0}, "episodes_fail", "ZeroDivisionError"),
    "environment raises": ({"environment": Raising}, "episodes_fail", "the world broke"),
    "two tokens": ({"max_tokens": 2, "reward_fn": words}, "truncated", "max_tokens=2 is too small"),
    "random forward pass": ({"change": make_random}, "logprob_difference", "forward pass is random"),
    "one row pays 1000": ({"reward_fn": one_bad_row()}, "spike", "rewards of another size"),
    "slow reward": (
        {"reward_fn": slow_reward, "batch_size": 2, "mini_batch_size": 2, "num_iters": 4},
        "starved_engine",
        "reward function is slow",
    ),
    "environment never ends": (
        {"environment": Endless, "max_tokens": 200},
        "turn_limit",
        "does not end its episodes",
    ),
    "environment never ends, few tokens": ({"environment": Endless}, "truncated", "does not end its episodes"),
    "results that do not fit": (
        CALLS | {"tools": [named_twice(long)]},
        "truncated",
        "a tool result does not fit into the rest of inference.max_tokens=40",
    ),
    "tool raises": (CALLS | {"tools": [named_twice(raises)]}, "tool_fails", "twice raises"),
    "tool is late": (
        CALLS | {"tools": [named_twice(late)], "timeout": 0.05},
        "tool_fails",
        "tool_timeout_seconds=0.05",
    ),
    "other argument": (CALLS | {"tools": [named_twice(other_argument)]}, "tool_fails", "wrong arguments"),
    "other tool": (CALLS | {"tools": [thrice]}, "tool_fails", "does not know the tool's name"),
    "slow tool": (CALLS | {"tools": [named_twice(slow)], "num_iters": 4}, "tool_slow", "twice is slow"),
    "no calls allowed": (
        CALLS | {"tools": [twice], "max_calls": 0},
        "tool_limit",
        "max_tool_calls_per_cot=0 is too small",
    ),
    "learning rate 0.1": ({"learning_rate": 0.1}, "truncated repetitive_text", BROKEN),
    "entropy bonus of 10": (
        {"entropy_coef": 10.0, "learning_rate": 3e-3},
        "length_drift truncated",
        "training.entropy_coef=10",
    ),
    "KL penalty of 1000": ({"kl_coef": 1000.0}, "kl_outweighs_reward", "training.kl_coef is too large"),
    "KL loss of 1000": ({"kl_loss_coef": 1000.0}, "kl_outweighs_reward", "training.kl_loss_coef is too large"),
    "judge returns 0 from iteration 5 on": (
        {"reward_fn": judged_until(16), "num_iters": 14, "learning_rate": 1e-4},
        "policy_collapsed",
        "the reward function has failed",
    ),
    "judge fails for every second episode": (
        {"reward_fn": fails_every(2)},
        "some_episodes_fail",
        "the judge did not answer",
    ),
    "rounding errors as rewards": (
        {"reward_fn": lambda t: 0.5 + 1e-8 * (len(t.turns[-1].model_output))} | GROUPS,
        "no_reward_variance",
        "does not tell",
    ),
    "no end of an answer": ({"change": never_ends}, "truncated", "max_tokens=40 is too small"),
    "tool fails from iteration 5 on": (
        CALLS | {"tools": [named_twice(works_until(16))]},
        "tool_fails",
        "twice raises",
    ),
    "wrong colour paid": (HACKED, "reward_hacking", "earned without a right answer"),
    "wrong colour paid, evaluated first": (
        HACKED | {"is_evaluated_first": True},
        "reward_hacking",
        "earned without a right answer",
    ),
    "calls cost 1": (
        {"model": "in_thought", "tools": [twice], "learning_rate": 3e-3, "reward_fn": lambda t: -float(t.num_calls)},
        "tool_unused",
        "a call costs more",
    ),
}


def most_frequent_colour(talker):
    def share(colour):
        validation = [{**row, "answer": colour} for row in QUESTIONS]
        with RayPPOTrainer(settings(), dataset=QUESTIONS, validation=validation, **talker) as trainer:
            return trainer.evaluate()["exact_match"]

    return max(COLOURS, key=share)


MISSED = {
    "wrong colour paid": "the policy unlearns the answer before the first validation, so the guard sees no fall",
}


ROWS = [
    pytest.param(name, marks=[pytest.mark.xfail(strict=True, reason=MISSED[name])] if name in MISSED else [])
    for name in PLANTED
]
"""A failure that is missed must be missed, or leave `MISSED`."""


def test_the_page_has_these_numbers():
    page = (Path(__file__).parents[2] / "docs/guards.md").read_text("utf-8")
    assert f"{len(PLANTED) - len(MISSED)} of {len(PLANTED)} failures are reported" in page


@pytest.mark.parametrize("name", ROWS)
def test_a_planted_failure_is_reported_with_its_cause(name, talker, callers, tmp_path):
    options, guards, cause = PLANTED[name]
    options = dict(options)
    if options.pop("validation", False):  # the colour that the model says is right, and another one is paid
        said = most_frequent_colour(talker)
        options["dataset"] = [{**row, "answer": said} for row in QUESTIONS]
        options["validation"] = options["dataset"] * 10
        options["reward_fn"] = says(next(colour for colour in COLOURS if colour != said))
        options |= {"validate_every": NUM_ITERS // 2, "num_validation_questions": 30}
    train_planted(options, talker, callers, tmp_path / "run", NUM_ITERS)
    assert_reported(tmp_path / "run", guards, cause, NUM_ITERS)


SLOW = {"learning_rate": 1e-4}
HEALTHY = {
    "ppo": SLOW,
    "ppo, other seed": SLOW | {"seed": 1},
    "grpo": SLOW | GROUPS | {"batch_size": 8},
    "rloo": SLOW | {"adv_estimator": "rloo", "group_size": 4, "batch_size": 8},
    "reinforce++": SLOW | {"adv_estimator": "reinforce_plus_plus"},
    "by turn": SLOW | GROUPS | {"adv_estimator": "grpo_turns", "environment": Colours},
    "environment": SLOW | {"environment": Colours},
    "dr_grpo": SLOW | {"adv_estimator": "dr_grpo", "group_size": 4, "batch_size": 8},
    "gspo": SLOW | GROUPS | {"policy_loss": "gspo", "batch_size": 8, "seed": 2},
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_run_of_100_iterations_has_no_finding(name, talker, callers, tmp_path):
    options = dict(HEALTHY[name])
    if "model" in options:
        talker["model"] = copy.deepcopy(callers[options.pop("model")])
    arguments = {"tools": options.pop("tools"), "call_format": "in_thought"} if "tools" in options else {}
    arguments |= (
        {"environment": options.pop("environment")}
        if "environment" in options
        else {"dataset": QUESTIONS, "validation": QUESTIONS}
    )
    options |= {"num_train_iters": 100, "validate_every": 10}
    config = settings(options.pop("adv_estimator", "gae"), **options)
    with RayPPOTrainer(config, **arguments, **talker, run_path=tmp_path / "run") as trainer:
        trainer.fit()
    assert [str(finding) for finding in judge(tmp_path / "run")] == []
