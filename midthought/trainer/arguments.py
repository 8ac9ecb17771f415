"""Checks and completes a trainer's arguments: its settings, its tools, its numbers. Loads no weights."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from midthought.config import ConfigStore, RecipeConfig
from midthought.config.section import Section
from midthought.config.store import require_true_or_false
from midthought.errors import SettingsError, near_names
from midthought.plan.choices import as_recorded
from midthought.report.run_folder import require_intact_run
from midthought.tools.call_formats import ActionParser
from midthought.tools.definition import Tool
from midthought.tools.registry import ToolRegistry
from midthought.trainer.initial_policy import choose_preset
from midthought.trainer.run import Run
from midthought.trainer.sources import AUTO_CALL_FORMAT, PromptBuilder, as_call_format, check_source
from midthought.trainer.tasks import TrainingTasks


def settle(
    config: RecipeConfig | None,
    settings: Mapping[str, Any],
    *,
    model: Any,
    algorithm: str | None,
    dataset: Any,
    run_path: str | Path | Run | None,
    resume: bool,
    names: Iterable[str],
) -> tuple[RecipeConfig, str, Any, str | Path | Run | None]:
    """Returns the settings, still with `auto`, a line for the user about the preset (empty: none was used), the model that was
    given loaded, and the run folder, if any. `settings`: as in `by_section`. `names`: of the trainer's arguments, to be
    suggested for an unknown name. Raises SettingsError."""
    require_true_or_false(resume)
    if dataset is not None and "max_steps" in settings:
        raise SettingsError(
            f"max_steps={settings['max_steps']!r:.40}: it is the limit of steps in an environment (environment.max_steps), and "
            "there is a data set. The number of iterations is num_train_iters"
        )
    config = ConfigStore() if config is None else config
    if not isinstance(config, RecipeConfig if isinstance(dataset, TrainingTasks) else ConfigStore):
        raise SettingsError(
            f"config must be a ConfigStore (create_default_config(**sections)), got a {type(config).__name__}"
        )
    changes = by_section(config, settings, names)
    if algorithm is not None:
        _set(changes, "training", "algorithm", algorithm)
    if isinstance(model, str | Path):
        changes.setdefault("model", {})["local_path"] = str(model)
        model = None
    config = config.merged(changes) if changes else config
    if not isinstance(run_path, str | Path | Run | None):
        raise SettingsError(f"run_path={run_path!r:.80}: give the path of a folder, or None")
    run_path = run_path or config.checkpoint.output_dir or None
    if resume and run_path is None:
        raise SettingsError("resume=True needs the run folder to go on with: give run_path, too")
    if resume and isinstance(run_path, str | Path):
        require_intact_run(Path(run_path))
        if (recorded := Path(run_path) / "config.yaml").is_file():
            config = as_recorded(config, recorded)
    config, note = choose_preset(config, model)
    check_source(config.inference, config.ray, config.training.max_staleness)
    return config, note, model, run_path


def by_section(config: RecipeConfig, settings: Mapping[str, Any], names: Iterable[str] = ()) -> dict[str, Any]:
    """Returns bare names (`lam=1`) and sections (`model={"dtype": "float32"}`) by section: `{"training": {"lam": 1}, …}`.
    Raises SettingsError for a name that no section has, and for a setting that is given twice. `names`: as in `settle`."""
    sections = {name: set(values) for name, values in config.to_dict().items() if isinstance(values, dict)}
    found: dict[str, dict[str, Any]] = {}
    for name, value in settings.items():
        if name in sections:
            value = value.given() if isinstance(value, Section) else value
            if not isinstance(value, Mapping):
                raise SettingsError(f"{name}={value!r:.80}: it is a section; give a mapping of its settings")
            for key, inner in value.items():
                _set(found, name, key, inner)
            continue
        section = next((section for section, keys in sections.items() if name in keys), None)
        if section is None:
            known = {*sections, *(each for keys in sections.values() for each in keys), *names}
            raise SettingsError(
                f"unknown argument or setting {name!r}. {near_names(name, known - {'settings'})} "
                "For names of TRL and verl see docs/coming_from.md"
            )
        _set(found, section, name, value)
    return found


def _set(found: dict[str, dict[str, Any]], section: str, name: str, value: Any) -> None:
    """Adds a setting. Raises SettingsError if it was given before with another value."""
    values = found.setdefault(section, {})
    if name in values and values[name] != value:
        raise SettingsError(f"{section}.{name} is given as {values[name]!r:.40} and as {value!r:.40}; give it once")
    values[name] = value


def make_prompts(
    tools: ToolRegistry | Iterable[Tool] | None,
    call_format: str | ActionParser,
    *,
    system_prompt: str,
    describe_tools: bool,
) -> PromptBuilder:
    """Returns the builder of the episodes' prompts. Raises SettingsError for a tool outside a list or a wrong call format."""
    if not isinstance(system_prompt, str):
        raise SettingsError(f"system_prompt={system_prompt!r:.80}: give a text")
    if isinstance(tools, Tool):
        raise SettingsError(f"tools={tools!r:.80}: give a list of them: tools=[{tools.definition.name}]")
    if isinstance(tools, str | Mapping) or not isinstance(tools, Iterable | None):
        raise SettingsError(f"tools={tools!r:.80}: give a list of Tool objects; @tool makes one from a function")
    registry = tools if isinstance(tools, ToolRegistry) else ToolRegistry(tools or ())
    is_native = call_format == AUTO_CALL_FORMAT
    return PromptBuilder(system_prompt, registry, as_call_format(call_format), describe_tools, is_native)


def check_length(num_epochs: int | None, num_iters_per_epoch: int | None, max_seconds: float | None) -> None:
    """Raises SettingsError if the arguments of `Trainer.fit` are not possible."""
    for name, value, least in (("num_epochs", num_epochs, 0), ("num_iters_per_epoch", num_iters_per_epoch, 1)):
        if value is not None and not (isinstance(value, int) and value >= least):
            raise SettingsError(
                f"{name}={value!r}: give a whole number of {least} or more, or None for what the settings say"
            )
    if max_seconds is not None and num_epochs is not None:
        raise SettingsError(f"max_seconds={max_seconds!r} and num_epochs={num_epochs}: give one of the two")
    check_seconds(max_seconds)


def check_seconds(max_seconds: float | None) -> None:
    """Raises SettingsError for a limit of time that is none."""
    is_number = isinstance(max_seconds, numbers.Real) and 0 < max_seconds < math.inf
    if max_seconds is not None and not is_number:
        raise SettingsError(f"max_seconds={max_seconds!r}: give a finite number above 0")
