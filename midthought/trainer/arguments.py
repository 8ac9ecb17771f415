"""Checks and completes a trainer's arguments: its settings, its tools, its numbers. Loads no weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from midthought.config import ConfigStore, RecipeConfig
from midthought.config.changes import require_true_or_false
from midthought.errors import SettingsError
from midthought.plan.choices import Choice, as_recorded
from midthought.plan.engine_choice import before_choice
from midthought.report.run_folder import require_intact_run
from midthought.tools.call_formats import ToolCallFormat
from midthought.tools.definition import Tool
from midthought.tools.parsers import ActionParser
from midthought.tools.registry import ToolRegistry
from midthought.trainer.initial_policy import choose_preset, choose_settings
from midthought.trainer.rollouts import PromptBuilder, as_call_format, check_source
from midthought.trainer.run import Run
from midthought.trainer.short_form import merge_settings


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerSettings:
    """The settings of a trainer, with every `auto` replaced, and its run folder."""

    config: RecipeConfig
    choice: Choice
    """What replaced `auto`, with the plan of the run."""
    preset: str
    """A line for the user about the preset; empty: none was used."""
    model: Any
    """The loaded model that was given. None: the trainer loads or creates one."""
    run_path: str | Path | Run | None
    """None: no run folder."""

    @property
    def is_model_created(self) -> bool:
        """Whether the trainer creates a model with random weights."""
        return self.model is None and not self.config.model.local_path


def settle(
    config: RecipeConfig | None,
    settings: Mapping[str, Any],
    *,
    model: Any,
    algorithm: str | None,
    run_path: str | Path | Run | None,
    resume: bool,
    needs_environment: bool,
    arguments: Callable[..., Any],
) -> TrainerSettings:
    """Returns the settings that a trainer runs with. `settings` and `arguments`: as in `merge_settings`. `needs_environment`:
    whether `config` must be a `ConfigStore`, which has the sections of an environment."""
    require_true_or_false(resume)
    config = ConfigStore() if config is None else config
    if not isinstance(config, ConfigStore if needs_environment else RecipeConfig):
        raise SettingsError(
            f"config must be a ConfigStore (create_default_config(**sections)), got a {type(config).__name__}"
        )
    config, model = merge_settings(config, model=model, algorithm=algorithm, settings=settings, arguments=arguments)
    if not isinstance(run_path, str | Path | Run | None):
        raise SettingsError(f"run_path={run_path!r:.80}: give the path of a folder, or None")
    run_path = run_path or config.checkpoint.output_dir or None
    if resume and isinstance(run_path, str | Path):
        require_intact_run(Path(run_path))
    if resume and isinstance(run_path, str | Path) and (Path(run_path) / "config.yaml").is_file():
        config = as_recorded(config, Path(run_path) / "config.yaml")
    config, preset = choose_preset(config, model)
    config = config.merged({})
    check_source(before_choice(config.inference), config.ray, config.training.max_staleness)
    choice = choose_settings(config, model)
    if resume and run_path is None:
        raise SettingsError("resume=True needs the run folder to go on with: give run_path, too")
    return TrainerSettings(config=choice.config, choice=choice, preset=preset, model=model, run_path=run_path)


def make_prompts(
    tools: ToolRegistry | Iterable[Tool] | None,
    call_format: str | ActionParser | ToolCallFormat,
    *,
    system_prompt: str,
    describe_tools: bool,
) -> PromptBuilder:
    """Returns the builder of the episodes' prompts; `tools` None: no tools. Raises SettingsError for a tool outside a list or a
    wrong call format."""
    if not isinstance(system_prompt, str):
        raise SettingsError(f"system_prompt={system_prompt!r:.80}: give a text")
    if isinstance(tools, Tool):
        raise SettingsError(f"tools={tools!r:.80}: give a list of them: tools=[{tools.definition.name}]")
    if isinstance(tools, str | Mapping) or not isinstance(tools, Iterable | None):
        raise SettingsError(f"tools={tools!r:.80}: give a list of Tool objects; @tool makes one from a function")
    registry = tools if isinstance(tools, ToolRegistry) else ToolRegistry(tools or ())
    return PromptBuilder(system_prompt, registry, as_call_format(call_format), describe_tools)


def check_length(num_epochs: int | None, num_iters_per_epoch: int | None, max_seconds: float | None) -> None:
    """Raises SettingsError if the arguments of `Trainer.fit` are not possible."""
    _require_whole(0, num_epochs=num_epochs)
    _require_whole(1, num_iters_per_epoch=num_iters_per_epoch)
    if max_seconds is not None and (num_epochs is not None or not max_seconds > 0):
        raise SettingsError(f"max_seconds={max_seconds}: give a number above 0, and no num_epochs with it")


def _require_whole(least: int, **number: int | None) -> None:
    (name, value), *_ = number.items()
    if value is not None and not (isinstance(value, int) and value >= least):
        raise SettingsError(
            f"{name}={value!r}: give a whole number of {least} or more, or None for what the settings say"
        )
