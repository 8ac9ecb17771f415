"""The podcast recipe for verl: its tasks, its tool and its reward, in the form that `midthought.cluster.verl` requires."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from midthought.cluster.verl.job import EpisodeSetup, ToolPlan, VerlJob
from midthought.config import RewardConfig
from midthought.env.episode import QuestionEnvironment
from midthought.env.rewards import answer_reward
from midthought.memory.remote import open_memory
from midthought.recipes.podcast.settings import MemorySection, PodcastConfig
from midthought.recipes.podcast.tasks import instruction, prepare_data, read_recipe_transcripts, search_tool
from midthought.tokenization import Renderer
from midthought.tools.definition import Tool


def job(config: PodcastConfig, folder: Path) -> VerlJob:
    """Returns the data of the bundle in `folder`. Reads transcripts and generates questions; writes nothing."""
    memory = config.memory
    data = prepare_data(config, read_recipe_transcripts(config), folder)
    spoken = instruction(config, may_abstain=data.may_abstain)
    options = memory.model_dump(mode="json", exclude={"transcripts", "replace"})
    if not memory.path:
        options["path"] = "{bundle}/memory"
    elif "://" not in memory.path:  # another process has another working directory
        options["path"] = str(Path(memory.path).resolve())
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
    store = open_memory(memory.path, embedding_model=memory.embedding_model, token_env=memory.token_env)
    return search_tool(memory, store)


def supply(renderer: Renderer, tools: Sequence[Tool], options: Mapping[str, Any]) -> EpisodeSetup:
    """Returns the recipe's reward; `options` is the section `reward` of the settings."""
    environment = QuestionEnvironment(answer_reward(RewardConfig(**options)))
    return EpisodeSetup(environment=lambda task: environment)
