"""Settings of a recipe and of `RayPPOTrainer` as stores of sections: merging them, and their differences in a resumed run."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeVar, overload

import yaml
from pydantic import Field, model_validator

from midthought.config.algorithms import algorithm_values
from midthought.config.section import HARMLESS, Section, in_present_names, section_of, settled
from midthought.config.sections import (
    CheckpointConfig,
    ChecksConfig,
    EnvironmentConfig,
    InferenceConfig,
    ModelConfig,
    RayConfig,
    RewardConfig,
)
from midthought.config.training import TrainingConfig
from midthought.config.yaml_files import SAFE_DUMPER
from midthought.errors import SettingsError

Store = TypeVar("Store", bound="RecipeConfig")


class RecipeConfig(Section):
    """The sections that every run has. Recipes subclass it and add their own."""

    model: ModelConfig = Field(default_factory=ModelConfig)
    inference: InferenceConfig = Field(default_factory=InferenceConfig)
    reward: RewardConfig = Field(default_factory=RewardConfig)
    training: TrainingConfig = Field(default_factory=TrainingConfig)
    checks: ChecksConfig = Field(default_factory=ChecksConfig)
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)
    ray: RayConfig = Field(default_factory=RayConfig)

    @model_validator(mode="after")
    def _agree(self) -> Self:
        self._check_sections()
        return self

    def _check_sections(self) -> None:
        """Raises ValueError for values of two sections, or of sampling in training, that contradict each other."""
        if self.num_overlong_tokens > self.inference.max_tokens:
            raise ValueError(
                f"training.overlong_buffer_tokens={self.training.overlong_buffer_tokens} is above "
                f"inference.max_tokens={self.inference.max_tokens}; set at most that, or a share of it below 1"
            )
        if self.inference.top_p < 1.0:
            raise ValueError(
                f"inference.top_p={self.inference.top_p} in training: tokens outside the nucleus have probability 0 "
                "in the sampled distribution, so importance ratios are wrong; set inference.top_p to 1.0"
            )
        if self.num_in_flight > self.training.max_staleness + 1:
            raise ValueError(
                f"inference.in_flight={self.inference.in_flight} with training.max_staleness={self.training.max_staleness}: at "
                f"most {self.training.max_staleness + 1} batches are trained on in time; set inference.in_flight to at most "
                f"that, or training.max_staleness to {math.ceil(self.num_in_flight) - 1}"
            )
        if self.inference.temperature == 0:
            raise ValueError(
                "inference.temperature=0 in training means no exploration; set inference.temperature above 0 (usually 1.0)"
            )

    @property
    def num_overlong_tokens(self) -> int:
        """`training.overlong_buffer_tokens` in tokens."""
        buffer = self.training.overlong_buffer_tokens
        return round(buffer * self.inference.max_tokens if buffer < 1 else buffer)

    @property
    def num_in_flight(self) -> float:
        """`inference.in_flight`; if it is `auto`, what fits `training.max_staleness`."""
        staleness = self.training.max_staleness
        return settled(self.inference.in_flight, staleness + 1 if staleness <= 2 else 1 + staleness / 2)

    def frozen(self) -> Self:
        """Returns a frozen copy, with the values that follow from another section filled in.

        With `inference.deterministic`, `training.packing` is true instead of `shared`. With `training.max_staleness`,
        `training.rollout_correction=auto` is `truncated`, because older policies sampled some tokens, unless the policy loss
        uses the sampled log-probabilities itself; otherwise it is `none`. `model.tensor_parallel_size` becomes a flag of the
        server that the run starts. Raises `SettingsError` for values that were assigned and contradict each other.
        """
        try:
            self._check_sections()
        except ValueError as error:
            raise SettingsError(str(error)) from None
        training, inference = self.training, self.inference
        corrects_itself = training.policy_loss in training.sampling_corrected
        is_older = training.max_staleness and training.rollout_correction == "auto" and not corrects_itself
        num_gpus, flags = self.model.tensor_parallel_size, inference.server_flags
        if num_gpus > 1 and not inference.base_url and "--tensor-parallel-size" not in flags:
            flags = [*flags, "--tensor-parallel-size", str(num_gpus)]
        derived: dict[str, dict[str, Any]] = {
            "training": {
                "rollout_correction": "truncated" if is_older else training.correction,
                "packing": training.packing if not inference.deterministic else training.packing is not False,
            },
            "inference": {"server_flags": flags},
        }
        return self.copied(derived).freeze()

    def to_dict(self) -> dict[str, Any]:
        """The settings as nested plain values."""
        sections = {name: value.model_dump(mode="json") for name, value in self if isinstance(value, Section)}
        return {**self.model_dump(mode="json"), **sections}  # a section may be of a subclass, with further settings

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Returns the settings of nested plain values, as `to_dict` gives them. Raises `SettingsError`."""
        return cls(**values)

    def to_yaml(self) -> str:
        """The settings as YAML that `merged` reads back to equal settings."""
        return yaml.dump(self.to_dict(), Dumper=SAFE_DUMPER, sort_keys=False, allow_unicode=True)

    def merged(self, changes: Mapping[str, Any]) -> Self:
        """Returns a copy with the values of `changes`, as a further layer of `load`. Raises `SettingsError`."""
        return load(type(self), dict(self), changes)


class ConfigStore(RecipeConfig):
    """All settings of `RayPPOTrainer`.

    Examples:
        >>> config = ConfigStore()
        >>> config.training.group_size = 8
        >>> config.training.adv_estimator = "grpo"
    """

    environment: EnvironmentConfig = Field(default_factory=EnvironmentConfig)


TINY: Mapping[str, Mapping[str, Any]] = {
    "inference": {"max_tokens": 256, "max_segment_length": 256, "max_result_tokens": 192},
    "training": {
        "batch_size": 32,
        "mini_batch_size": 32,
        "learning_rate": 2e-4,
        "critic_learning_rate": 1e-3,
        "adam_beta2": 0.95,
        "weight_decay": 0.0,
    },
}
"""The preset `tiny`: short episodes and large steps, for the small model that a run creates. The defaults suit a given model."""


def load(kind: type[Store], *layers: Mapping[str, Any]) -> Store:
    """Builds settings from layers of nested values, and validates them once. Later layers win, key by key; the preset of a
    layer's `training.algorithm` replaces values of earlier layers only.

    A layer may have sections as objects, whose settings that were set count; a section of a subclass keeps its class.
    Raises `SettingsError`, with similar names, for an unknown key or a wrong value.
    """
    kinds: dict[str, Any] = {name: field.annotation for name, field in kind.model_fields.items()}
    values: dict[str, Any] = {}
    for name, field in kind.model_fields.items():  # a recipe may create a section with other values than its defaults
        is_plain = field.default_factory is field.annotation
        values[name] = {} if is_plain else field.get_default(call_default_factory=True).given()
    for layer in layers:
        _require_mapping("changes", layer)
        plain = {str(name): value.given() if isinstance(value, Section) else value for name, value in layer.items()}
        kinds |= {name: type(value) for name, value in layer.items() if isinstance(value, Section) and name in kinds}
        for name, given in plain.items():
            if isinstance(given, Mapping) and (section := section_of(kinds.get(name))):
                plain[name] = in_present_names(section.former_names, given, values.get(name, {}))
        if isinstance(training := plain.get("training"), Mapping):
            values = _merged(values, {"training": algorithm_values(kinds["training"], training.get("algorithm"))})
        values = _merged(values, copy.deepcopy(plain))
    changed = {name for name, field in kind.model_fields.items() if kinds[name] is not field.annotation}
    return kind(**values | {name: kinds[name](**values.get(name, {})) for name in changed})


def create_default_config(preset: str | None = None, **sections: Mapping[str, Any] | Section) -> ConfigStore:
    """Returns the default settings with changes: `create_default_config(training={"batch_size": 64})`, or sections as objects.

    `preset="tiny"`: the values for a small model with random weights instead (docs/algorithms.md). Raises `SettingsError`.
    """
    if preset not in (None, "tiny"):
        raise SettingsError(
            f"preset={preset!r}: the only one is 'tiny'; a published algorithm is set by training={{'algorithm': …}}"
        )
    return load(ConfigStore, {} if preset is None else TINY, sections)


@overload
def merge_configs(base: Store, changes: Mapping[str, Any] | RecipeConfig) -> Store: ...


@overload
def merge_configs(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]: ...


def merge_configs(base: Any, changes: Any) -> Any:
    """Deep merge: values of `changes` (nested mappings) replace values of `base`, key by key. Returns an independent copy.

    Settings give validated settings of the same class (`base.merged(changes)`); mappings give a mapping. `changes` may be
    settings, too, of which those that were set count. Raises `SettingsError` for an unknown key of settings and for arguments of
    another type.

    Examples:
        >>> merge_configs(ConfigStore(), {"training": {"seed": 1}}).training.seed
        1
    """
    _require_mapping("base", base)
    _require_mapping("changes", changes)
    if isinstance(base, RecipeConfig):
        return base.merged(dict(changes))
    changes = changes.given() if isinstance(changes, RecipeConfig) else changes
    return _merged(copy.deepcopy(dict(base)), copy.deepcopy(dict(changes)))


def _require_mapping(name: str, value: Any) -> None:
    if not isinstance(value, Mapping | RecipeConfig):
        raise SettingsError(f"{name}={value!r:.80}: give nested mappings, for example {{'training': {{'seed': 1}}}}")


def _merged(base: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `base` with the values of `changes`, key by key."""
    for key, value in changes.items():
        is_deep = isinstance(value, Mapping) and isinstance(base.get(key), Mapping)
        base[key] = _merged(dict(base[key]), value) if is_deep else value
    return base


# -- a resumed run ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Change:
    """One setting that differs."""

    name: str
    """`section.key`."""
    before: Any
    now: Any
    is_harmless: bool
    """Whether the field is declared as `Harmless`."""

    def __str__(self) -> str:
        return f"{self.name}: {self.before!r} before, {self.now!r} now"


def changes_between(recorded: Mapping[str, Any], settings: Section) -> list[Change]:
    """Returns the recorded settings that are others now, in order, or that do not exist any more. Newer ones are ignored."""
    found = []
    for name, section in settings:
        before = recorded.get(name)
        if isinstance(section, Section) and isinstance(before, Mapping):
            now, fields = section.model_dump(mode="json"), type(section).model_fields
            for key, value in before.items():
                if value != (present := now.get(key, "no such setting any more")):
                    is_harmless = key in fields and HARMLESS in fields[key].metadata
                    found.append(Change(f"{name}.{key}", value, present, is_harmless))
    return found


def unset_values(settings: Section, recorded: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the recorded values, by section, of the settings that were not set and are not harmless. A value of the preset of
    `training.algorithm` counts as not set if the record has the same algorithm."""
    found = {}
    for name, section in settings:
        before = recorded.get(name)
        if isinstance(section, Section) and isinstance(before, Mapping):
            preset = algorithm_values(type(section), before.get("algorithm"))  # none in other sections than training
            is_same = bool(preset) and getattr(section, "algorithm", None) == before["algorithm"]
            found[name] = {
                key: before[key]
                for key, field in type(section).model_fields.items()
                if key in before
                and HARMLESS not in field.metadata
                and (key not in section.model_fields_set or (is_same and preset.get(key) == getattr(section, key)))
            }
    return found


def require_true_or_false(resume: object) -> None:
    """Raises `SettingsError` for any other value of `resume`."""
    if not isinstance(resume, bool):
        remedy = "give True or False; run_path=FOLDER with resume=True continues the run in that folder"
        raise SettingsError(f"resume={resume!r:.80}: {remedy}")


def require_allowed(changes: Iterable[Change], *, allow: bool) -> None:
    """Raises `SettingsError` with every change that alters what a run learns, unless changes are allowed."""
    harmful = [change for change in changes if not change.is_harmless]
    if harmful and not allow:
        lines = "".join(f"\n  {change}" for change in harmful)
        raise SettingsError(
            f"the run started with other settings, and these change what it learns:{lines}\nResume with the settings it "
            "started with, or allow the changes: --allow-changes (allow_changes=True); they are then recorded with the step"
        )
