"""Podcast memory: transcripts become a memory, a model learns with PPO to look things up in it in mid-thought."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from midthought.config import RecipeConfig, parse_assignments, read_yaml
from midthought.errors import CheckpointError, SettingsError, near_names

STAGES = ("sft", "rl", "all", "evaluate")
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
) -> dict[str, Any]:
    """Run the recipe; the summary. `config` is a YAML file, or the name of one that ships: tiny, own, seed, cluster.

    Without it: `own` where a model is given by `model.local_path`; a run's own settings where one of its policies is
    evaluated; else `tiny`. The stage `evaluate` needs a policy: `from_path`.
    """
    if stage not in STAGES:
        raise SettingsError(f"unknown stage {stage!r}. {near_names(stage, STAGES)}")
    if resume and not (path / "config.yaml").is_file():
        raise CheckpointError(f"{path} holds no run to go on with; give its folder with --run")
    assigned = parse_assignments(words)
    if stage == "evaluate" and from_path and not _run_of(from_path):
        assigned = {"model": {"local_path": str(from_path)}, **assigned}
        from_path = None
    default = Path("own" if _gives_model(assigned) else "tiny")
    if resume:
        default = path / "config.yaml"
    elif stage == "evaluate" and from_path:
        default = (_run_of(from_path) or from_path) / "config.yaml"
    file = config or default
    if str(file) in SHIPPED and not file.exists():
        file = Path(__file__).parent / f"{file}.yaml"
    chosen = config_class()().merged(read_yaml(file)).merged(assigned)
    from midthought.recipes.podcast.train import PodcastRun  # loads torch; wrong settings are told before

    return PodcastRun(chosen, path, console, stage, from_path, resume).train()  # type: ignore[arg-type]


def _gives_model(assigned: dict[str, Any]) -> bool:
    return bool(isinstance(assigned.get("model"), dict) and assigned["model"].get("local_path"))


def _run_of(policy: Path) -> Path | None:
    """The run folder that a policy, a checkpoint or the folder itself belongs to."""
    folders = [policy.resolve(), *policy.resolve().parents[:4]]
    return next((folder for folder in folders if (folder / "progress.json").is_file()), None)
