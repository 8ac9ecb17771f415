"""The feedback recipe for verl: problems, tool, reward and demonstrations in the form required by `midthought.cluster.verl`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from midthought.cluster.verl.job import EpisodeSetup, ToolPlan, VerlJob, VerlSftJob
from midthought.cluster.verl.settings import VerlConfig
from midthought.config import settled
from midthought.env.answers import task_is_right
from midthought.errors import SettingsError
from midthought.feedback.critics.settings import FeedbackSettings
from midthought.feedback.prompts import DEFINITION
from midthought.feedback.tool import FeedbackTool
from midthought.recipes.feedback.conversation import CALL_FORMAT, system_messages
from midthought.recipes.feedback.converted import read_messages
from midthought.recipes.feedback.problems import prepare_problems
from midthought.recipes.feedback.reward import FeedbackEnvironment, FeedbackRewardConfig
from midthought.recipes.feedback.rounds import RoundReader
from midthought.recipes.feedback.settings import FeedbackRecipeConfig
from midthought.recipes.verl_settings import begin_with_verl
from midthought.tokenization import Renderer
from midthought.tools.definition import Tool

SEED: dict[str, Any] = {
    "gpus_per_node": 4,
    "tensor_parallel": 1,
    "gpu_memory_utilization": 0.9,
    "max_prompt_length": 2048,
    "max_tokens_per_gpu": 10240,
    "offload": True,
    "overrides": {
        "actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size": 2,
        "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu": 20480,
        "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu": 20480,
        "actor_rollout_ref.rollout.val_kwargs.n": 4,
        "actor_rollout_ref.rollout.val_kwargs.do_sample": True,
        "actor_rollout_ref.rollout.val_kwargs.temperature": 1.0,
        "actor_rollout_ref.rollout.val_kwargs.top_p": 0.6,
    },
    "sft_trainer": {
        "batch_size": 32,
        "max_length": 16384,
        "overrides": {"engine.ulysses_sequence_parallel_size": 4},
    },
}
"""Values of the seed for which `seed.yaml` has no key. One GPU per engine and 0.9 of its memory are in the seed's script, which
trains 7 B. The 32 B model on the seed's page has 64 GB of weights: `cluster` gives an engine four GPUs."""

CLUSTER: dict[str, Any] = {
    "num_nodes": 2,
    "tensor_parallel": 4,  # 32 B in bf16 are 64 GB: 16 on each of four GPUs, which leaves 32 for the cache
    "gpu_memory_utilization": 0.6,
    "max_prompt_length": 2048,
    "max_tokens_per_gpu": 12288,  # one of the longest sequences (10,368) and some short ones
    "offload": True,  # 32 B in fp32 with gradients and Adam are 512 GB: 32 on each of sixteen GPUs, while they train
    "sft_trainer": {"batch_size": 32, "max_length": 12288},
}
"""Usable values for sixteen GPUs of 80 GB: use them with `cluster.yaml`."""

PROFILES: dict[str, Mapping[str, Any]] = {"seed": SEED, "cluster": CLUSTER}


class FeedbackVerlConfig(FeedbackRecipeConfig):
    """The recipe's settings with a section for verl."""

    verl: VerlConfig = Field(default_factory=VerlConfig)


def settings(words: Sequence[str], config: Path | None, from_path: Path | None = None) -> FeedbackVerlConfig:
    """Returns the settings of a run with verl (`begin_with_verl`); the profiles are `seed` and `cluster`."""
    return begin_with_verl(FeedbackVerlConfig, Path(__file__).parent, PROFILES, words, config, from_path)


def job(config: FeedbackVerlConfig, folder: Path) -> VerlJob:
    """Returns the data of a bundle. Reads the problems, and creates the critic once so that its errors are raised here."""
    problems = prepare_problems(config.problems, config.training.seed)
    options = config.feedback.model_dump(mode="json")
    feedback_tool(**options)
    spoken = system_messages(config)
    return VerlJob(
        recipe="feedback",
        config=config,
        data_source=config.problems.dataset,
        validation_source=config.problems.test_dataset or "",
        ability="feedback",
        tasks={"train": problems["train"], "validation": problems["validation"]},
        messages=lambda task: task.messages(*spoken),
        tools=[ToolPlan(reference=f"{__name__}:feedback_tool", definition=DEFINITION, options=options)],
        call_format=CALL_FORMAT.name,
        supply=f"{__name__}:supply",
        supply_options=config.reward.model_dump(mode="json"),
        extras=["judge", "math"],
    )


def sft_job(config: FeedbackVerlConfig) -> VerlSftJob:
    """Returns the data of a warm-up bundle: the conversations of `sft.source`. Raises `DataError`, `SettingsError`."""
    if not config.sft.source:
        raise SettingsError("sft.source is empty: name the Parquet file that `midthought feedback convert` wrote")
    return VerlSftJob(
        recipe="feedback",
        config=config,
        conversations=read_messages(config.sft.source, CALL_FORMAT, system_messages(config)),
        num_steps=config.sft.num_steps,
        learning_rate=settled(config.sft.learning_rate),
        warmup_steps=config.sft.warmup_steps,
    )


def feedback_tool(**options: Any) -> Tool:
    """Returns the recipe's tool; `options` is the section `feedback` of the settings."""
    return FeedbackTool.from_settings(FeedbackSettings(**options))


def supply(renderer: Renderer, tools: Sequence[Tool], options: Mapping[str, Any]) -> EpisodeSetup:
    """Returns the recipe's reward; `options` is the section `reward` of the settings."""
    environment = FeedbackEnvironment(RoundReader(CALL_FORMAT, task_is_right), FeedbackRewardConfig(**options))
    return EpisodeSetup(environment=lambda task: environment)
