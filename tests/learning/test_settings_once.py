"""Each setting has one default: the one in its section of the configuration."""

import ast
from pathlib import Path

import pytest
from source_trees import tree_of

import midthought
from midthought.config import InferenceConfig, TrainingConfig, create_default_config
from midthought.errors import SettingsError

PACKAGE = Path(midthought.__file__).parent


def fields_with_defaults(path: Path) -> set[str]:
    """`Class.field` of every dataclass field with a default value in a module."""
    found = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ClassDef) and any("dataclass" in ast.unparse(each) for each in node.decorator_list):
            lines = (line for line in node.body if isinstance(line, ast.AnnAssign) and line.value is not None)
            found |= {f"{node.name}.{ast.unparse(line.target)}" for line in lines}
    return found


def test_no_dataclass_outside_the_configuration_has_a_default_for_a_training_setting():
    """Exceptions: seeds of single draws, and `algo`, whose functions and inputs are also used without any settings."""
    modules = [path for path in PACKAGE.rglob("*.py") if not {PACKAGE / "config", PACKAGE / "algo"} & {*path.parents}]
    fields = set().union(*(fields_with_defaults(path) for path in modules))
    assert fields, "the search finds dataclass fields"
    settings = TrainingConfig.model_fields.keys() - {"seed"}
    assert {name for name in fields if name.partition(".")[2] in settings} == set()


def test_a_frozen_copy_refuses_assignments_and_leaves_the_original_assignable():
    config = create_default_config(training={"gamma": 0.5})
    frozen = config.frozen()
    with pytest.raises(SettingsError, match=r"gamma=0\.9: this copy of the settings is frozen"):
        frozen.training.gamma = 0.9
    with pytest.raises(SettingsError, match="frozen"):
        frozen.training = config.training
    config.training.gamma = 0.9
    assert frozen.training.gamma == 0.5


def test_a_frozen_copy_has_the_values_that_follow_from_another_section():
    assert create_default_config().frozen().training.loss_norm_tokens == InferenceConfig().max_tokens
    assert create_default_config(training={"loss_norm_tokens": 7}).frozen().training.loss_norm_tokens == 7
