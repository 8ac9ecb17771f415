"""Which settings differ when a run is resumed, and which of them may."""

import pytest
import yaml

from midthought.config import ConfigStore, changes_between, require_allowed
from midthought.errors import SettingsError
from midthought.recipes.podcast.settings import PodcastConfig


def changed(**sections):
    return changes_between(ConfigStore().to_dict(), ConfigStore().merged(sections))


def test_equal_settings_do_not_differ_also_not_after_yaml():
    config = ConfigStore().merged({"training": {"max_grad_norm": float("inf"), "learning_rate": 1e-7}})
    assert changes_between(config.to_dict(), config) == []
    assert changes_between(yaml.safe_load(config.to_yaml()), config) == []


def test_differences_are_listed_with_both_values():
    (change,) = changed(training={"learning_rate": 3e-5})
    assert str(change) == "training.learning_rate: 'auto' before, 3e-05 now"
    assert not change.is_harmless


@pytest.mark.parametrize(
    "sections",
    [
        {"training": {"num_train_iters": 50, "num_epochs": 9, "validate_every": 5, "micro_batch_tokens": 128}},
        {"checkpoint": {"save_interval": 3, "keep_last_n": 9, "tracker_project": "mine"}},
        {"ray": {"use_ray": True, "num_actors": 2, "address": "auto"}},
        {"inference": {"base_url": ["http://elsewhere:8000"], "max_num_seqs": 8}, "model": {"device": "cpu"}},
    ],
)
def test_what_does_not_alter_what_is_learned_is_harmless(sections):
    changes = changed(**sections)
    assert len(changes) == sum(map(len, sections.values())) and all(change.is_harmless for change in changes)
    require_allowed(changes, allow=False)


@pytest.mark.parametrize(
    "sections",
    [
        {"training": {"seed": 1}},
        {"inference": {"temperature": 0.7}},
        {"model": {"lora_rank": 8}},
        {"reward": {"correct": 2.0}},
        {"environment": {"max_steps": 3}},
    ],
)
def test_any_other_change_needs_permission(sections):
    changes = changed(**sections, checkpoint={"save_interval": 3})
    with pytest.raises(SettingsError, match=r"change what it learns:\n  .* before, .* now\n.*--allow-changes") as error:
        require_allowed(changes, allow=False)
    assert "save_interval" not in str(error.value)
    require_allowed(changes, allow=True)


def test_a_setting_is_harmful_unless_its_field_says_otherwise():
    fields = [
        (name, key, field) for name, section in PodcastConfig() for key, field in type(section).model_fields.items()
    ]
    harmless = {
        f"{name}.{key}" for name, key, field in fields if field.metadata and "resumed run" in str(field.metadata)
    }
    assert "memory.path" in harmless and "evaluation.control_arms" in harmless
    assert harmless.isdisjoint({"memory.k", "questions.num_train", "warmup.learning_rate", "training.batch_size"})
    assert len(harmless) < len(fields) / 2


def test_a_recorded_setting_that_does_not_exist_any_more_needs_permission():
    recorded = {"training": {"loss_norm_tokens": 7}}
    with pytest.raises(SettingsError, match=r"training\.loss_norm_tokens: 7 before, 'no such setting any more' now"):
        require_allowed(changes_between(recorded, ConfigStore()), allow=False)


def test_a_setting_that_was_not_recorded_does_not_count():
    recorded = ConfigStore().to_dict()
    del recorded["training"]["seed"], recorded["ray"]
    assert changes_between(recorded, ConfigStore().merged({"training": {"seed": 7}, "ray": {"num_actors": 3}})) == []
