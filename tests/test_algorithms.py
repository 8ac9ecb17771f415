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

NAMES = [
    *("ppo", "grpo", "dr_grpo", "dapo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline"),
    *("gspo", "cispo", "sapo", "gmpo", "dppo_tv", "dppo_kl"),
    *("rft", "distillation"),
]


def of(name: str, **given) -> TrainingConfig:
    return create_default_config(training={"algorithm": name, **given}).training


def podcast(*words: str, config: Path | None = None, **options) -> TrainingConfig:
    return find_recipe("podcast").begin(Path("run"), words=words, config=config, **options)[0].training


@pytest.fixture
def yaml(tmp_path):
    def write(text: str) -> Path:
        (tmp_path / "mine.yaml").write_text(text, "utf-8")
        return tmp_path / "mine.yaml"

    return write


def test_every_method_has_a_preset_with_a_source():
    assert list(ALGORITHMS) == NAMES
    for name, algorithm in ALGORITHMS.items():
        assert re.search(r"\d{4}\.\d{5}", algorithm.source), name
        assert of(name).algorithm == name


def test_the_methods_differ_in_the_parts_that_their_papers_change():
    assert (of("ppo").adv_estimator, of("ppo").kl_coef, of("ppo").lam) == ("gae", 0.02, 0.95)
    assert (of("grpo").kl_loss_coef, of("grpo").loss_agg, of("grpo").kl_coef) == (0.0, "seq-mean-token-mean", 0.0)
    assert (of("dr_grpo").adv_estimator, of("dr_grpo").loss_agg) == ("dr_grpo", "seq-mean-token-sum-norm")
    assert (of("cispo").clip_ratio, of("cispo").clip_high) == (1.0, 4.0)
    assert {of(name).entropy_coef for name in NAMES} == {0.0}
    assert (of("dapo").policy_loss, of("dapo").clip_ratio, of("dapo").clip_high) == ("ppo", 0.2, 0.28)
    assert (of("gspo").policy_loss, of("gspo").clip_ratio, of("gspo").clip_high) == ("gspo", 3e-4, 4e-4)
    default = TrainingConfig().loss_agg
    assert of("gspo", loss_agg=default).loss_agg == default != of("gspo").loss_agg, "a given default wins, too"


def test_all_presets_set_the_same_keys_so_that_none_keeps_a_value_of_another():
    config = create_default_config()
    for name in [*NAMES, *reversed(NAMES)]:
        config.training.algorithm = name
        assert config.training == of(name)


@pytest.mark.parametrize(
    "order", [("algorithm=dapo", "clip_ratio_high=0.2"), ("clip_ratio_high=0.2", "algorithm=dapo")]
)
def test_words_of_the_command_line_win_over_the_preset_in_any_order(order):
    chosen = podcast(*(f"training.{word}" for word in order))
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
    recorded = find_recipe("podcast").begin(
        tmp_path, words=["training.algorithm=gspo", "training.clip_ratio_high=0.3"]
    )[0]
    (tmp_path / "config.yaml").write_text(recorded.to_yaml(), "utf-8")
    assert podcast_of(tmp_path) == recorded.training
    assert podcast_of(tmp_path, "training.algorithm=dapo").clip_high == 0.28


def podcast_of(path: Path, *words: str) -> TrainingConfig:
    return find_recipe("podcast").begin(path, words=words, resume=True)[0].training


def test_an_unknown_name_gets_the_nearest_ones():
    for wrong in (lambda: of("gsppo"), lambda: setattr(ConfigStore().training, "algorithm", "gsppo")):
        with pytest.raises(SettingsError, match=r"algorithm='gsppo': Did you mean 'gspo'.*Known: cispo, "):
            wrong()
    with pytest.raises(SettingsError, match=r"training.algorithm='drgrpo': Did you mean 'dr_grpo'"):
        podcast("training.algorithm=drgrpo")


def trainer_of(name: str) -> Trainer:
    config = create_default_config(
        model={"hidden_size": 32, "num_layers": 1, "vocab_size": 300},
        inference={"max_tokens": 16, "max_turns": 1},
        training={"algorithm": name, "batch_size": 8, "mini_batch_size": 4, "num_train_iters": 1, "validate_every": 0}
        | {"mask_truncated_episodes": False},  # all of these short ones are truncated
    )
    config.training.group_size = 4
    rows = [{"prompt": "Write.", "answer": "a"}]
    return Trainer(config, dataset=rows, reward_fn=lambda trajectory: sum(trajectory.segments[0].token_ids) % 97)


@pytest.mark.parametrize(
    "name",  # distillation: tests/trainer/test_beyond_policy_gradients.py
    representatives([name for name in NAMES if name != "distillation"], "ppo", "dapo", "gspo", "rft"),
)
def test_every_preset_trains(name):
    trainer = trainer_of(name)
    (metrics,) = trainer.fit()
    trainer.cleanup()
    assert metrics["num_optimizer_steps"] == math.ceil(
        metrics["batch/num_episodes"] / 4
    )  # some episodes are not selected
    assert metrics["num_skipped_steps"] == 0
    assert math.isfinite(metrics["policy_loss"])


def test_the_overlong_buffer_may_be_a_share_of_the_episodes_length():
    config = create_default_config(training={"algorithm": "dapo"}, inference={"max_tokens": 400})
    assert config.training.overlong_buffer_tokens == 0.2
    assert config.num_overlong_tokens == 80
    config.training.overlong_buffer_tokens = 64
    assert config.num_overlong_tokens == 64
    config.training.overlong_buffer_tokens = 401
    with pytest.raises(
        SettingsError, match=r"overlong_buffer_tokens=401.* is above inference\.max_tokens=400; set at most"
    ):
        config.frozen()


PAGE = (Path(__file__).parent.parent / "docs" / "algorithms.md").read_text("utf-8")


def test_the_page_lists_the_values_of_every_preset():
    lines = PAGE.splitlines()
    for name in NAMES:
        values = " ".join(f"{key}={value}" for key, value in ALGORITHMS[name].values.items())
        assert f"- `{name}`: `{values}` ({ALGORITHMS[name].source})" in lines


def test_the_page_lists_our_defaults():
    table = PAGE.partition("## Defaults\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)\.(\w+)` \| `([^`]+)` \| (?:`([^`]+)`)? ?\|", table, flags=re.MULTILINE)
    assert len(rows) > 10
    config, tiny = ConfigStore(), create_default_config(preset="tiny")
    for section, key, given, of_tiny in rows:
        assert given == str(getattr(getattr(config, section), key)), key
        assert (of_tiny or given) == str(getattr(getattr(tiny, section), key)), key
    assert {(section, key) for section, values in TINY.items() for key in values} <= {row[:2] for row in rows}
