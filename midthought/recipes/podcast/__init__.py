"""Podcast memory: transcripts become a memory, a model learns with PPO to look things up in it in mid-thought."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from midthought.config import RecipeConfig
from midthought.recipes.presets import begin

SHIPPED = ("tiny", "own", "seed", "cluster")


def config_class() -> type[RecipeConfig]:
    """The class of its settings."""
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
    """Run the recipe; the summary. `config` is a YAML file, or the name of one that ships: tiny, own, seed, cluster.

    Without it: `own` if a model is given by `model.local_path` or `from_path`; a run's own settings if one of its policies
    is evaluated; else `tiny`. A file for a given model replaces values of `own`. The stage `evaluate` needs a
    policy: `from_path`. `allow_changes`: resume with settings that change what is learned.
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
    from midthought.recipes.podcast.train import PodcastRun  # loads torch; wrong settings are told before

    return PodcastRun(chosen, path, console, stage, begin_with, resume, allow_changes).train()  # type: ignore[arg-type]
