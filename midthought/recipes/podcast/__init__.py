"""Podcast memory: transcripts become a memory, a model learns with PPO to look things up in it in mid-thought."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from midthought.config import parse_assignments, read_yaml
from midthought.errors import CheckpointError, SettingsError, near_names

STAGES = ("sft", "rl", "all")
SHIPPED = ("tiny", "own", "seed", "cluster")


def run(
    path: Path,
    console: Any,
    *,
    words: Sequence[str],
    config: Path | None = None,
    stage: str = "all",
    from_path: Path | None = None,
    resume: bool = False,
) -> dict[str, Any]:
    """Run the recipe; the summary. `config` is a YAML file, or the name of one that ships: tiny, own, seed, cluster.

    Without it: `own` where a model is given by `model.local_path`, else `tiny`.
    """
    from midthought.recipes.podcast.settings import PodcastConfig

    if stage not in STAGES:
        raise SettingsError(f"unknown stage {stage!r}. {near_names(stage, STAGES)}")
    if resume and not (path / "config.yaml").is_file():
        raise CheckpointError(f"{path} holds no run to go on with; give its folder with --run")
    assigned = parse_assignments(words)
    gives_model = bool(isinstance(assigned.get("model"), dict) and assigned["model"].get("local_path"))
    default = path / "config.yaml" if resume else Path("own" if gives_model else "tiny")
    file = config or default
    if str(file) in SHIPPED and not file.exists():
        file = Path(__file__).parent / f"{file}.yaml"
    settings = PodcastConfig().merged(read_yaml(file)).merged(assigned)
    from midthought.recipes.podcast.train import PodcastRun  # loads torch; wrong settings are told before

    return PodcastRun(settings, path, console, stage, from_path, resume).train()  # type: ignore[arg-type]
