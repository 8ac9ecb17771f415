"""Settings: checked where they are written, read back from YAML, and every one of them read by some room."""

import ast
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from source_trees import tree_of

from midthought.config import (
    ConfigStore,
    ModelConfig,
    Section,
    TrainingConfig,
    create_default_config,
    load,
    merge_configs,
)
from midthought.config.yaml_files import parse_assignments, read_yaml
from midthought.errors import SettingsError
from midthought.plan.choices import resolve
from midthought.plan.hardware import Hardware
from midthought.recipes import find_recipe, recipe_names
from midthought.recipes.podcast.settings import PodcastConfig

PACKAGE = Path(__file__).parent.parent / "midthought"


def sections(store: type[Section]) -> dict[str, type[Section]]:
    return {
        name: field.annotation
        for name, field in store.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section)
    }


LIBRARY = "the library"
OWNERS = {LIBRARY: ConfigStore, **{name: find_recipe(name).config_class() for name in recipe_names()}}
FIELDS = {
    (owner, section, key): field
    for owner, store in OWNERS.items()
    for section, kind in sections(store).items()
    for key, field in kind.model_fields.items()
}


# -- every key is documented and read ------------------------------------------------------------------------------


def test_every_setting_says_what_it_is():
    assert [key for key, field in FIELDS.items() if not field.description] == [], "they have no docstring"


def read_in(path: Path) -> Iterator[str]:
    """Names that a module reads as attributes, `x.name`, and those that it gives as texts, `"section.name"` or `"name"`."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value.rpartition(".")[2]


def can_read(path: Path, owner: str) -> bool:
    """Whether a module may be meant to read the settings of the library or of a recipe: another recipe's may not."""
    within = path.relative_to(PACKAGE).parts
    return within[0] != "recipes" or len(within) == 2 or owner in (LIBRARY, within[1])


def test_every_setting_is_read_by_the_library_or_the_recipe_that_has_it():
    names = {path: set(read_in(path)) for path in PACKAGE.rglob("*.py")}
    read = {owner: set().union(*(names[path] for path in names if can_read(path, owner))) for owner in OWNERS}
    unread = [(owner, section, key) for owner, section, key in FIELDS if key not in read[owner]]
    assert unread == [], "nothing reads them: implement them or take them out"


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
    fields = set().union(*map(fields_with_defaults, modules))
    assert fields, "the search finds dataclass fields"
    settings = TrainingConfig.model_fields.keys() - {"seed"}
    assert {name for name in fields if name.partition(".")[2] in settings} == set()


# -- checking ------------------------------------------------------------------------------------------------------


class SumsSection(Section):
    """A section of a user."""

    max_number: int = 9


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"training": {"learnin_rate": 1}}, r"unknown key 'learnin_rate' in training\. Did you mean 'learning_rate'"),
        ({"trainin": {"seed": 1}}, r"unknown key 'trainin' in .*Did you mean 'training'"),
        ({"model": {"dtype": "bfloat61"}}, r"model\.dtype='bfloat61': Did you mean 'bfloat16' .*Known: auto, bfloat16"),
        ({"training": {"learning_rate": math.nan}}, "learning_rate=nan: .*finite"),
        ({"reward": {"correct": math.inf}}, "correct=inf: .*finite"),
        ({"inference": {"base_url": "http://h:1"}}, r"base_url='http://h:1': should be a list; write \[http://h:1\]"),
        ({"training": {"seed": -1}}, "seed="),
        ({"training": {"seed": 2**63}}, "seed="),
        ({"training": 3}, r"training=3: training is a section.*training\.algorithm="),
        ({"inference": {"top_p": 0.9}}, r"inference\.top_p=0\.9.*importance ratios.*set inference\.top_p to 1\.0"),
        ({"inference": {"temperature": 0}}, r"inference\.temperature=0 .*above 0"),
        ({"training": {"batch_size": 10, "group_size": 4}}, "batch_size=10 is not a multiple of group_size=4"),
        ({"training": {"adv_estimator": "grpo", "group_size": 1}}, "group_size=1 with adv_estimator='grpo'.*2 or more"),
    ],
)
def test_a_wrong_value_or_name_is_told_with_its_remedy(changes, message):
    with pytest.raises(SettingsError, match=message):
        ConfigStore().merged(changes)
    with pytest.raises(SettingsError, match=r"unknown key 'max_numbr' in sums\. Did you mean 'max_number'"):
        SumsSection(max_numbr=1)  # a section alone


def test_every_assignment_is_checked_and_a_refused_one_changes_nothing():
    training = ConfigStore().training
    training.learning_rate, training.kl_coef = 1e-4, 0.0
    for name, value, message in (
        ("learning_rate", -1.0, r"learning_rate=-1\.0.*greater than 0"),
        ("sed", 3, r"unknown key 'sed' in training.*'seed'"),
        ("adv_estimator", "gea", r"adv_estimator='gea': Did you mean 'gae'"),
        ("target_kl", 0.1, "target_kl"),  # does not agree with another setting
        ("group_size", 7, "batch_size=64 is not a multiple of group_size=7"),
    ):
        with pytest.raises(SettingsError, match=message):
            setattr(training, name, value)
    training.batch_size = 4
    with pytest.raises(SettingsError, match="batch_size=4 is not a multiple of group_size=8"):
        training.algorithm = "grpo"  # a preset whose values do not agree
    assert training == TrainingConfig(learning_rate=1e-4, kl_coef=0.0, batch_size=4)
    assert training.model_fields_set == {"learning_rate", "kl_coef", "batch_size"}


def test_all_that_is_wrong_is_told_in_one_line():
    with pytest.raises(SettingsError) as caught:
        ConfigStore().merged({"model": {"dtype": "x", "num_layers": 0}, "training": {"gamma": 2}})
    assert "\n" not in str(caught.value)
    assert all(key in str(caught.value) for key in ("model.dtype", "num_layers", "training.gamma"))


def test_estimators_of_groups_have_eight_episodes_for_each_task_unless_it_is_set():
    training = TrainingConfig()
    assert training.episodes_per_task == 1
    training.adv_estimator = "grpo"
    assert training.episodes_per_task == 8
    training.group_size = 4
    assert training.episodes_per_task == 4


@pytest.mark.parametrize(
    ("changes", "num_tasks", "num_epochs", "expected"),
    [
        ({}, 100, None, 5),  # 3 passes over 100 tasks, 64 at a time: 4.7
        ({}, 100, 1, 2),
        ({"adv_estimator": "grpo"}, 100, 1, 13),  # 8 groups of 8
        ({}, None, None, 300),
        ({}, None, 2, 200),
        ({"num_train_iters": 5}, 100, None, 5),
        ({"num_train_iters": 5}, 100, 1, 2),
    ],
)
def test_iterations_follow_from_epochs_and_tasks(changes, num_tasks, num_epochs, expected):
    assert TrainingConfig(**changes).num_iters(num_tasks, num_epochs) == expected


# -- merging, reading, writing -------------------------------------------------------------------------------------


def test_merging_is_deep_and_shares_nothing_with_the_original():
    podcast = PodcastConfig()
    merged = podcast.merged({"training": {"seed": 7}, "memory": {"k": 3}}).merged({"training": {"gamma": 0.5}})
    assert (merged.training.seed, merged.training.gamma, merged.memory.k) == (7, 0.5, 3)
    assert merged.training.batch_size == podcast.training.batch_size and podcast == PodcastConfig()
    base, changes = {"a": {"b": [1], "c": {"d": 2}}}, {"a": {"c": {"f": 4}}, "g": {"h": [2]}}
    merged = merge_configs(base, changes)
    assert merged == {"a": {"b": [1], "c": {"d": 2, "f": 4}}, "g": {"h": [2]}}
    merged["a"]["b"].append(0)
    merged["g"]["h"].append(0)
    assert (base, changes) == ({"a": {"b": [1], "c": {"d": 2}}}, {"a": {"c": {"f": 4}}, "g": {"h": [2]}})
    assert ConfigStore(model={"num_layers": 9}).model != ConfigStore().model == ModelConfig()


def test_settings_are_validated_once_from_their_layers_to_the_frozen_copy(monkeypatch):
    validated = []
    init = TrainingConfig.__init__
    monkeypatch.setattr(TrainingConfig, "__init__", lambda self, **given: validated.append(1) or init(self, **given))
    config, _ = find_recipe("podcast").begin(Path(), words=["training.algorithm=grpo", "training.kl_coef=0.5"])
    choice = resolve(config, Hardware("cpu", "a CPU", 16.0), source="", is_given=False)
    training = choice.config.frozen().training
    assert len(validated) == 1
    assert (training.adv_estimator, training.kl_coef, training.learning_rate) == ("grpo", 0.5, 2e-4)


def test_the_preset_of_a_layer_replaces_values_of_earlier_layers_only():
    early, late = {"training": {"kl_coef": 0.3, "seed": 4}}, {"training": {"algorithm": "rloo", "gamma": 0.5}}
    training = load(ConfigStore, early, late).training
    assert (training.kl_coef, training.seed, training.gamma) == (0.03, 4, 0.5)
    assert load(ConfigStore, late, early).training.kl_coef == 0.3


@pytest.mark.parametrize(("base", "changes"), [(None, {}), ({}, None), (ConfigStore(), 3), ({}, "a=1")])
def test_merging_what_are_no_mappings_says_so(base, changes):
    with pytest.raises(SettingsError, match=r"(base|changes)=.*give nested mappings, for example"):
        merge_configs(base, changes)


VALUES = {
    "model": {"local_path": st.text(max_size=8), "num_layers": st.integers(1, 9)},
    "training": {"learning_rate": st.floats(1e-12, 1.0), "clip_ratio_high": st.none() | st.floats(0.01, 1)},
    "questions": {
        "kinds": st.lists(st.sampled_from(["speaker", "episode", "continuation"]), min_size=1),
        "instruction": st.none() | st.text(max_size=20),
    },
}


@settings(max_examples=30)
@given(st.fixed_dictionaries({}, optional={name: st.fixed_dictionaries(values) for name, values in VALUES.items()}))
def test_settings_come_back_from_their_yaml_as_they_were(tmp_path_factory, changes):
    config = PodcastConfig().merged(changes)
    path = tmp_path_factory.getbasetemp() / "config.yaml"
    path.write_text(config.to_yaml(), encoding="utf-8")
    assert PodcastConfig().merged(read_yaml(path)) == config


# fmt: off
WORDS = {
    "1": 1, "1e-3": 1e-3, "1E+2": 100.0, "0.5": 0.5, "true": True, "null": None, "": "", "[x, y]": ["x", "y"],
    "tide clock": "tide clock", "x=y": "x=y", "/models/qwen": "/models/qwen", "[x": "[x", "-1.5": -1.5, "-3": -3,
    "[1e-3, '1e-3']": [1e-3, "1e-3"], "'1e-3'": "1e-3", '"7"': "7", "007": "007", "1e": "1e", "nano": "nano",
    "12:30": "12:30", "2024-01-01": "2024-01-01", "on": "on", "my #1 run": "my #1 run", "#1": "#1", ".inf": math.inf,
}
# fmt: on


def test_a_word_is_read_as_its_value_and_the_last_of_a_key_wins():
    for word, value in WORDS.items():
        found = parse_assignments(["a.b=0", f"a.b={word}", "a.c=0.9", "d.e=3"])
        assert found == {"a": {"b": value, "c": 0.9}, "d": {"e": 3}} and type(found["a"]["b"]) is type(value), word
    changed = PodcastConfig().merged({"questions": {"instruction": "x"}})
    assert changed.merged(parse_assignments(["questions.instruction=null"])).questions.instruction is None
    assert ConfigStore().merged(parse_assignments(["training.max_grad_norm=.inf"])).training.max_grad_norm == math.inf


@pytest.mark.parametrize(
    ("words", "message"),
    [
        *((word, "a name is missing before or after a dot") for word in ("training.=3", ".seed=3", "training..seed=3")),
        *((word, r"is not a setting; write section\.key=value") for word in ("training.seed", "=3", "seed")),
        ("training=3 training.seed=1", "'training' was already given a value"),
    ],
)
def test_words_that_are_no_assignments_are_told_with_an_example(words, message):
    with pytest.raises(SettingsError, match=message):
        parse_assignments(words.split())


def test_a_settings_file_that_cannot_be_read_is_named_in_one_line_with_the_remedy(tmp_path):
    file = tmp_path / "mine.yaml"
    with pytest.raises(SettingsError, match=r"mine\.yaml does not exist; check the path"):
        read_yaml(file)
    for text, message in (("- 1\n", "contains a list, not sections"), ("a: [1\nb: }", "cannot be read")):
        file.write_text(text)
        with pytest.raises(SettingsError, match=rf"mine\.yaml {message}") as caught:
            read_yaml(file)
        assert "\n" not in str(caught.value)
    file.write_text("# nothing\n")
    assert read_yaml(file) == {}


# -- the frozen copy ---------------------------------------------------------------------------------------------


def test_a_frozen_copy_refuses_assignments_and_leaves_the_original_assignable():
    config = create_default_config(training={"gamma": 0.5})
    frozen = config.frozen()
    for target, name, message in (
        (frozen.training, "gamma", r"gamma=0\.9: this copy of the settings is frozen"),
        (frozen, "training", "frozen"),
    ):
        with pytest.raises(SettingsError, match=message):
            setattr(target, name, 0.9)
    config.training.gamma = 0.9
    assert frozen.training.gamma == 0.5


def test_a_frozen_copy_has_the_values_that_follow_from_another_section():
    repeated = create_default_config(inference={"deterministic": True}, training={"max_staleness": 1}).frozen().training
    assert (repeated.packing, repeated.rollout_correction) == (True, "truncated")
