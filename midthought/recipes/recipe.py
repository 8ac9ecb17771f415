"""A recipe as an object: its settings, its presets and its run; which run a policy belongs to. Only what is used is imported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, create_model

from midthought.cluster.verl.settings import VerlConfig
from midthought.config import Harmless, RecipeConfig, Section, load, merge_configs, parse_assignments, read_yaml
from midthought.config.references import load as load_object
from midthought.config.store import TINY, require_true_or_false
from midthought.errors import CheckpointError, SettingsError, near_names
from midthought.files.output_folder import kind_of
from midthought.files.regular import read_json_object
from midthought.models.gguf import model_folder
from midthought.plan.choices import as_recorded, choose
from midthought.report.console import Console
from midthought.report.run_folder import PROGRESS, flat_keys, require_intact_run

STAGES = ("sft", "rl", "all", "evaluate")
FOR_MADE_MODELS = "tiny"
FOR_GIVEN_MODELS = "own"
"""Names of the default presets."""
OF_VERL = ".verl"
"""Ends the names of YAML files with the section `verl`."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """A recipe: the object `recipe` of the package `midthought.recipes.NAME`, whose modules are imported when they are used.

    `tasks.tools_of_run` returns the tools of a finished run, for `midthought chat` and `serve`; `verl` has `job`, for
    `--engine verl`.
    """

    module: str
    """`__name__` of the package."""
    config: str
    """Name of the class of the settings, in `settings`."""
    run_class: str
    """Name of the subclass of `RecipeRun`, in `train`."""

    @property
    def name(self) -> str:
        return self.module.rpartition(".")[2]

    def load(self, name: str) -> Any:
        """Returns what `module:name` is in the package."""
        return load_object(f"{self.module}.{name}")

    def config_class(self) -> type[RecipeConfig]:
        """Returns the class of the settings."""
        found: type[RecipeConfig] = self.load(f"settings:{self.config}")
        return found

    def yaml_files(self) -> dict[str, Path]:
        """Returns the YAML files of the package by their names: presets (`own` is the default for a given model, `tiny` without
        one), and values for verl (`NAME.verl`)."""
        return {path.stem: path for path in Path(__file__).with_name(self.name).glob("*.yaml")}

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
        `tiny`. In a resumed run, `auto` is the value that the run chose at its start, and its model stays. A model to evaluate
        that does not belong to a run becomes `model.local_path`; with `from_path` it is as in `model_of`. A `training.algorithm`
        in `words` replaces values of presets, of a recorded run, and of a file that has this key, too; other values of the
        user's file win over it.
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
        recorded = path if resume else run_of(from_path) if stage == "evaluate" and from_path else None
        if stage == "evaluate" and from_path and recorded is None:
            assigned, from_path = merge_configs({"model": {"local_path": str(from_path)}}, assigned), None
        is_recorded = config is None and recorded is not None
        config = config or (recorded / "config.yaml" if recorded else None)
        presets = {name: path for name, path in self.yaml_files().items() if not name.endswith(OF_VERL)}
        is_shipped = config is not None and str(config) in presets and not config.exists()
        values = {} if config is None else read_yaml(presets[str(config)] if is_shipped else config)
        has_algorithms = all("training.algorithm" in flat_keys(each) for each in (values, assigned))
        if is_shipped or is_recorded or has_algorithms:
            base, given = values, assigned
        else:
            base, given = {}, merge_configs(values, assigned)
        set_before = merge_configs(read_yaml(path / "config.yaml") if resume else {}, merge_configs(base, given))
        model = model_of(flat_keys(set_before).get("model.local_path"), from_path)
        if is_shipped and str(config) == FOR_MADE_MODELS and model:
            raise SettingsError(
                f"--config {FOR_MADE_MODELS} is for the small model that a run makes: its learning rates undo what a given model "
                f"knows. Leave --config out or write --config {FOR_GIVEN_MODELS}"
            )
        layers: list[Mapping[str, Any]] = [] if model else [TINY]
        if not is_shipped and (model or config is None):
            layers.append(read_yaml(presets[FOR_GIVEN_MODELS if model else FOR_MADE_MODELS]))
        try:
            chosen = load(self.config_class(), *layers, base, given, {"model": {"local_path": model}} if model else {})
        except SettingsError as error:
            if not is_recorded:
                raise
            raise SettingsError(f"{config} with the command's settings, read as a {self.name} run: {error}") from None
        return (as_recorded(chosen, path / "config.yaml") if resume else chosen), from_path

    def make_run(self, path: Path, console: Console, *, allow_changes: bool = False, **given: Any) -> Any:
        """Returns a `RecipeRun` in the folder `path` that has not started. Arguments as of `begin`; `evaluate` needs a policy in
        `from_path`. `allow_changes` permits resuming with settings that change what is learned."""
        stage, policy = given.get("stage", "all"), given.get("from_path")
        recorded = run_of(policy) if stage == "evaluate" and policy else None
        if stage == "evaluate" and policy and recorded is None and kind_of(policy) == "run":
            remedy = f"evaluate it there, or give {policy / 'policy'} to play it in {self.name} as a model"
            raise SettingsError(f"{policy} is a run of a program (Trainer), not of a recipe; {remedy}")
        config, begin_with = self.begin(path, **given)
        if recorded and not given.get("config"):
            require_no_programs(recorded, given["words"])
        run_class = self.load(f"train:{self.run_class}")
        return run_class(self.name, config, path, console, stage, begin_with, given.get("resume", False), allow_changes)

    def run(self, path: Path, console: Console, **given: Any) -> dict[str, Any]:
        """Runs the recipe in the folder `path` and returns the summary. Arguments as of `make_run`."""
        summary: dict[str, Any] = self.make_run(path, console, **given).train()
        return summary

    def begin_with_verl(self, words: Sequence[str], config: Path | None = None, from_path: Path | None = None) -> Any:
        """Returns the settings of a run with verl, which have a section `verl`. `from_path` is the initial model, or its run.

        `config` is a YAML file, or the name of two: `NAME.yaml` and `NAME.verl.yaml`, by default `cluster`. Raises
        `SettingsError`, and `ModelPathError` as `policy_folder` and `require_intact_model`.
        """
        from midthought.models.pretrained import policy_folder, require_intact_model

        profile, files = str(config or "cluster"), self.yaml_files()
        if config is not None and config.exists():
            layers: list[Mapping[str, Any]] = [read_yaml(config)]
        elif profile + OF_VERL in files:
            layers = [read_yaml(files[name]) for name in (profile, profile + OF_VERL)]
        else:
            known = [name.removesuffix(OF_VERL) for name in files if name.endswith(OF_VERL)]
            raise SettingsError(f"--config {profile} is no file and no profile. {near_names(profile, known)}")
        if from_path is not None:
            layers.append({"model": {"local_path": str(policy_folder(from_path))}})
        own, section = self.config_class(), (VerlConfig, Field(default_factory=VerlConfig))
        chosen = load(create_model(own.__name__, __base__=own, verl=section), *layers, parse_assignments(words))
        if chosen.model.local_path:
            chosen.model.local_path = str(model_folder(chosen.model.local_path))
            require_intact_model(Path(chosen.model.local_path).expanduser())
        return choose(chosen, on_gpu=True, by_verl=True)


class RecipeEvaluation(Section):
    """Base of a recipe's section `evaluation`."""

    control_arms: Harmless[list[str]] = Field(default_factory=list)
    """Also train and evaluate these variants of the run (`--arms`, docs/commands.md): `rft` and `rft_seconds` (rejection-sampling
    fine-tuning from the same warm-up, for as many episodes or seconds), `clean` (clean demonstrations, no RL), and in `feedback`
    `retry_only` (RL with feedback that only says whether an answer is right)."""


def model_of(local_path: Any, from_path: Path | None) -> Any:
    """Returns what `model.local_path` is for a run that starts from the policy in `from_path`: the value that is set, else the
    model that the policy's run was given, else the policy itself. Empty: the model is a small one that this or the policy's run
    creates. Does not validate the value."""
    if local_path or from_path is None:
        return local_path or ""
    run = run_of(from_path)
    if run is None:
        return str(from_path)
    if not _progress(run)["is_given"]:
        return ""
    return str(flat_keys(read_yaml(run / "config.yaml")).get("model.local_path") or from_path)


def run_of(policy: Path) -> Path | None:
    """Returns the folder of a recipe's run to which a policy, a checkpoint or the folder itself belongs; of a control arm that of
    its run.

    The policy that lies deepest is `RUN/arms/NAME/checkpoints/STAGE/checkpoints/NAME/policy`. Raises `CheckpointError` as
    `require_intact_run`, and if the record of a run cannot be read.
    """
    for folder in (policy.resolve(), *policy.resolve().parents[:7]):
        require_intact_run(folder)
        if (folder / PROGRESS).is_file() and _progress(folder).get("stage", "all"):
            return folder
    return None


def _progress(run: Path) -> dict[str, Any]:
    file = run / PROGRESS
    try:
        found = read_json_object(file)
        if "is_given" not in found:
            raise ValueError("is_given is missing")
        return found
    except (OSError, ValueError) as error:
        remedy = "give one of the run's policies, copied to another folder"
        raise CheckpointError(f"{file} cannot be read ({error}); {remedy}") from None


def require_no_programs(run: Path, words: Sequence[str] = (), *, remedy: str = "") -> None:
    """Raises `SettingsError` if the settings of `run` name a program or a key that `words` do not repeat: the
    folder may be from someone else. `remedy`: what permits them; by default, to repeat them."""
    file = run / "config.yaml"
    if not file.is_file():
        return
    given = flat_keys(parse_assignments(words))
    found = {key: value for key, value in _named(read_yaml(file)) if key not in given}
    if found:
        repeated = " ".join(f"{key}={value}" for key, value in found.items())
        raise SettingsError(
            f"{file} names programs or keys: {repeated}. A run folder starts no program and sends no key by itself; if you "
            f"trust it, {remedy or f'add {repeated}'}"
        )


def _named(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in flat_keys(values).items():
        name = key.rpartition(".")[2]
        is_key = (name == "api_key_env" and value) or "api_key_env=" in str(value)
        if is_key or (name == "server_python" and value):
            yield key, value
