"""The feedback recipe for verl: problems, tool and reward in the form required by `midthought.cluster.verl`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from midthought.cluster.verl.job import EpisodeSetup, ToolPlan, VerlJob
from midthought.feedback.settings import DEFINITION, FeedbackSettings
from midthought.feedback.tool import FeedbackTool
from midthought.recipes.feedback.reward import CALL_FORMAT, FeedbackEnvironment, FeedbackRewardConfig
from midthought.recipes.feedback.settings import FeedbackRecipeConfig
from midthought.recipes.feedback.tasks import prepare_problems
from midthought.tokenization import Renderer
from midthought.tools.definition import Tool


def job(config: FeedbackRecipeConfig, folder: Path) -> VerlJob:
    """Returns the data of a bundle. Reads the problems, and creates the critic once so that its errors are raised here."""
    problems = prepare_problems(config)
    options = config.feedback.model_dump(mode="json")
    feedback_tool(**options)
    return VerlJob(
        recipe="feedback",
        config=config,
        data_source=config.problems.dataset,
        validation_source=config.problems.test_dataset or "",
        ability="feedback",
        tasks={"train": problems["train"], "validation": problems["validation"]},
        messages=lambda task: task.messages(*config.system_messages),
        tools=[ToolPlan(reference=f"{__name__}:feedback_tool", definition=DEFINITION, options=options)],
        call_format=CALL_FORMAT.name,
        supply=f"{__name__}:supply",
        supply_options=config.reward.model_dump(mode="json"),
        extras=["judge", "math"],
    )


def feedback_tool(**options: Any) -> Tool:
    """Returns the recipe's tool; `options` is the section `feedback` of the settings."""
    return FeedbackTool.from_settings(FeedbackSettings(**options))


def supply(renderer: Renderer, tools: Sequence[Tool], options: Mapping[str, Any]) -> EpisodeSetup:
    """Returns the recipe's reward; `options` is the section `reward` of the settings."""
    environment = FeedbackEnvironment(FeedbackRewardConfig(**options))
    return EpisodeSetup(environment=lambda task: environment)
