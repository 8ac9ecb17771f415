"""Part `learner`: our update against an update of padded batches and TRL's, and the memory of log-probabilities."""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Iterator, Sequence

from benchmarks import learner_memory, trl_loop
from benchmarks.learner_work import (
    LearnerWork,
    extended_rows,
    grouped_work,
    long_tailed_work,
    padded_ratio,
    recipe_work,
)
from benchmarks.options import Options
from benchmarks.table import Row
from benchmarks.timing import Spread, System, compare
from benchmarks.trl_learner import TRLUpdate
from midthought.config import TrainingConfig
from midthought.learning.batch import TokenBatch
from midthought.learning.learner import Learner

PART = "learner"
SETTINGS = TrainingConfig(
    adv_estimator="grpo",
    entropy_coef=0.0,
    kl_coef=0.0,
    warmup_steps=0,
    mini_batch_size=1_000_000,
    learning_rate=1e-6,
)
"""One optimizer step an update, without KL: what TRL computes with `beta=0` and `loss_type="dapo"`."""
TRL_ROWS = (8, 32)
"""Episodes of a micro-batch of TRL's: the quicker of the two in each round counts."""

PROMPTS = (30, 200, 1000, 4000)
GROUP_SIZES = (4, 8, 16)
"""Tokens of a prompt, and samples of a group."""
GROUP_TOKENS = 16_384
"""Tokens of a micro-batch that holds the largest group, as `auto` chooses it; without shared prompts it has 4,096."""
MAX_MEMORY_ROUNDS, MAX_PROMPT_ROUNDS = 2, 3


class Update:
    """`Learner.update` on a scored and credited batch."""

    def __init__(self, work: LearnerWork, training: TrainingConfig, *, padded: bool = False) -> None:
        self.learner = Learner(copy.deepcopy(work.model), None, None, training)
        batch = extended_rows(work.batch()) if padded else work.batch()
        self.batch: TokenBatch = self.learner.credit(self.learner.score(batch)[0])[0]

    def prepare(self, work: object) -> None:
        """Every round is the same step on other weights."""

    def run(self) -> None:
        self.metrics = self.learner.update(self.batch)

    def check(self) -> None:
        assert self.metrics["num_skipped_steps"] == 0


class Scoring:
    """`Learner.score` of an update's batch."""

    def __init__(self, update: Update) -> None:
        self._update = update

    def prepare(self, work: object) -> None:
        """Every round is the same."""

    def run(self) -> None:
        self.scored, self.metrics = self._update.learner.score(self._update.batch)

    def check(self) -> None:
        assert self.scored.old_logprobs is not None and bool(self.scored.old_logprobs.isfinite().all())


def measure(options: Options) -> Iterator[Row]:
    num_episodes = 8 if options.quick else 32
    works = [recipe_work(num_episodes), *(long_tailed_work(size, num_episodes) for size in options.sizes)]
    for work in works:
        work.model.to(device=options.device, dtype=options.dtype)
        yield from compare_updates(options, work)
    yield from compare_prompts(options)
    if options.device != "cpu" or not learner_memory.STATUS.exists():
        print("learner: memory is left out, it is measured on the CPU under Linux", file=sys.stderr)
        return
    yield memory(options)


def compare_updates(options: Options, work: LearnerWork) -> Iterator[Row]:
    ours = Update(work, SETTINGS)
    systems: dict[str, System] = {
        "packed": ours,
        "by length": Update(work, SETTINGS.changed(packing=False)),
        "padded": Update(work, SETTINGS.changed(packing=False), padded=True),
    }
    batch = work.batch()
    theirs = [f"TRL, {num_rows} rows" for num_rows in TRL_ROWS if num_rows <= len(batch)]
    if trl_loop.is_installed():
        updates = {
            name: TRLUpdate(work.model, work.tokenizer, ours.batch, SETTINGS, num_rows)
            for name, num_rows in zip(theirs, TRL_ROWS, strict=False)
        }
        assert_same_step(ours, list(updates.values()))
        systems |= updates
    else:
        print("learner: TRL is left out, it is not installed here; `make bench` does that", file=sys.stderr)
        theirs = []
    timings = compare(systems, lambda *_: None, options.num_rounds)
    setting, ratio = work.describe(), padded_ratio(batch)
    for name, goal in (("packed", 0.85), ("by length", None)):
        yield Row(
            part=PART,
            setting=setting,
            figure=f"speed-up over padded batches, as a share of padded ÷ real tokens: {name}",
            value=timings.ratio("padded", name).times(1 / ratio),
            at_least=goal,
            seconds=timings.medians("padded", name),
        )
    if theirs:
        yield Row(
            part=PART,
            setting=setting,
            figure="TRL's loss and update: its time against ours",
            value=timings.per_round(lambda seconds: min(seconds[name] for name in theirs) / seconds["packed"]),
            at_least=1.5,
            seconds=timings.medians(*theirs, "packed"),
        )


def compare_prompts(options: Options) -> Iterator[Row]:
    """Prompts that a group's rows share, computed once and once per row."""
    size, rounds = options.sizes[-1], min(MAX_PROMPT_ROUNDS, options.num_rounds)
    for num_prompt in PROMPTS[:2] if options.quick else PROMPTS:
        for group_size in GROUP_SIZES[:1] if options.quick else GROUP_SIZES:
            work = grouped_work(size, num_prompt, group_size)
            work.model.to(device=options.device, dtype=options.dtype)
            once = Update(work, SETTINGS.changed(micro_batch_tokens=GROUP_TOKENS))
            each = Update(work, SETTINGS.changed(packing=True))
            for figure, systems in (
                ("scoring", {"once": Scoring(once), "per row": Scoring(each)}),
                ("update", {"once": once, "per row": each}),
            ):
                timings = compare(systems, lambda *_: None, rounds)
                yield Row(
                    part=PART,
                    setting=f"{work.name} after a prompt of {num_prompt:,}",
                    figure=f"{figure}: time with the prompt once per row, against once per group",
                    value=timings.ratio("per row", "once"),
                    seconds=timings.medians("per row", "once"),
                )


def assert_same_step(ours: Update, theirs: Sequence[TRLUpdate]) -> None:
    """From the same weights both compute the same gradient: its norm before clipping says so."""
    ours.run()
    for system in theirs:
        system.prepare(None)
        system.run()
        found, expected = system.grad_norm, ours.metrics["grad_norm"]
        assert math.isclose(found, expected, rel_tol=1e-3), f"TRL's gradient has the norm {found}, ours {expected}"


def memory(options: Options) -> Row:
    num_tokens = 256 if options.quick else 1024
    mib = 8 if options.quick else learner_memory.LOGITS_MIB
    pairs = [
        (learner_memory.peak_bytes(num_tokens, mib), learner_memory.peak_bytes(num_tokens, None))
        for _ in range(min(MAX_MEMORY_ROUNDS, options.num_rounds))
    ]
    return Row(
        part=PART,
        setting=f"vocabulary {learner_memory.VOCABULARY:,}, {num_tokens:,} policy tokens, blocks of {mib} MiB",
        figure="rise of memory while log-probabilities are worked out and learned from, against all logits at once",
        value=Spread.of([ours / plain for ours, plain in pairs]),
        at_most=0.4,
    )
