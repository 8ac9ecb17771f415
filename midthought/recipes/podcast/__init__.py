"""Podcast memory: builds a memory from transcripts; a model learns with PPO to query it inside its thought."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from midthought.config import RecipeConfig
from midthought.recipes.presets import begin

SHIPPED = ("tiny", "own", "seed", "cluster")


def config_class() -> type[RecipeConfig]:
    """Returns the class of the recipe's settings."""
    from midthought.recipes.podcast.settings import PodcastConfig

    return PodcastConfig


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
    from midthought.recipes.podcast.settings import PodcastConfig

    chosen, begin_with = begin(
        PodcastConfig,
        Path(__file__).parent,
        SHIPPED,
        path,
        words=words,
        config=config,
        stage=stage,
        from_path=from_path,
        resume=resume,
    )
    from midthought.recipes.podcast.train import PodcastRun  # loads torch; settings are validated before

    return PodcastRun(chosen, path, console, stage, begin_with, resume, allow_changes).train()  # type: ignore[arg-type]
