"""With which settings a recipe begins: those that ship with it, a file's, a run's own; the words of the command line win.

Reads YAML only, so wrong settings are told before anything heavy is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from midthought.config import RecipeConfig, parse_assignments, read_yaml
from midthought.errors import CheckpointError, SettingsError, near_names

STAGES = ("sft", "rl", "all", "evaluate")

AnyConfig = TypeVar("AnyConfig", bound=RecipeConfig)


def begin(
    settings: type[AnyConfig],
    folder: Path,
    shipped: Sequence[str],
    path: Path,
    *,
    words: Sequence[str],
    config: Path | None,
    stage: str,
    from_path: Path | None,
    resume: bool,
    own_model: str | None = None,
) -> tuple[AnyConfig, Path | None]:
    """The settings of a run in `path`, and the policy to begin with.

    `config` is a YAML file, or one of the names `shipped` in `folder`. Without it: the run's own settings where it is resumed
    or one of its policies is evaluated; `own_model` where a model is given by `model.local_path`; else the first that ships. A
    model to evaluate that no run made becomes `model.local_path`. Raises SettingsError, CheckpointError.
    """
    if stage not in STAGES:
        raise SettingsError(f"unknown stage {stage!r}. {near_names(stage, STAGES)}")
    if resume and not (path / "config.yaml").is_file():
        raise CheckpointError(f"{path} holds no run to go on with; give its folder with --run")
    assigned = parse_assignments(words)
    if stage == "evaluate" and from_path and not run_of(from_path):
        assigned = {"model": {"local_path": str(from_path)}, **assigned}
        from_path = None
    has_model = isinstance(assigned.get("model"), dict) and assigned["model"].get("local_path")
    default = Path(own_model if own_model and has_model else shipped[0])
    if resume:
        default = path / "config.yaml"
    elif stage == "evaluate" and from_path:
        default = (run_of(from_path) or from_path) / "config.yaml"
    file = config or default
    if str(file) in shipped and not file.exists():
        file = folder / f"{file}.yaml"
    return settings().merged(read_yaml(file)).merged(assigned), from_path


def run_of(policy: Path) -> Path | None:
    """The run folder that a policy, a checkpoint or the folder itself belongs to."""
    folders = [policy.resolve(), *policy.resolve().parents[:4]]
    return next((folder for folder in folders if (folder / "progress.json").is_file()), None)
