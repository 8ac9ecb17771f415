"""Check 10: up to ten GRPO iterations of `RayPPOTrainer` from end to end, as many as there is time for: seconds of each stage.
All weights, then three iterations of adapters; sizes of passes and recomputed layers as a run chooses them.

The policy writes random words. An episode's reward is the share of its words with a low number, so rewards differ within
groups and the policy can learn.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from benchmarks.gpu.findings import Report
from benchmarks.gpu.graphs import logged_warnings
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.models import SHAPES, is_left_out, make_model, own_error_of_random_prompts
from midthought import RayPPOTrainer, create_default_config
from midthought.learning.model import add_adapters
from midthought.types import Trajectory

MAX_ITERS, MIN_ITERS = 10, 3
LORA_RANK = 16
SPECIALS = ("<|pad|>", "<|im_start|>", "<|im_end|>", "[unk]", "user", "assistant")
TEMPLATE = (
    "{% for m in messages %}<|im_start|> {{ m['role'] }} {{ m['content'] }} <|im_end|> {% endfor %}"
    "{% if add_generation_prompt %}<|im_start|> assistant {% endif %}"
)
MEAN_DIFFERENCE = 0.05
"""Largest mean |sampled − recomputed| of an iteration, in nats: the limit of the check `logprob_difference`; at least
twice the mean error of the model's own forward pass."""


def run(machine: Machine, report: Report) -> None:
    name = machine.model_names[0]
    _run(machine, report, f"{name} bfloat16", name, MAX_ITERS)
    setting = f"{name} bfloat16, LoRA {LORA_RANK}"
    if not is_left_out(machine, report, setting, name, seconds=10.0):
        _run(machine, report, setting, name, MIN_ITERS, lora_rank=LORA_RANK)


def _run(machine: Machine, report: Report, setting: str, name: str, max_iters: int, lora_rank: int = 0) -> None:
    tokenizer = word_tokenizer(SHAPES[name].vocab_size)
    half = SHAPES[name].vocab_size // 2

    def share_of_low_words(trajectory: Trajectory) -> float:
        sampled = [token_id for run in trajectory.sampled_runs() for token_id in run]
        return sum(token_id < half for token_id in sampled) / max(1, len(sampled))

    config = create_default_config().merged(
        {
            "training": {
                "adv_estimator": "grpo",
                "batch_size": machine.pick(64, 8),
                "mini_batch_size": machine.pick(64, 8),
                "group_size": machine.pick(8, 4),
                "num_train_iters": max_iters,
                "learning_rate": machine.pick(2e-6, 1e-5) * (10 if lora_rank else 1),
                "kl_coef": 0.0,
                "validate_every": 0,
            },
            "inference": {"max_tokens": machine.pick(256, 12), "max_segment_length": machine.pick(256, 12)},
        }
    )
    questions = [{"question": f"w{number} w{number + 1}", "answer": f"w{number + 2}"} for number in range(10, 90)]
    model = make_model(machine, name, torch.bfloat16)
    limit = max(MEAN_DIFFERENCE, 2 * own_error_of_random_prompts(model, SHAPES[name]).mean)
    if lora_rank:
        model = add_adapters(model, lora_rank, 2 * lora_rank)
    seconds: dict[str, float] = defaultdict(float)
    began = time.perf_counter()
    with (
        logged_warnings() as messages,
        RayPPOTrainer(
            config, None, share_of_low_words, questions, model=model, tokenizer=tokenizer, progress=False
        ) as trainer,
    ):
        for stage in ("score", "credit", "update"):
            setattr(trainer.learner, stage, timed(machine, seconds, stage, getattr(trainer.learner, stage)))
        trainer.source.update_weights = timed(machine, seconds, "new weights", trainer.source.update_weights)
        last_seconds = 0.0
        while len(trainer.metrics_history) < max_iters and (
            len(trainer.metrics_history) < MIN_ITERS or machine.seconds_left > last_seconds
        ):
            last_seconds, _ = machine.wall_seconds(lambda: trainer.train_step(trainer.rollout()))
        history = list(trainer.metrics_history)
    whole = time.perf_counter() - began
    _tell(report, setting, history, seconds, whole, limit)
    report.require(setting, "warnings about recorded passes", "; ".join(messages) or "none", not messages, "none")


def _tell(
    report: Report, setting: str, history: list[dict[str, float]], seconds: dict[str, float], whole: float, limit: float
) -> None:
    report.require(setting, "iterations", len(history), len(history) >= MIN_ITERS, f"≥ {MIN_ITERS}")
    seconds = {"rollout": sum(each["time/rollout_seconds"] for each in history), **seconds}
    seconds["everything else"] = whole - sum(seconds.values())
    for stage, its_seconds in seconds.items():
        report.figure(setting, f"{stage}, {len(history)} iterations", its_seconds, "s")
    report.figure(setting, "all of it", whole, "s")
    report.figure(setting, "last iteration", history[-1]["time/tokens_per_second"], "tokens/s")
    rewards = [each["reward/mean"] for each in history]
    report.figure(setting, "mean reward, first and last iteration", f"{rewards[0]:.3f}, {rewards[-1]:.3f}")
    are_finite = all(
        math.isfinite(each.get(key, math.nan))
        for each in history
        for key in ("reward/mean", "policy_loss", "grad_norm")
    )
    report.require(
        setting, "reward, loss and gradient norm", "finite" if are_finite else "not finite", are_finite, "finite"
    )
    num_skipped = int(sum(each["num_skipped_steps"] for each in history))
    report.require(setting, "skipped optimizer steps", num_skipped, num_skipped == 0, "0")
    largest = max(each["logprob_difference_mean"] for each in history)
    report.at_most(setting, "largest mean |sampled − recomputed| of an iteration", largest, limit, "nats")


def timed(machine: Machine, seconds: dict[str, float], stage: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """The same call, whose seconds are added up."""

    def timed_call(*arguments: Any, **named: Any) -> Any:
        its_seconds, result = machine.wall_seconds(lambda: call(*arguments, **named))
        seconds[stage] += its_seconds
        return result

    return timed_call


def word_tokenizer(vocab_size: int) -> PreTrainedTokenizerFast:
    """Every id is a word: `w17` is token 17, but for the special ones."""
    vocabulary = {f"w{number}": number for number in range(len(SPECIALS), vocab_size)}
    words = Tokenizer(
        models.WordLevel({**{word: number for number, word in enumerate(SPECIALS)}, **vocabulary}, unk_token="[unk]")
    )
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.add_special_tokens(list(SPECIALS[:3]))
    return PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token="<|im_end|>", pad_token="<|pad|>", unk_token="[unk]", chat_template=TEMPLATE
    )
