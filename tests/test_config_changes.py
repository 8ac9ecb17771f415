"""Which settings differ when a run is resumed, and which of them may."""

import pytest
import yaml

from midthought.config import ConfigStore, changes_between, require_allowed
from midthought.errors import SettingsError
from midthought.recipes.podcast.settings import PodcastConfig

HARMLESS = {
    "training": {"num_train_iters": 50, "num_epochs": 9, "validate_every": 5, "micro_batch_tokens": 128},
    "checkpoint": {"save_interval": 3, "keep_last_n": 9, "tracker_project": "mine"},
    "ray": {"use_ray": True, "num_actors": 2, "address": "auto"},
    "inference": {"base_url": ["http://elsewhere:8000"], "max_num_seqs": 8},
    "model": {"device": "cpu"},
}


def changed(**sections):
    return changes_between(ConfigStore().to_dict(), ConfigStore().merged(sections))


def test_neither_equal_settings_differ_nor_those_that_were_not_recorded():
    config = ConfigStore().merged({"training": {"max_grad_norm": float("inf"), "learning_rate": 1e-7}})
    assert changes_between(config.to_dict(), config) == changes_between(yaml.safe_load(config.to_yaml()), config) == []
    recorded = ConfigStore().to_dict()
    del recorded["training"]["seed"], recorded["ray"]
    assert changes_between(recorded, ConfigStore().merged({"training": {"seed": 7}, "ray": {"num_actors": 3}})) == []


def test_what_does_not_alter_what_is_learned_is_harmless():
    changes = changed(**HARMLESS)
    assert len(changes) == sum(map(len, HARMLESS.values())) and all(change.is_harmless for change in changes)
    require_allowed(changes, allow=False)


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("training", "seed", 1),
        ("inference", "temperature", 0.7),
        ("model", "lora_rank", 8),
        ("reward", "correct", 2.0),
        ("environment", "max_steps", 3),
    ],
)
def test_any_other_change_needs_permission_and_is_told_with_both_values(section, key, value):
    changes = changed(**{section: {key: value}}, checkpoint={"save_interval": 3})
    before = getattr(getattr(ConfigStore(), section), key)
    told = rf"change what it learns:\n  {section}\.{key}: {before!r} before, {value} now\n.*--allow-changes"
    with pytest.raises(SettingsError, match=told) as error:
        require_allowed(changes, allow=False)
    assert "save_interval" not in str(error.value)
    require_allowed(changes, allow=True)


def test_a_setting_is_harmful_unless_its_field_says_otherwise():
    fields = {
        f"{name}.{key}": field for name, part in PodcastConfig() for key, field in type(part).model_fields.items()
    }
    harmless = {name for name, field in fields.items() if "resumed run" in str(field.metadata)}
    assert "memory.path" in harmless and "evaluation.control_arms" in harmless
    assert harmless.isdisjoint({"memory.k", "questions.num_train", "warmup.learning_rate", "training.batch_size"})
    assert len(harmless) < len(fields) / 2


def test_a_recorded_setting_that_does_not_exist_any_more_needs_permission():
    recorded = {"training": {"loss_norm_tokens": 7}}
    with pytest.raises(SettingsError, match=r"training\.loss_norm_tokens: 7 before, 'no such setting any more' now"):
        require_allowed(changes_between(recorded, ConfigStore()), allow=False)
