"""A recipe as an object: its settings, its presets and its run. Only what is used is imported."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from midthought.config import RecipeConfig
from midthought.errors import SettingsError
from midthought.recipes.foreign_settings import require_no_programs
from midthought.recipes.presets import Presets, begin, run_of
from midthought.references import load


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
        found: type[RecipeConfig] = load(self.config) if isinstance(self.config, str) else self.config
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
        """Returns the settings of a run in `path`, and the initial policy (`presets.begin`)."""
        return begin(
            self.config_class(),
            self.presets,
            path,
            words=words,
            config=config,
            stage=stage,
            from_path=from_path,
            resume=resume,
        )

    def run(
        self,
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
        """Runs the recipe in the folder `path` and returns the summary. `config` is a YAML file or the name of a preset.

        Default: `own` if `model.local_path` or `from_path` gives a model; a run's own settings if one of its policies is
        evaluated; else `tiny`. If a model is given, a file replaces values of `own`. The stage `evaluate` needs a policy in
        `from_path`. `allow_changes` permits resuming with settings that change what is learned.
        """
        chosen, begin_with = self.begin(
            path, words=words, config=config, stage=stage, from_path=from_path, resume=resume
        )
        if stage == "evaluate" and config is None and from_path is not None and (recorded := run_of(from_path)):
            require_no_programs(recorded, words)
        run_class = load(self.run_class) if isinstance(self.run_class, str) else self.run_class
        run = run_class(chosen, path, console, stage, begin_with, resume, allow_changes)
        if hasattr(run, "recipe"):
            run.recipe = self.name if self.module.startswith(f"{__package__}.") else f"{self.module}:recipe"
        summary: dict[str, Any] = run.train()
        return summary

    def for_verl(self) -> Any:
        """Returns the module with `settings`, `job` and perhaps `sft_job`. Raises `SettingsError` if there is none."""
        is_package = hasattr(import_module(self.module), "__path__")
        if not is_package or find_spec(f"{self.module}.verl") is None:
            raise SettingsError(
                f"--engine verl: the recipe {self.name!r} does not support verl yet; leave --engine out"
            )
        return import_module(f"{self.module}.verl")


def yaml_presets(file: str) -> Mapping[str, Path]:
    """Returns the YAML files beside a module's `__file__`, by their names."""
    return {path.stem: path for path in Path(file).parent.glob("*.yaml")}
