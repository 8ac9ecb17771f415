"""Initial settings of a recipe: a shipped preset, a file, or the run's own settings. Words of the command line have priority.

Reads only YAML, so invalid settings are reported before anything heavy is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from midthought.config import RecipeConfig, merge_configs, parse_assignments, read_yaml
from midthought.config.changes import require_true_or_false
from midthought.config.store import TINY
from midthought.errors import CheckpointError, SettingsError, near_names
from midthought.plan.choices import as_recorded
from midthought.regular_files import read_json_object
from midthought.report.run_folder import require_intact_run

STAGES = ("sft", "rl", "all", "evaluate")
FOR_MADE_MODELS = "tiny"
FOR_GIVEN_MODELS = "own"
"""Names of the default presets. If a recipe does not have one, the defaults of its settings are used."""
Presets = Mapping[str, Path | Mapping[str, Any]]
"""YAML files or values by name."""
AnyConfig = TypeVar("AnyConfig", bound=RecipeConfig)


def begin(
    settings: type[AnyConfig],
    presets: Presets,
    path: Path,
    *,
    words: Sequence[str],
    config: Path | None,
    stage: str,
    from_path: Path | None,
    resume: bool,
) -> tuple[AnyConfig, Path | None]:
    """Returns the settings of a run in `path`, and the initial policy.

    `config` is a YAML file, or the name of a preset. Default: the run's own settings if it is resumed or one of
    its policies is evaluated; `own` if a model is given (`model.local_path`, `from_path`); else `tiny`. If a model is given, a
    user's file replaces values of `own`. Without a model, it replaces values of the library's `tiny`, and so does the recipe's
    own `tiny`. In a resumed run, `auto` is the value that the run chose at its start. A model to evaluate that does not
    belong to a run becomes `model.local_path`. A `training.algorithm` in `words` replaces values of presets, of a recorded run,
    and of a file that has this key, too; other values of the user's file win over it.
    Raises `SettingsError`, `CheckpointError`.
    """
    require_true_or_false(resume)
    if stage not in STAGES:
        raise SettingsError(f"unknown stage {stage!r}. {near_names(stage, STAGES)}")
    if resume and not (path / "config.yaml").is_file():
        raise CheckpointError(f"{path} holds no run to go on with; give its folder with --run")
    if resume:
        require_intact_run(path)
    assigned = parse_assignments(words)
    if stage == "evaluate" and from_path and not run_of(from_path):
        assigned = {"model": {"local_path": str(from_path)}, **assigned}
        from_path = None
    is_recorded = config is None and (resume or (stage == "evaluate" and from_path is not None))
    if is_recorded:
        config = (path if resume or from_path is None else run_of(from_path) or from_path) / "config.yaml"
    is_shipped = config is not None and str(config) in presets and not config.exists()
    values: dict[str, Any] = {}
    if config is not None:
        values = _values_of(presets, str(config)) if is_shipped else read_yaml(config)
    if is_shipped or is_recorded or (_has_algorithm(values) and _has_algorithm(assigned)):
        base, given = values, assigned
    else:
        base, given = {}, merge_configs(values, assigned, known=settings)
    has_model = _names_a_model(merge_configs(base, given)) or _is_given(from_path)
    if is_shipped and str(config) == FOR_MADE_MODELS and has_model:
        raise SettingsError(
            f"--config {FOR_MADE_MODELS} is for the small model that a run makes: its learning rates undo what a given model "
            f"knows. Leave --config out or write --config {FOR_GIVEN_MODELS}"
        )
    if not is_shipped and (has_model or config is None):
        preset = FOR_GIVEN_MODELS if has_model else FOR_MADE_MODELS
        base = merge_configs(_values_of(presets, preset), base, known=settings)
    if not has_model:
        base = merge_configs(TINY, base, known=settings)
    try:
        chosen = settings().merged(base)
    except SettingsError as error:
        raise SettingsError(f"{config}: {error}" if is_recorded else str(error)) from None
    chosen = chosen.merged(given)
    return (as_recorded(chosen, path / "config.yaml") if resume else chosen), from_path


def _values_of(presets: Presets, name: str) -> dict[str, Any]:
    preset = presets.get(name, {})
    return read_yaml(preset) if isinstance(preset, Path) else dict(preset)


def is_given(config: RecipeConfig, from_path: Path | None) -> bool:
    """Whether a run starts from a user's model, not from a small one that this run or an earlier one created."""
    return bool(config.model.local_path) or _is_given(from_path)


def _is_given(from_path: Path | None, later: frozenset[Path] = frozenset()) -> bool:
    """`later`: runs that started from this one."""
    if from_path is None:
        return False
    run = run_of(from_path)
    if run is None or _names_a_model(read_yaml(run / "config.yaml")):
        return True
    file = run / "progress.json"
    try:
        earlier = read_json_object(file)["from_path"]
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(
            f"{file} cannot be read ({error}); give one of the run's policies, copied to another folder"
        ) from None
    if run in later:
        raise CheckpointError(
            f"{file}: the run started from itself; give one of the run's policies, copied to another folder"
        )
    return earlier is not None and _is_given(Path(earlier), later | {run})


def _has_algorithm(values: Mapping[str, Any]) -> bool:
    training = values.get("training")
    return isinstance(training, Mapping) and "algorithm" in training


def _names_a_model(values: Mapping[str, Any]) -> bool:
    model = values.get("model")
    return isinstance(model, Mapping) and bool(model.get("local_path"))


def run_of(policy: Path) -> Path | None:
    """Returns the run folder to which a policy, a checkpoint or the folder itself belongs.

    The policy that lies deepest is `RUN/checkpoints/STAGE/checkpoints/NAME/policy`. Raises `CheckpointError` as
    `require_intact_run`.
    """
    for folder in (policy.resolve(), *policy.resolve().parents[:5]):
        require_intact_run(folder)
        if (folder / "progress.json").is_file():
            return folder
    return None
