"""A recipe as an object: its settings, its presets and its run; which run a policy belongs to. Only what is used is imported."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field, create_model

from midthought.cluster.verl.settings import VerlConfig
from midthought.config import Harmless, RecipeConfig, Section, load, merge_configs, parse_assignments, read_yaml
from midthought.config.changes import require_true_or_false
from midthought.config.references import load as load_object
from midthought.config.store import TINY
from midthought.errors import CheckpointError, SettingsError, near_names
from midthought.files.regular import read_json_object
from midthought.models.gguf import model_folder
from midthought.models.pretrained import require_intact_model
from midthought.plan.choices import as_recorded, choose
from midthought.report.console import Console
from midthought.report.run_folder import flat_keys, require_intact_run
from midthought.trainer.progress import FILE_NAME

STAGES = ("sft", "rl", "all", "evaluate")
FOR_MADE_MODELS = "tiny"
FOR_GIVEN_MODELS = "own"
"""Names of the default presets. If a recipe does not have one, the defaults of its settings are used."""
Presets = Mapping[str, Path | Mapping[str, Any]]
"""YAML files or values by name."""
AnyConfig = TypeVar("AnyConfig", bound=RecipeConfig)


@dataclass(frozen=True, slots=True)
class Recipe:
    """A recipe. `midthought train podcast` uses the object `recipe` of `midthought.recipes.podcast`."""

    module: str
    """`__name__` of the module of the recipe. Its last part is the recipe's name; `MODULE.verl` is its support of verl."""
    config: str | type[RecipeConfig]
    """Class of the settings. A string `module:name` is imported when it is used."""
    run_class: str | Callable[..., Any]
    """Subclass of `RecipeRun`, or `module:name` of one, which is imported after the settings are validated."""
    presets: Presets = field(default_factory=dict)
    """Values of the settings, or a YAML file of them, by name. `own` is the default for a given model, `tiny` without one."""
    tools: str = ""
    """`module:name` of a function of the settings and the run folder that returns the tools (`ToolRegistry`) of a finished run,
    for `midthought chat` and `serve`."""

    @property
    def name(self) -> str:
        return self.module.rpartition(".")[2]

    def config_class(self) -> type[RecipeConfig]:
        """Returns the class of the settings."""
        found: type[RecipeConfig] = load_object(self.config) if isinstance(self.config, str) else self.config
        return found

    def begin(
        self,
        path: Path,
        *,
        words: Sequence[str],
        config: Path | None = None,
        stage: str = "all",
        from_path: Path | None = None,
        resume: bool = False,
    ) -> tuple[RecipeConfig, Path | None]:
        """Returns the settings of a run in `path`, and the initial policy.

        `config` is a YAML file, or the name of a preset. Default: the run's own settings if it is resumed or one of its policies
        is evaluated; `own` if a model is given (`model.local_path`, `from_path`); else `tiny`. If a model is given, a user's file
        replaces values of `own`. Without a model, it replaces values of the library's `tiny`, and so does the recipe's own
        `tiny`. In a resumed run, `auto` is the value that the run chose at its start. A model to evaluate that does not belong
        to a run becomes `model.local_path`. A `training.algorithm` in `words` replaces values of presets, of a recorded run, and
        of a file that has this key, too; other values of the user's file win over it.
        Raises `SettingsError`, `CheckpointError`.
        """
        require_true_or_false(resume)
        settings = self.config_class()
        if stage not in STAGES:
            raise SettingsError(f"unknown stage {stage!r}. {near_names(stage, STAGES)}")
        if resume and not (path / "config.yaml").is_file():
            raise CheckpointError(f"{path} holds no run to go on with; give its folder with --run")
        if resume:
            require_intact_run(path)
        assigned = parse_assignments(words)
        recorded = path if resume else run_of(from_path) if stage == "evaluate" and from_path else None
        if stage == "evaluate" and from_path and recorded is None:
            assigned = {"model": {"local_path": str(from_path)}, **assigned}
            from_path = None
        is_recorded = config is None and recorded is not None
        config = config or (recorded / "config.yaml" if recorded else None)
        is_shipped = config is not None and str(config) in self.presets and not config.exists()
        values: dict[str, Any] = {}
        if config is not None:
            values = _values_of(self.presets, str(config)) if is_shipped else read_yaml(config)
        has_algorithms = all("training.algorithm" in flat_keys(each) for each in (values, assigned))
        if is_shipped or is_recorded or has_algorithms:
            base, given = values, assigned
        else:
            base, given = {}, merge_configs(values, assigned, known=settings)
        has_model = _names_a_model(merge_configs(base, given)) or _is_given(from_path)
        if is_shipped and str(config) == FOR_MADE_MODELS and has_model:
            raise SettingsError(
                f"--config {FOR_MADE_MODELS} is for the small model that a run makes: its learning rates undo what a given model "
                f"knows. Leave --config out or write --config {FOR_GIVEN_MODELS}"
            )
        layers: list[Mapping[str, Any]] = [] if has_model else [TINY]
        if not is_shipped and (has_model or config is None):
            layers.append(_values_of(self.presets, FOR_GIVEN_MODELS if has_model else FOR_MADE_MODELS))
        try:
            chosen = load(settings, *layers, base, given)
        except SettingsError as error:
            if not is_recorded:
                raise
            raise SettingsError(f"{config}, with the command's settings: {error}") from None
        return (as_recorded(chosen, path / "config.yaml") if resume else chosen), from_path

    def make_run(self, path: Path, console: Console, *, allow_changes: bool = False, **given: Any) -> Any:
        """Returns an object of `run_class`: a run in the folder `path` that has not started. Arguments as of `begin`; `evaluate`
        needs a policy in `from_path`. `allow_changes` permits resuming with settings that change what is learned."""
        config, begin_with = self.begin(path, **given)
        stage, policy = given.get("stage", "all"), given.get("from_path")
        if stage == "evaluate" and not given.get("config") and policy and (recorded := run_of(policy)):
            require_no_programs(recorded, given["words"])
        run_class = load_object(self.run_class) if isinstance(self.run_class, str) else self.run_class
        run = run_class(config, path, console, stage, begin_with, given.get("resume", False), allow_changes)
        run.recipe = self.name if self.module.startswith(f"{__package__}.") else f"{self.module}:recipe"
        return run

    def run(self, path: Path, console: Console, **given: Any) -> dict[str, Any]:
        """Runs the recipe in the folder `path` and returns the summary. Arguments as of `make_run`."""
        summary: dict[str, Any] = self.make_run(path, console, **given).train()
        return summary

    def for_verl(self) -> Any:
        """Returns the module with `settings`, `job` and perhaps `sft_job`. Raises `SettingsError` if there is none."""
        is_package = hasattr(import_module(self.module), "__path__")
        if not is_package or find_spec(f"{self.module}.verl") is None:
            raise SettingsError(
                f"--engine verl: the recipe {self.name!r} does not support verl yet; leave --engine out"
            )
        return import_module(f"{self.module}.verl")


class RecipeEvaluation(Section):
    """Base of a recipe's section `evaluation`."""

    control_arms: Harmless[list[str]] = Field(default_factory=list)
    """Also train and evaluate these variants of the run (`--arms`, docs/commands.md): `rft` and `rft_seconds` (rejection-sampling
    fine-tuning from the same warm-up, for as many episodes or seconds), `clean` (clean demonstrations, no RL), and in `feedback`
    `retry_only` (RL with feedback that only says whether an answer is right)."""


def yaml_presets(file: str) -> Mapping[str, Path]:
    """Returns the YAML files beside a module's `__file__`, by their names, without those for verl (`NAME.verl.yaml`)."""
    return {path.stem: path for path in Path(file).parent.glob("*.yaml") if not path.stem.endswith(".verl")}


def _values_of(presets: Presets, name: str) -> dict[str, Any]:
    preset = presets.get(name, {})
    return read_yaml(preset) if isinstance(preset, Path) else dict(preset)


def is_given(config: RecipeConfig, from_path: Path | None) -> bool:
    """Whether a run starts from a user's model, not from a small one that this run or an earlier one created."""
    return bool(config.model.local_path) or _is_given(from_path)


def _is_given(from_path: Path | None) -> bool:
    if from_path is None:
        return False
    run = run_of(from_path)
    if run is None or _names_a_model(read_yaml(run / "config.yaml")):
        return True
    return bool(_progress(run)["is_given"])


def _names_a_model(values: Mapping[str, Any]) -> bool:
    return bool(flat_keys(values).get("model.local_path"))


def run_of(policy: Path) -> Path | None:
    """Returns the folder of a recipe's run to which a policy, a checkpoint or the folder itself belongs; of a control arm that of
    its run.

    The policy that lies deepest is `RUN/arms/NAME/checkpoints/STAGE/checkpoints/NAME/policy`. Raises `CheckpointError` as
    `require_intact_run`, and if the record of a run cannot be read.
    """
    for folder in (policy.resolve(), *policy.resolve().parents[:7]):
        require_intact_run(folder)
        if (folder / FILE_NAME).is_file() and _progress(folder).get("stage", "all"):
            return folder
    return None


def _progress(run: Path) -> dict[str, Any]:
    file = run / FILE_NAME
    try:
        found = read_json_object(file)
        if "is_given" not in found:
            raise ValueError("is_given is missing")
        return found
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{file} cannot be read ({error}); give one of the run's policies, copied to another folder"
        ) from None


def require_no_programs(run: Path, words: Sequence[str] = (), *, remedy: str = "") -> None:
    """Raises `SettingsError` if the settings of `run` name a program, code of its own or a key that `words` do not repeat: the
    folder may be from someone else. `remedy`: what permits them; by default, to repeat them."""
    file = run / "config.yaml"
    if not file.is_file():
        return
    given = flat_keys(parse_assignments(words))
    found = {key: value for key, value in _named(read_yaml(file)) if key not in given}
    if found:
        repeated = " ".join(f"{key}={value}" for key, value in found.items())
        raise SettingsError(
            f"{file} names programs, code or keys: {repeated}. A run folder starts no code and sends no key by itself; if you "
            f"trust it, {remedy or f'add {repeated}'}"
        )


def _named(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in flat_keys(values).items():
        name = key.rpartition(".")[2]
        is_code = name == "trackers" and any(
            ":" in str(each) for each in (value if isinstance(value, list) else [value])
        )
        is_key = (name == "api_key_env" and value) or "api_key_env=" in str(value)
        if is_code or is_key or (name == "server_python" and value):
            yield key, value


def begin_with_verl(
    settings: type[AnyConfig], folder: Path, words: Sequence[str], config: Path | None, from_path: Path | None = None
) -> AnyConfig:
    """Returns the settings of a run with verl, which have a section `verl`. `from_path` is the initial model.

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
    with_verl = create_model(settings.__name__, __base__=settings, verl=(VerlConfig, Field(default_factory=VerlConfig)))
    chosen = load(with_verl, *layers, parse_assignments(words))
    if chosen.model.local_path:
        chosen.model.local_path = str(model_folder(chosen.model.local_path))
        require_intact_model(Path(chosen.model.local_path).expanduser())
    return choose(chosen, on_gpu=True, by_verl=True)
