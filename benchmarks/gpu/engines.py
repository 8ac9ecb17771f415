"""Check 12: an engine on the learner's GPU. The local engine releases its cache while the learner works. vLLM in this process
(if it is installed) samples beside it: tokens per second, memory released by `sleep`, seconds from an update to the first
token with the new weights, and sampled against recomputed log-probabilities after that.
"""

from __future__ import annotations

import asyncio
import importlib.util
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.findings import Report
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.models import (
    SHAPES,
    complete,
    grpo_settings,
    has_room,
    make_engine,
    make_episodes,
    make_model,
    own_error,
    random_prompts,
)
from midthought.engines.engine import Sampling
from midthought.engines.local.engine import LocalEngine
from midthought.engines.vllm_in_process import VLLMInProcessEngine
from midthought.engines.weight_publication import PublishedPolicy
from midthought.learning.batch import TokenBatch
from midthought.learning.learner import Learner
from midthought.models.peft_folders import save_config
from midthought.types import Completion

NUM_ROWS, NUM_TOKENS, NUM_PROMPT_TOKENS = 32, 192, 64
VLLM_SHARE = 0.5
"""Of the GPU's memory, for vLLM."""
MIN_RELEASED = 0.95
"""Of vLLM's memory."""
MAX_UPDATE_SECONDS = 1.0
"""From the update to the first token with the new weights, on a GPU, up to 1.7B."""
MEAN_BFLOAT16 = 0.02
"""Limit of the mean |sampled − recomputed| in nats, or twice the mean error of the model's own forward pass."""
GIB = 2**30


def run(machine: Machine, report: Report) -> None:
    names = [name for name in machine.model_names if name in ("1.7B", "tiny")] or machine.model_names[:1]
    name = names[0]
    if not has_room(machine, name, 8):
        report.not_run(f"{name} and an engine do not fit into the free memory")
    policy = make_model(machine, name, torch.bfloat16)
    prompts = random_prompts(SHAPES[name], [NUM_PROMPT_TOKENS] * machine.pick(NUM_ROWS, 4))
    num_tokens = machine.pick(NUM_TOKENS, 12)
    rate = _local(machine, report, name, policy, prompts, num_tokens)
    setting = f"{name} bfloat16, vLLM"
    if importlib.util.find_spec("vllm") is None:
        return report.left_out(setting, "vllm is not installed")
    if machine.seconds_left < machine.pick(60.0, 5.0):
        return report.left_out(setting, "no time is left to start vLLM")
    _vllm(machine, report, setting, policy, prompts, num_tokens, rate)


def _local(
    machine: Machine, report: Report, name: str, policy: Any, prompts: list[list[int]], num_tokens: int
) -> float:
    """Tokens per second of the local engine."""
    setting = f"{name} bfloat16, local"
    before = machine.allocated_bytes
    engine = make_engine(policy, len(prompts), NUM_PROMPT_TOKENS + num_tokens)
    complete(engine, prompts, num_tokens)
    seconds, done = machine.wall_seconds(lambda: complete(engine, prompts, num_tokens))
    num_sampled = sum(len(each.token_ids) for each in done)
    report.figure(setting, f"{len(prompts)} at once", num_sampled / seconds, "tokens/s")
    if before is not None:
        _sleep(machine, report, setting, engine, before)
    engine.shutdown()
    return num_sampled / seconds


def _sleep(machine: Machine, report: Report, setting: str, engine: LocalEngine, before: int) -> None:
    """The bytes of all keys and values must be free for the learner. The allocator may return fewer to the driver: it returns
    only whole segments. `before`: bytes allocated before the engine existed."""
    cache = engine.num_cache_bytes
    held, free = (machine.allocated_bytes or 0), machine.free_bytes
    engine.sleep()
    released = held - (machine.allocated_bytes or 0)
    report.require(
        setting, "memory released by sleep", released / GIB, released >= cache, f"≥ {cache / GIB:.3f}, the cache", "GiB"
    )
    report.figure(setting, "memory that the engine keeps", ((machine.allocated_bytes or 0) - before) / GIB, "GiB")
    report.figure(setting, "memory returned to the driver", (machine.free_bytes - free) / GIB, "GiB")


def _vllm(
    machine: Machine,
    report: Report,
    setting: str,
    policy: Any,
    prompts: list[list[int]],
    num_tokens: int,
    local_rate: float,
) -> None:
    free = [machine.free_bytes]
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        save_config(policy, Path(folder), policy.dtype, is_tied=False)
        arguments = {"enable_sleep_mode": True, "gpu_memory_utilization": VLLM_SHARE} if machine.is_cuda else {}
        engine = VLLMInProcessEngine(
            folder,
            eos_token_ids=[],
            max_seq_len=NUM_PROMPT_TOKENS + num_tokens,
            max_num_seqs=len(prompts),
            dtype="bfloat16",
            follows_policy=True,
            engine_args=arguments,
        )
        started, _ = machine.wall_seconds(engine.start)
    synced = engine.follow(PublishedPolicy(policy, probe_ids=range(3, NUM_PROMPT_TOKENS + 3)))
    try:
        report.figure(setting, "start", started, "s")
        complete(synced, prompts, num_tokens)
        seconds, done = machine.wall_seconds(lambda: complete(synced, prompts, num_tokens))
        rate = sum(len(each.token_ids) for each in done) / seconds
        report.figure(setting, f"{len(prompts)} at once", rate, "tokens/s")
        report.figure(setting, "the local engine's rate, of vLLM's", local_rate / rate)
        _released(machine, report, setting, synced, free)
        _learn(machine, policy, prompts, done)
        _first_token(machine, report, setting, synced, prompts[0])
        _recomputed(machine, report, setting, policy, prompts, complete(synced, prompts, num_tokens))
    finally:
        synced.shutdown()


def _released(machine: Machine, report: Report, setting: str, synced: VLLMInProcessEngine, free: list[int]) -> None:
    if machine.is_cuda:
        free.append(machine.free_bytes)
    synced.sleep()
    if machine.is_cuda:
        free.append(machine.free_bytes)
        before, awake, asleep = free
        share = (asleep - awake) / (before - awake)
        report.figure(setting, "memory of vLLM", (before - awake) / GIB, "GiB")
        report.require(
            setting, "released by sleep", 100 * share, share >= MIN_RELEASED, f"≥ {100 * MIN_RELEASED:g}", "%"
        )


def _learner(machine: Machine, policy: Any, num_rows: int) -> Learner:
    return Learner(policy, None, None, grpo_settings(num_rows, learning_rate=machine.pick(1e-6, 1e-4)))


def _batch(prompts: list[list[int]], completions: list[Completion]) -> TokenBatch:
    return TokenBatch.from_trajectories(make_episodes(prompts, completions))


def _learn(machine: Machine, policy: Any, prompts: list[list[int]], completions: list[Completion]) -> None:
    learner = _learner(machine, policy, len(prompts))
    scored, _ = learner.score(_batch(prompts, completions))
    learner.update(learner.credit(scored)[0])
    del learner
    machine.clean()


def _first_token(
    machine: Machine, report: Report, setting: str, synced: VLLMInProcessEngine, prompt: list[int]
) -> None:
    """The update wakes vLLM, sends the weights, and checks that vLLM computes with them."""

    def update_and_sample() -> None:
        synced.update_weights()
        asyncio.run(synced.sample(0, prompt, Sampling(max_tokens=1)))

    seconds, _ = machine.wall_seconds(update_and_sample)
    words = "from the update to the first token with new weights"
    if machine.is_cuda and not machine.is_tiny:
        report.at_most(setting, words, seconds, MAX_UPDATE_SECONDS, "s")
    else:
        report.figure(setting, words, seconds, "s")


def _recomputed(
    machine: Machine,
    report: Report,
    setting: str,
    policy: Any,
    prompts: list[list[int]],
    completions: list[Completion],
) -> None:
    batch = _batch(prompts, completions)
    _, health = _learner(machine, policy, len(prompts)).score(batch)
    rows = batch.token_ids.split(batch.lengths.tolist())[:3]
    limit = max(MEAN_BFLOAT16, 2 * own_error(policy, [row.tolist() for row in rows]).mean)
    words = "mean |sampled − recomputed| after the update"
    report.at_most(setting, words, health["logprob_difference_mean"], limit, "nats")
