"""Feedback: a model learns when to ask what is wrong with its answer, to use what it is told, and to stop."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from midthought.config import RecipeConfig
from midthought.recipes.presets import begin

SHIPPED = ("tiny", "own", "seed", "cluster")


def config_class() -> type[RecipeConfig]:
    """The class of its settings."""
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
    """Run the recipe; the summary. `config` is a YAML file, or the name of one that ships: tiny, own, seed, cluster.

    Without it: `own` if a model is given by `model.local_path` or `from_path`; a run's own settings if one of its policies
    is evaluated; else `tiny`. A file for a given model replaces values of `own`. The stage `evaluate` needs a
    policy: `from_path`. `allow_changes`: resume with settings that change what is learned.
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
    from midthought.recipes.feedback.train import FeedbackRun  # loads torch; wrong settings are told before

    return FeedbackRun(chosen, path, console, stage, begin_with, resume, allow_changes).train()  # type: ignore[arg-type]
