"""Settings of a recipe for verl: a shipped profile or a file. Words of the command line have priority."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from midthought.config import RecipeConfig, load, parse_assignments, read_yaml
from midthought.errors import SettingsError, near_names
from midthought.models.gguf import model_folder
from midthought.models.pretrained import require_intact_model
from midthought.plan.choices import choose

AnyConfig = TypeVar("AnyConfig", bound=RecipeConfig)


def begin_with_verl(
    settings: type[AnyConfig],
    folder: Path,
    words: Sequence[str],
    config: Path | None,
    from_path: Path | None = None,
) -> AnyConfig:
    """Returns the settings of a run with verl. `from_path` is the initial model.

    `config` is a YAML file or the name of a profile, `cluster` by default: `NAME.yaml` in `folder`, and `NAME.verl.yaml` with the
    section `verl`. Raises `SettingsError`, and `ModelPathError` as `require_intact_model`.
    """
    profile, suffix = str(config or "cluster"), ".verl.yaml"
    profiles = {path.name.removesuffix(suffix): path for path in folder.glob(f"*{suffix}")}
    if config is not None and config.exists():
        layers: list[Mapping[str, Any]] = [read_yaml(config)]
    elif profile in profiles:
        layers = [read_yaml(folder / f"{profile}.yaml"), read_yaml(profiles[profile])]
    else:
        raise SettingsError(f"--config {profile} is no file and no profile. {near_names(profile, profiles)}")
    if from_path is not None:
        layers.append({"model": {"local_path": str(from_path)}})
    chosen = load(settings, *layers, parse_assignments(words))
    if chosen.model.local_path:
        chosen.model.local_path = str(model_folder(chosen.model.local_path))
        require_intact_model(Path(chosen.model.local_path).expanduser())
    return choose(chosen, on_gpu=True, by_verl=True)
