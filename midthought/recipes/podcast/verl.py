"""The podcast recipe for verl: its tasks, its tool and its reward, in the form that `midthought.cluster.verl` requires."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from midthought.cluster.verl.job import EpisodeSetup, ToolPlan, VerlJob
from midthought.cluster.verl.settings import VerlConfig
from midthought.config import RewardConfig
from midthought.env.question import QuestionEnvironment, answer_reward
from midthought.memory.remote import open_memory
from midthought.recipes.podcast.policy import instruction
from midthought.recipes.podcast.settings import MemorySection, PodcastConfig
from midthought.recipes.podcast.tasks import prepare_data, read_recipe_transcripts, search_tool
from midthought.recipes.verl_settings import begin_with_verl
from midthought.tokenization import Renderer
from midthought.tools.definition import Tool

SEED: dict[str, Any] = {
    "rollout": "sglang",
    "tensor_parallel": 8,
    "max_prompt_length": 256,
    "rows_per_gpu": 1,
    "overrides": {
        "data.filter_overlong_prompts": False,
        "algorithm.use_kl_in_reward": False,  # so its kl_coef of 0.01 did nothing
        "actor_rollout_ref.model.use_remove_padding": False,
        "critic.model.use_remove_padding": False,
        "actor_rollout_ref.actor.clip_ratio_c": 3.0,  # verl's default, which the seed does not change
        "actor_rollout_ref.actor.optim.total_training_steps": 5,
        "actor_rollout_ref.actor.fsdp_config.fsdp_size": 8,
        "actor_rollout_ref.rollout.top_p": 0.95,
        "actor_rollout_ref.rollout.enforce_eager": True,
        "actor_rollout_ref.rollout.max_num_batched_tokens": 512,
        "actor_rollout_ref.rollout.max_num_seqs": 16,
        "actor_rollout_ref.rollout.max_model_len": 8192,
        "trainer.total_epochs": 1,
        "trainer.save_freq": -1,
        "trainer.test_freq": 5,
        "trainer.val_before_train": False,
        "trainer.resume_mode": "disable",
        "trainer.logger": ["console"],
        "trainer.project_name": "verl_simple_test",
    },
}
"""Values of the seed for which `seed.yaml` has no key. This verl does not support three others (a synchronous rollout,
`reward_fn_key`, `reward_model`): its rollout is always asynchronous, and the reward is a separate function."""

CLUSTER: dict[str, Any] = {
    "rollout": "vllm",  # the engine that verl tests most; sglang does as well
    "tensor_parallel": 1,  # 8 B in bf16 are 16 GB: eight engines of one GPU sample more than one engine of eight
    "gpu_memory_utilization": 0.6,
    "max_prompt_length": 1024,
    "max_tokens_per_gpu": 16384,  # rows are packed, none is padded; three of the longest fit
    "offload": True,  # actor and critic in fp32 with Adam are 2 x 128 GB: with it they leave room for sampling
}
"""Usable values for eight GPUs of 80 GB: use them with `cluster.yaml`, whose limits fit the thought, its calls and results."""

PROFILES: dict[str, Mapping[str, Any]] = {"seed": SEED, "cluster": CLUSTER}


class PodcastVerlConfig(PodcastConfig):
    """The recipe's settings with a section for verl."""

    verl: VerlConfig = Field(default_factory=VerlConfig)


def settings(words: Sequence[str], config: Path | None, from_path: Path | None = None) -> PodcastVerlConfig:
    """Returns the settings of a run with verl (`begin_with_verl`); the profiles are `seed` and `cluster`."""
    return begin_with_verl(PodcastVerlConfig, Path(__file__).parent, PROFILES, words, config, from_path)


def job(config: PodcastVerlConfig, folder: Path) -> VerlJob:
    """Returns the data of the bundle in `folder`. Reads transcripts and generates questions; writes nothing."""
    memory = config.memory
    data = prepare_data(config, read_recipe_transcripts(config), folder)
    spoken = instruction(config, may_abstain=data.may_abstain)
    options = memory.model_dump(mode="json", exclude={"transcripts", "replace"})
    options["path"] = _whole(memory.path) if memory.path else "{bundle}/memory"
    return VerlJob(
        recipe="podcast",
        config=config,
        data_source="podcast_qa",
        ability="qa",
        tasks={"train": data.tasks["train"], "validation": data.tasks["validation"]},
        messages=lambda task: task.messages(spoken),
        tools=[
            ToolPlan(reference=f"{__name__}:memory_tool", definition=definition, options=options)
            for definition in data.registry.definitions()
        ],
        supply=f"{__name__}:supply",
        supply_options=config.reward.model_dump(mode="json"),
        extras=["memory"],
        write_files=data.build,
    )


def memory_tool(**options: Any) -> Tool:
    """Returns the recipe's tool for a memory on disk or a memory service; `options` is the section `memory` of the settings.

    Raises `MemoryStoreError` if there is none.
    """
    memory = MemorySection(**options)
    return search_tool(
        memory, open_memory(memory.path, embedding_model=memory.embedding_model, token_env=memory.token_env)
    )


def _whole(path: str) -> str:
    """Returns the path or address in a form that another process can use."""
    return path if "://" in path else str(Path(path).resolve())


def supply(renderer: Renderer, tools: Sequence[Tool], options: Mapping[str, Any]) -> EpisodeSetup:
    """Returns the recipe's reward; `options` is the section `reward` of the settings."""
    environment = QuestionEnvironment(answer_reward(RewardConfig(**options)))
    return EpisodeSetup(environment=lambda task: environment)
