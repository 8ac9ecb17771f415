"""Settings: a store of named sections, validated on every assignment, read from YAML and `section.key=value` arguments.

A section is a pydantic model; the docstring under a field is its documentation. Recipes subclass `RecipeConfig` to add
sections.
"""

from midthought.config.changes import Change, changes_between, require_allowed
from midthought.config.section import Auto, Harmless, Section, settled
from midthought.config.sections import (
    CheckpointConfig,
    EnvironmentConfig,
    InferenceConfig,
    ModelConfig,
    RayConfig,
    RewardConfig,
    SupervisedSection,
)
from midthought.config.store import ConfigStore, RecipeConfig, create_default_config, load, merge_configs, with_tiny
from midthought.config.training import TrainingConfig
from midthought.config.yaml_files import parse_assignments, read_yaml

__all__ = [
    "Auto",
    "Change",
    "CheckpointConfig",
    "ConfigStore",
    "EnvironmentConfig",
    "Harmless",
    "InferenceConfig",
    "ModelConfig",
    "RayConfig",
    "RecipeConfig",
    "RewardConfig",
    "Section",
    "SupervisedSection",
    "TrainingConfig",
    "changes_between",
    "create_default_config",
    "load",
    "merge_configs",
    "parse_assignments",
    "read_yaml",
    "require_allowed",
    "settled",
    "with_tiny",
]
