"""Settings: a store of named sections, validated on every assignment, read from YAML and `section.key=value` arguments.

A section is a pydantic model; the docstring under a field is its documentation. Recipes subclass `RecipeConfig` to add
sections.
"""

from midthought.config.section import Auto as Auto
from midthought.config.section import Harmless as Harmless
from midthought.config.section import Section as Section
from midthought.config.section import settled as settled
from midthought.config.sections import CheckpointConfig as CheckpointConfig
from midthought.config.sections import EnvironmentConfig as EnvironmentConfig
from midthought.config.sections import InferenceConfig as InferenceConfig
from midthought.config.sections import ModelConfig as ModelConfig
from midthought.config.sections import RayConfig as RayConfig
from midthought.config.sections import RewardConfig as RewardConfig
from midthought.config.sections import SupervisedSection as SupervisedSection
from midthought.config.store import Change as Change
from midthought.config.store import ConfigStore as ConfigStore
from midthought.config.store import RecipeConfig as RecipeConfig
from midthought.config.store import changes_between as changes_between
from midthought.config.store import create_default_config as create_default_config
from midthought.config.store import load as load
from midthought.config.store import merge_configs as merge_configs
from midthought.config.store import require_allowed as require_allowed
from midthought.config.training import TrainingConfig as TrainingConfig
from midthought.config.yaml_files import parse_assignments as parse_assignments
from midthought.config.yaml_files import read_yaml as read_yaml
