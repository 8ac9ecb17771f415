"""Feedback: a model learns when to request feedback on its answer, to use the feedback, and to stop."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from midthought.config import RecipeConfig
from midthought.recipes.presets import begin

SHIPPED = ("tiny", "own", "seed", "cluster")


def config_class() -> type[RecipeConfig]:
    """Returns the class of the recipe's settings."""
    from midthought.recipes.feedback.settings import FeedbackRecipeConfig

    return FeedbackRecipeConfig


def run(
    path: Path,
    console: Any,
    *,
    words: Sequence[str],
    config: Path | None = None,
    stage: str = "all",
    from_path: Path | None = None,
    resume: bool = False,
    allow_changes: bool = False,
) -> dict[str, Any]:
    """Runs the recipe and returns the summary. `config` is a YAML file or a shipped preset: tiny, own, seed, cluster.

    Default: `own` if `model.local_path` or `from_path` gives a model; a run's own settings if one of its policies is
    evaluated; else `tiny`. If a model is given, a file replaces values of `own`. The stage `evaluate` needs a policy in
    `from_path`. `allow_changes` permits resuming with settings that change what is learned.
    """
    from midthought.recipes.feedback.settings import FeedbackRecipeConfig

    chosen, begin_with = begin(
        FeedbackRecipeConfig,
        Path(__file__).parent,
        SHIPPED,
        path,
        words=words,
        config=config,
        stage=stage,
        from_path=from_path,
        resume=resume,
    )
    from midthought.recipes.feedback.train import FeedbackRun  # loads torch; settings are validated before

    return FeedbackRun(chosen, path, console, stage, begin_with, resume, allow_changes).train()  # type: ignore[arg-type]
