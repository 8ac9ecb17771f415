"""Settings: checked where they are written, read back from YAML, and every one of them read by some room."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midthought.config import (
    ConfigStore,
    ModelConfig,
    Section,
    TrainingConfig,
    merge_configs,
    parse_assignments,
    read_yaml,
)
from midthought.errors import SettingsError
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
SECTIONS = {LIBRARY: sections(ConfigStore)} | {
    name: sections(find_recipe(name).config_class()) for name in recipe_names()
}
KEYS = [
    (owner, section, key)
    for owner in SECTIONS
    for section, kind in SECTIONS[owner].items()
    for key in kind.model_fields
]


# -- every key is documented and read ------------------------------------------------------------------------------


@pytest.mark.parametrize(("owner", "section", "key"), KEYS)
def test_every_setting_says_what_it_is(owner, section, key):
    assert SECTIONS[owner][section].model_fields[key].description, f"{section}.{key} has no docstring"


NAMES = {name for of_one in SECTIONS.values() for name in of_one}
SECTIONS_OF: dict[str, set[str]] = {}
"""The sections of a class, and of the classes that extend it."""
for of_one in SECTIONS.values():
    for name, kind in of_one.items():
        for each in kind.__mro__[: kind.__mro__.index(Section)]:
            SECTIONS_OF.setdefault(each.__name__, set()).add(name)


def aliases_in(scope: ast.AST) -> dict[str, set[str]]:
    """What stands for a section: `settings = self.config.warmup`, `a, b = config.memory, config.model`, a parameter such as
    `training: TrainingConfig`, `self._settings = training` of such a parameter, and a property that returns a section."""
    nodes = list(ast.walk(scope))
    parameters = [node for node in nodes if isinstance(node, ast.arg) and node.annotation is not None]
    kinds = {each.arg: ast.unparse(each.annotation) for each in parameters}
    for node in nodes:
        if isinstance(node, ast.FunctionDef) and node.returns is not None:
            kinds[f"self.{node.name}"] = ast.unparse(node.returns)
    found = {name: SECTIONS_OF[kind] for name, kind in kinds.items() if kind in SECTIONS_OF}
    for node in nodes:
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, value = node.targets[0], node.value
            pairs = [(target, value)]
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                pairs = list(zip(target.elts, value.elts, strict=True))
            for name, source in pairs:
                if isinstance(source, ast.Attribute) and source.attr in NAMES:
                    found[ast.unparse(name)] = {source.attr}
                elif isinstance(source, ast.Name) and source.id in found:
                    found[ast.unparse(name)] = found[source.id]
    return found


def name_of(node: ast.AST) -> str:
    """The same as `ast.unparse`, which is slow, for `a.b.c` and `a[0].b`; empty for calls and the like."""
    if isinstance(node, ast.Attribute):
        return f"{name_of(node.value)}.{node.attr}"
    if isinstance(node, ast.Name):
        return node.id
    return ast.unparse(node) if isinstance(node, ast.Subscript) else ""


def settings_read_in(path: Path) -> Iterator[tuple[str, str]]:
    """(section, key) for each `….section.key`, and each `alias.key`, that is read in a module."""
    tree = ast.parse(path.read_text("utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    of_class = {}
    for kind in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        own = {name: found for name, found in aliases_in(kind).items() if name.startswith("self.")}
        of_class |= {function: own for function in functions if function in kind.body}
    for node in ast.walk(tree):  # checks read settings of any run by name: history.setting("section.key")
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "setting"):
            continue
        if isinstance(node.args[0], ast.Constant):
            section, _, key = str(node.args[0].value).partition(".")
            yield section, key
    for scope in [tree, *functions]:
        aliases = {} if isinstance(scope, ast.Module) else of_class.get(scope, {}) | aliases_in(scope)
        for node in ast.walk(scope):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                owner = node.value
                is_section = isinstance(owner, ast.Attribute) and owner.attr in NAMES
                if is_section and (
                    name_of(owner.value).endswith(("config", "parts")) or name_of(owner) == "self.training"
                ):
                    yield owner.attr, node.attr
                elif (name := name_of(owner)) in aliases:
                    yield from ((section, node.attr) for section in aliases[name])
                elif path.parent.name == "env" and isinstance(owner, ast.Attribute) and owner.attr == "config":
                    yield "environment", node.attr


def settings_read_by_themselves() -> Iterator[tuple[str, str]]:
    """(section, key) for each `self.key` in the methods of a section that are no validators, and in the note of a preset."""
    yield from settings_read_in(PACKAGE / "config" / "algorithms.py")
    trees = [ast.parse((PACKAGE / "config" / name).read_text("utf-8")) for name in ("sections.py", "training.py")]
    for kind in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(kind, ast.ClassDef) and kind.name in SECTIONS_OF:
            methods = [each for each in kind.body if isinstance(each, ast.FunctionDef) and each.name != "_agree"]
            for node in (node for method in methods for node in ast.walk(method)):
                if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self":
                    yield from ((section, node.attr) for section in SECTIONS_OF[kind.name])


def sees_settings(path: Path) -> bool:
    text = path.read_text("utf-8")
    is_user = path.parent.name != "config" and path.name != "settings.py" and "midthought." in text
    return is_user and ("onfig" in text or ".setting(" in text or any(name in text for name in SECTIONS_OF))


def can_read(path: Path, owner: str) -> bool:
    """Whether a module may be meant to read the settings of the library or of a recipe: another recipe's may not."""
    within = path.relative_to(PACKAGE).parts
    return within[0] != "recipes" or len(within) == 2 or within[1] == owner


@functools.cache
def read_by() -> dict[Path, set[tuple[str, str]]]:
    """What each module reads. It takes seconds: not every process with tests needs it."""
    return {path: set(settings_read_in(path)) for path in PACKAGE.rglob("*.py") if sees_settings(path)}


@functools.cache
def settings_read() -> dict[str, set[tuple[str, str]]]:
    """What each recipe's code, and the library's, reads."""
    read = {
        owner: set(settings_read_by_themselves()).union(
            *(pairs for path, pairs in read_by().items() if can_read(path, owner))
        )
        for owner in recipe_names()
    }
    return read | {LIBRARY: set().union(*read.values())}


@pytest.mark.parametrize(("owner", "section", "key"), KEYS)
def test_every_setting_is_read_by_the_recipe_that_has_it(owner, section, key):
    assert (section, key) in settings_read()[owner], (
        f"nothing reads {section}.{key} of {owner}: implement it or take it out"
    )


def test_no_room_reads_a_setting_that_does_not_exist():
    methods = {
        name
        for of_one in SECTIONS.values()
        for kind in of_one.values()
        for name in dir(kind)
        if not name.startswith("_")
    }
    for path, pairs in read_by().items():
        owners = {owner for owner in SECTIONS if can_read(path, owner)}
        known = {(section, key) for owner, section, key in KEYS if owner in owners}
        assert {(section, key) for section, key in pairs if key not in methods} <= known, path


# -- checking ------------------------------------------------------------------------------------------------------


def test_an_unknown_key_is_told_with_the_near_names():
    with pytest.raises(SettingsError, match=r"unknown key 'learnin_rate' in training\. Did you mean 'learning_rate'"):
        ConfigStore().merged({"training": {"learnin_rate": 1}})
    with pytest.raises(SettingsError, match=r"unknown key 'trainin' in .*Did you mean 'training'"):
        ConfigStore().merged({"trainin": {"seed": 1}})
    with pytest.raises(SettingsError, match=r"unknown key 'sed' in training.*'seed'"):
        TrainingConfig(sed=1)


def test_an_unknown_key_of_a_users_section_is_told_with_the_name_of_the_section():
    class SumsSection(Section):
        max_number: int = 9

    with pytest.raises(SettingsError, match=r"unknown key 'max_numbr' in sums\. Did you mean 'max_number'"):
        SumsSection(max_numbr=1)


def test_every_assignment_is_checked_and_a_refused_one_changes_nothing():
    config = ConfigStore()
    config.training.learning_rate = 1e-4
    with pytest.raises(SettingsError, match=r"learning_rate=-1\.0.*greater than 0"):
        config.training.learning_rate = -1.0
    with pytest.raises(SettingsError, match=r"unknown key 'sed' in training.*'seed'"):
        config.training.sed = 3
    with pytest.raises(SettingsError, match=r"adv_estimator='gea': Did you mean 'gae'"):
        config.training.adv_estimator = "gea"
    assert config.training == TrainingConfig(learning_rate=1e-4)


def test_a_wrong_choice_is_told_with_the_near_names():
    with pytest.raises(
        SettingsError, match=r"model\.dtype='bfloat61': Did you mean 'bfloat16' .*Known: auto, bfloat16, float32"
    ):
        ConfigStore().merged({"model": {"dtype": "bfloat61"}})


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize(
    "key", ["training.learning_rate", "training.entropy_coef", "inference.temperature", "reward.correct"]
)
def test_settings_are_finite(key, value):
    section, name = key.split(".")
    with pytest.raises(SettingsError, match=rf"{name}={value}: .*finite"):
        setattr(getattr(ConfigStore(), section), name, value)


def test_gradients_may_stay_unclipped():
    config = ConfigStore(training={"max_grad_norm": float("inf")})
    assert ConfigStore().merged(parse_assignments(["training.max_grad_norm=.inf"])) == config


def test_one_text_in_the_place_of_a_list_says_how_to_write_the_list():
    with pytest.raises(SettingsError, match=r"base_url='http://h:1': should be a list; write \[http://h:1\]"):
        ConfigStore().inference.base_url = "http://h:1"


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_a_seed_that_generators_cannot_take_is_refused(seed):
    with pytest.raises(SettingsError, match="seed="):
        TrainingConfig(seed=seed)


def test_a_section_given_a_value_says_how_to_set_its_keys():
    with pytest.raises(SettingsError, match=r"training=3: training is a section.*training\.algorithm="):
        ConfigStore().merged({"training": 3})


def test_all_that_is_wrong_is_told_in_one_line():
    with pytest.raises(SettingsError) as caught:
        ConfigStore().merged({"model": {"dtype": "x", "num_layers": 0}, "training": {"gamma": 2}})
    message = str(caught.value)
    assert "\n" not in message
    assert all(key in message for key in ("model.dtype", "num_layers", "training.gamma"))


def test_top_p_below_one_is_refused_in_training_with_the_reason():
    with pytest.raises(SettingsError, match=r"inference\.top_p=0\.9.*importance ratios.*set inference\.top_p to 1\.0"):
        ConfigStore().merged({"inference": {"top_p": 0.9}})


def test_greedy_training_rollouts_are_refused():
    with pytest.raises(SettingsError, match=r"inference\.temperature=0 .*above 0"):
        ConfigStore().merged({"inference": {"temperature": 0}})


def test_grpo_needs_groups():
    with pytest.raises(SettingsError, match=r"group_size=1 with adv_estimator='grpo'.*2 or more"):
        ConfigStore().merged({"training": {"adv_estimator": "grpo", "group_size": 1}})
    config = ConfigStore()
    assert config.training.episodes_per_task == 1
    config.training.adv_estimator = "grpo"
    assert config.training.episodes_per_task == 8
    config.training.group_size = 4
    assert config.training.episodes_per_task == 4


def test_a_setting_that_agrees_with_no_other_is_refused_and_changes_nothing():
    config = ConfigStore()
    config.training.kl_coef = 0.0
    with pytest.raises(SettingsError, match="target_kl"):
        config.training.target_kl = 0.1
    assert config.training == TrainingConfig(kl_coef=0.0)


@pytest.mark.parametrize(
    ("changes", "num_tasks", "num_epochs", "expected"),
    [
        ({}, 100, None, 5),  # 3 passes over 100 tasks, 64 at a time: 4.7
        ({}, 100, 1, 2),
        ({"adv_estimator": "grpo"}, 100, 1, 13),  # 8 groups of 8
        ({}, None, None, 300),
        ({"num_train_iters_per_epoch": 7}, None, 2, 14),
        ({"num_train_iters": 5}, 100, None, 5),
        ({"num_train_iters": 5}, 100, 1, 2),
    ],
)
def test_iterations_follow_from_epochs_and_tasks(changes, num_tasks, num_epochs, expected):
    assert TrainingConfig(**changes).num_iters(num_tasks, num_epochs) == expected


def test_a_batch_holds_whole_groups():
    with pytest.raises(SettingsError, match=r"batch_size=10 is not a multiple of group_size=4"):
        ConfigStore().merged({"training": {"batch_size": 10, "group_size": 4}})


# -- merging, reading, writing -------------------------------------------------------------------------------------


def test_merging_is_deep_and_leaves_the_original_alone():
    base = PodcastConfig()
    merged = base.merged({"training": {"seed": 7}, "memory": {"k": 3}}).merged({"training": {"gamma": 0.5}})
    assert (merged.training.seed, merged.training.gamma, merged.memory.k) == (7, 0.5, 3)
    assert merged.training.batch_size == base.training.batch_size
    assert base == PodcastConfig()


def test_merging_plain_mappings_goes_as_deep_as_they_do():
    assert merge_configs({"a": {"b": 1, "c": {"d": 2}}, "e": 3}, {"a": {"c": {"f": 4}}, "e": {"g": 5}}) == {
        "a": {"b": 1, "c": {"d": 2, "f": 4}},
        "e": {"g": 5},
    }


def test_merging_into_settings_gives_settings():
    merged = merge_configs(ConfigStore(), {"training": {"seed": 7}})
    assert merged == ConfigStore(training={"seed": 7})
    with pytest.raises(SettingsError, match="unknown key 'sed' in training"):
        merge_configs(ConfigStore(), {"training": {"sed": 7}})


def test_what_is_merged_shares_nothing_with_what_it_came_from():
    base, changes = {"a": {"b": [1]}}, {"c": {"d": [2]}}
    merged = merge_configs(base, changes)
    merged["a"]["b"].append(0)
    merged["c"]["d"].append(0)
    assert (base, changes) == ({"a": {"b": [1]}}, {"c": {"d": [2]}})


@pytest.mark.parametrize(("base", "changes"), [(None, {}), ({}, None), (ConfigStore(), 3), ({}, "a=1")])
def test_merging_what_are_no_mappings_says_so(base, changes):
    with pytest.raises(SettingsError, match=r"(base|changes)=.*give nested mappings, for example"):
        merge_configs(base, changes)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "model": st.fixed_dictionaries({"local_path": st.text(max_size=8), "num_layers": st.integers(1, 9)}),
            "training": st.fixed_dictionaries(
                {"learning_rate": st.floats(1e-12, 1e6), "clip_ratio_low": st.none() | st.floats(0.01, 1)}
            ),
            "questions": st.fixed_dictionaries(
                {
                    "kinds": st.lists(st.sampled_from(["speaker", "episode", "continuation"]), min_size=1),
                    "instruction": st.none() | st.text(max_size=20),
                }
            ),
        },
    )
)
def test_settings_come_back_from_their_yaml_as_they_were(tmp_path_factory, changes):
    config = PodcastConfig().merged(changes)
    path = tmp_path_factory.getbasetemp() / "config.yaml"
    path.write_text(config.to_yaml(), encoding="utf-8")
    assert PodcastConfig().merged(read_yaml(path)) == config


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("a.b=1", 1),
        ("a.b=1e-3", 1e-3),
        ("a.b=1E+2", 100.0),
        ("a.b=0.5", 0.5),
        ("a.b=true", True),
        ("a.b=null", None),
        ("a.b=", ""),
        ("a.b=[x, y]", ["x", "y"]),
        ("a.b=tide clock", "tide clock"),
        ("a.b=x=y", "x=y"),
        ("a.b=/models/qwen", "/models/qwen"),
        ("a.b=[x", "[x"),
        ("a.b=[1e-3, '1e-3']", [1e-3, "1e-3"]),
        ("a.b=-1.5", -1.5),
        ("a.b=-3", -3),
        ("a.b='1e-3'", "1e-3"),
        ('a.b="7"', "7"),
        ("a.b=007", "007"),
        ("a.b=1e", "1e"),
        ("a.b=nano", "nano"),
        ("a.b=12:30", "12:30"),
        ("a.b=2024-01-01", "2024-01-01"),
        ("a.b=on", "on"),
        ("a.b=my #1 run", "my #1 run"),
        ("a.b=#1", "#1"),
    ],
)
def test_a_word_is_read_as_its_value(word, value):
    found = parse_assignments([word])["a"]["b"]
    assert found == value and type(found) is type(value)


def test_words_of_one_section_come_together_and_the_last_of_a_key_wins():
    words = ["training.seed=1", "training.gamma=0.9", "training.seed=2", "memory.k=3"]
    assert parse_assignments(words) == {"training": {"seed": 2, "gamma": 0.9}, "memory": {"k": 3}}


@pytest.mark.parametrize("word", ["training.=3", ".seed=3", "training..seed=3"])
def test_a_word_without_a_name_beside_its_dot_is_refused(word):
    with pytest.raises(SettingsError, match="a name is missing before or after a dot"):
        parse_assignments([word])


@pytest.mark.parametrize("word", ["training.seed", "=3", "seed"])
def test_a_word_that_is_no_assignment_is_told_with_an_example(word):
    with pytest.raises(SettingsError, match=r"is not a setting; write section\.key=value"):
        parse_assignments([word])


def test_a_key_below_a_value_is_refused():
    with pytest.raises(SettingsError, match="'training' was already given a value"):
        parse_assignments(["training=3", "training.seed=1"])


@pytest.mark.parametrize("word", ["questions.num_test_episodes=null", "questions.instruction=null"])
def test_a_setting_that_may_be_none_can_be_set_to_none_by_a_word(word):
    section, key = word.partition("=")[0].split(".")
    changed = PodcastConfig().merged({"questions": {"num_test_episodes": 3, "instruction": "x"}})
    assert getattr(getattr(changed.merged(parse_assignments([word])), section), key) is None


def test_a_settings_file_that_cannot_be_read_is_named_with_the_remedy(tmp_path):
    with pytest.raises(SettingsError, match=r"nothing\.yaml does not exist; check the path"):
        read_yaml(tmp_path / "nothing.yaml")
    (tmp_path / "list.yaml").write_text("- 1\n")
    with pytest.raises(SettingsError, match=r"list\.yaml contains a list, not sections"):
        read_yaml(tmp_path / "list.yaml")
    (tmp_path / "broken.yaml").write_text("a: [1\nb: }")
    with pytest.raises(SettingsError, match=r"broken\.yaml cannot be read") as caught:
        read_yaml(tmp_path / "broken.yaml")
    assert "\n" not in str(caught.value)
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    assert read_yaml(tmp_path / "empty.yaml") == {}


def test_sections_of_two_stores_are_not_shared():
    first, second = ConfigStore(), ConfigStore()
    first.model.num_layers = 9
    assert second.model == ModelConfig()
