"""Presets of `training.algorithm`: every name sets the values of its paper, and settings that are given with it win."""

import math
import re
from pathlib import Path

import pytest
from representatives import representatives

from midthought.config import ConfigStore, TrainingConfig, create_default_config, read_yaml
from midthought.config.algorithms import ALGORITHMS
from midthought.config.store import TINY
from midthought.errors import SettingsError
from midthought.recipes import find_recipe
from midthought.trainer.trainer import Trainer

NAMES = ["ppo", "grpo", "dr_grpo", "dapo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline"]
NAMES += ["gspo", "cispo", "sapo", "gmpo", "dppo_tv", "dppo_kl", "rft", "distillation"]


PAGE = (Path(__file__).parent.parent / "docs" / "algorithms.md").read_text("utf-8")


def of(name: str, **given) -> TrainingConfig:
    return create_default_config(training={"algorithm": name, **given}).training


def podcast(*words: str, config: Path | None = None) -> TrainingConfig:
    return find_recipe("podcast").begin(Path("run"), words=words, config=config)[0].training


@pytest.fixture
def yaml(tmp_path):
    def write(text: str) -> Path:
        (tmp_path / "mine.yaml").write_text(text, "utf-8")
        return tmp_path / "mine.yaml"

    return write


def test_every_method_has_a_preset_with_a_source_and_the_page_lists_its_values():
    assert list(ALGORITHMS) == NAMES
    for name, algorithm in ALGORITHMS.items():
        assert re.search(r"\d{4}\.\d{5}", algorithm.source), name
        assert of(name).algorithm == name
        values = " ".join(f"{key}={value}" for key, value in algorithm.values.items())
        assert f"- `{name}`: `{values}` ({algorithm.source})" in PAGE.splitlines()


def test_the_methods_differ_in_the_parts_that_their_papers_change():
    for name, expected in {
        "ppo": {"adv_estimator": "gae", "kl_coef": 0.02, "lam": 0.95},
        "grpo": {"kl_loss_coef": 0.0, "loss_agg": "seq-mean-token-mean", "kl_coef": 0.0},
        "dr_grpo": {"adv_estimator": "dr_grpo", "loss_agg": "seq-mean-token-sum-norm"},
        "cispo": {"clip_ratio": 1.0, "clip_high": 4.0},
        "dapo": {"policy_loss": "ppo", "clip_ratio": 0.2, "clip_high": 0.28},
        "gspo": {"policy_loss": "gspo", "clip_ratio": 3e-4, "clip_high": 4e-4},
    }.items():
        assert {key: getattr(of(name), key) for key in expected} == expected
    assert {of(name).entropy_coef for name in NAMES} == {0.0}
    default = TrainingConfig().loss_agg
    assert of("gspo", loss_agg=default).loss_agg == default != of("gspo").loss_agg, "a given default wins, too"


def test_all_presets_set_the_same_keys_so_that_none_keeps_a_value_of_another():
    config = create_default_config()
    for name in [*NAMES, *reversed(NAMES)]:
        config.training.algorithm = name
        assert config.training == of(name)


def test_words_of_the_command_line_win_over_the_preset_in_any_order():
    words = ("training.algorithm=dapo", "training.clip_ratio_high=0.2")
    for chosen in (podcast(*words), podcast(*reversed(words))):
        assert (chosen.clip_high, chosen.max_dynamic_batches, chosen.algorithm) == (0.2, 10, "dapo")


def test_an_assignment_replaces_what_was_set_before_and_later_ones_win():
    config = create_default_config(training={"clip_ratio": 0.1})
    config.training.algorithm = "gspo"
    assert config.training == of("gspo")
    config.training.clip_ratio_high = 0.3
    assert config.training == of("gspo", clip_ratio_high=0.3) == config.training.changed()
    assert config.training.changed(algorithm="dapo") == of("dapo")
    config.training.algorithm = None
    assert config.training.policy_loss == "gspo"
    with pytest.raises(SettingsError, match="frozen"):
        ConfigStore().frozen().training.algorithm = "gspo"


def test_a_preset_replaces_the_values_of_the_recipe_but_not_those_of_the_users_file(yaml):
    assert podcast().kl_coef == 0.05
    assert podcast("training.algorithm=dr_grpo").kl_coef == 0.0
    assert podcast("training.algorithm=dr_grpo").learning_rate == podcast().learning_rate == 2e-4
    file = yaml("training: {kl_coef: 0.5}")
    assert podcast("training.algorithm=dr_grpo", config=file).kl_coef == 0.5
    assert podcast(config=yaml("training: {algorithm: gspo, clip_ratio_high: 0.3}")).clip_high == 0.3


def test_another_preset_on_the_command_line_replaces_the_one_of_the_file_and_its_values(yaml):
    chosen = podcast("training.algorithm=gspo", config=yaml("training: {algorithm: dapo, clip_ratio_high: 0.3}"))
    assert chosen.clip_high == 4e-4
    record = yaml(find_recipe("podcast").begin(Path("run"), words=[])[0].to_yaml())
    assert podcast("training.algorithm=gspo", config=record).clip_high == 4e-4


def test_a_record_keeps_its_values_even_if_it_differs_from_the_preset(tmp_path):
    config = create_default_config(training={"algorithm": "gspo", "clip_ratio_high": 0.3})
    (tmp_path / "config.yaml").write_text(config.to_yaml(), "utf-8")
    assert create_default_config().merged(read_yaml(tmp_path / "config.yaml")) == config

    def training(*words: str, **options) -> TrainingConfig:
        config, _ = find_recipe("podcast").begin(tmp_path, words=words, **options)
        (tmp_path / "config.yaml").write_text(config.to_yaml(), "utf-8")
        return config.training

    recorded = training("training.algorithm=gspo", "training.clip_ratio_high=0.3")
    assert training(resume=True) == recorded
    assert training("training.algorithm=dapo", resume=True).clip_high == 0.28


def test_an_unknown_name_gets_the_nearest_ones():
    for wrong in (lambda: of("gsppo"), lambda: setattr(ConfigStore().training, "algorithm", "gsppo")):
        with pytest.raises(SettingsError, match=r"algorithm='gsppo': Did you mean 'gspo'.*Known: cispo, "):
            wrong()
    with pytest.raises(SettingsError, match=r"training.algorithm='drgrpo': Did you mean 'dr_grpo'"):
        podcast("training.algorithm=drgrpo")


def trainer_of(name: str) -> Trainer:
    training = {"batch_size": 8, "mini_batch_size": 4, "group_size": 4, "num_train_iters": 1, "validate_every": 0}
    training |= {"mask_truncated_episodes": False}  # all of these short ones are truncated
    config = create_default_config(
        model={"hidden_size": 32, "num_layers": 1, "vocab_size": 300},
        inference={"max_tokens": 16, "max_turns": 1},
        training={"algorithm": name, **training},
    )
    rows = [{"prompt": "Write.", "answer": "a"}]
    return Trainer(config, dataset=rows, reward_fn=lambda trajectory: sum(trajectory.segments[0].token_ids) % 97)


@pytest.mark.parametrize(
    "name",  # distillation: tests/trainer/test_beyond_policy_gradients.py
    representatives([name for name in NAMES if name != "distillation"], "ppo", "dapo", "gspo", "rft"),
)
def test_every_preset_trains(name):
    with trainer_of(name) as trainer:
        (metrics,) = trainer.fit()
    num_steps = math.ceil(metrics["batch/num_episodes"] / 4)  # some episodes are not selected
    assert (metrics["num_optimizer_steps"], metrics["num_skipped_steps"]) == (num_steps, 0)
    assert math.isfinite(metrics["policy_loss"])


def test_the_overlong_buffer_may_be_a_share_of_the_episodes_length():
    config = create_default_config(training={"algorithm": "dapo"}, inference={"max_tokens": 400})
    for given, expected in ((config.training.overlong_buffer_tokens, 80), (64, 64)):
        config.training.overlong_buffer_tokens = given
        assert config.num_overlong_tokens == expected
    config.training.overlong_buffer_tokens = 401
    message = r"overlong_buffer_tokens=401.* is above inference\.max_tokens=400; set at most"
    with pytest.raises(SettingsError, match=message):
        config.frozen()


def test_the_page_lists_our_defaults():
    table = PAGE.partition("## Defaults\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)\.(\w+)` \| `([^`]+)` \| (?:`([^`]+)`)? ?\|", table, flags=re.MULTILINE)
    assert len(rows) > 10
    config, tiny = ConfigStore(), create_default_config(preset="tiny")
    for section, key, given, of_tiny in rows:
        assert given == str(getattr(getattr(config, section), key)), key
        assert (of_tiny or given) == str(getattr(getattr(tiny, section), key)), key
    assert {(section, key) for section, values in TINY.items() for key in values} <= {row[:2] for row in rows}
