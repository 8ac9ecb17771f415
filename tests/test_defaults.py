"""Defaults suit a given model; the preset `tiny` suits the small one that a run creates, and gives only what was not set."""

from pathlib import Path

import pytest

from midthought.config import ConfigStore, TrainingConfig, create_default_config
from midthought.config.store import TINY
from midthought.errors import SettingsError
from midthought.models.small_model import make_policy, make_tokenizer
from midthought.plan.choices import as_recorded, choose
from midthought.trainer.trainer import Trainer

ROWS = [{"question": "Write.", "answer": "a"}]
SMALL = {
    "model": {"hidden_size": 32, "num_layers": 1, "vocab_size": 300},
    "inference": {"max_tokens": 8, "max_turns": 1},
    "training": {"batch_size": 2, "num_train_iters": 1, "validate_every": 0},
}


def rates(config: ConfigStore, **options: bool) -> tuple[float, float]:
    chosen = choose(config, on_gpu=False, has_vllm=False, **options)
    return chosen.training.peak_learning_rate, chosen.training.critic_learning_rate


def test_a_given_model_learns_at_published_rates_without_kl_and_entropy():
    config = create_default_config(model={"local_path": "some/model"})
    assert rates(config) == (1e-6, 1e-5)
    config.model.lora_rank = 8
    assert rates(config) == (1e-5, 1e-5)
    training, inference = config.training, config.inference
    assert (training.entropy_coef, training.kl_coef, training.kl_loss_coef) == (0.0, 0.0, 0.0)
    assert (training.adam_beta2, training.weight_decay) == (0.999, 0.01)
    assert (inference.max_tokens, inference.max_result_tokens, training.batch_size) == (2048, 512, 64)
    assert training.changed(adv_estimator="grpo").episodes_per_task == 8


def test_tiny_gives_exactly_the_settings_that_were_not_set():
    assert create_default_config(preset="tiny").given() == {**{name: {} for name in ConfigStore.model_fields}, **TINY}
    config = create_default_config(preset="tiny", training={"learning_rate": 1e-5}, inference={"max_tokens": 2048})
    assert config.training.learning_rate == 1e-5
    assert config.inference.max_tokens == 2048  # set, though it equals the default
    assert config.training.adam_beta2 == TINY["training"]["adam_beta2"]
    with pytest.raises(SettingsError, match=r"preset='tiney': the only one is 'tiny'"):
        create_default_config(preset="tiney")


def test_a_trainer_without_a_model_takes_tiny_and_says_so(capsys):
    config = create_default_config(**SMALL)
    with Trainer(config, dataset=ROWS) as trainer:
        training = trainer.config.training
        assert (training.learning_rate, training.adam_beta2, training.batch_size) == (2e-4, 0.95, 2)
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "Preset tiny" in line)
    assert "No model is given" in line and "training.learning_rate=0.0002" in line and "batch_size=2" not in line
    assert config.training.adam_beta2 == 0.999  # the caller's settings are unchanged


def test_a_model_object_is_a_given_model(capsys):
    tokenizer = make_tokenizer(["Write a."], 300)
    model = make_policy(tokenizer, hidden_size=32, num_layers=1, num_heads=1, max_length=64, seed=0)
    with Trainer(create_default_config(**SMALL), dataset=ROWS, model=model, tokenizer=tokenizer) as trainer:
        assert trainer.config.training.learning_rate == 1e-6
    assert "tiny" not in capsys.readouterr().out


def test_settings_know_what_was_set_through_assignments_and_copies():
    config = create_default_config(training={"seed": 3})
    config.model.lora_rank = 8
    config.training.algorithm = "gspo"
    config.training.algorithm = None
    for copy in (config, config.merged({}), config.merged({"ray": {}})):
        given = copy.given()
        assert given["model"] == {"lora_rank": 8} and given["inference"] == {}
        assert given["training"]["seed"] == 3 and given["training"]["policy_loss"] == "gspo"
    assert config.training.changed(gamma=0.5).given() == {**config.training.given(), "gamma": 0.5}


# -- resumed runs --------------------------------------------------------------------------------------------------


def recorded(folder: Path, **training) -> Path:
    (folder / "config.yaml").write_text(create_default_config(training=training).to_yaml(), "utf-8")
    return folder / "config.yaml"


def test_a_resumed_run_keeps_the_recorded_values_of_settings_that_are_not_set(tmp_path):
    file = recorded(tmp_path, learning_rate=1e-5, kl_coef=0.01, num_train_iters=2)
    assert resumed(file, kl_coef=0.5, num_train_iters=4) == (1e-5, 0.5, 4)
    assert resumed(file) == (1e-5, 0.01, None)  # the number of iterations is harmless: as given now


def resumed(file: Path, **training) -> tuple[object, ...]:
    found = as_recorded(create_default_config(training=training), file).training
    return found.learning_rate, found.kl_coef, found.num_train_iters


def test_a_resumed_run_keeps_the_values_of_its_algorithm_if_the_preset_has_changed(tmp_path):
    file = recorded(tmp_path, algorithm="grpo", kl_loss_coef=0.04)
    for algorithm, kl_loss_coef in (("grpo", 0.04), ("dr_grpo", 0.0)):
        found = as_recorded(create_default_config(training={"algorithm": algorithm}), file).training
        assert (found.adv_estimator, found.kl_loss_coef) == (algorithm, kl_loss_coef)


def test_the_learning_rate_of_settings_alone_is_open():
    with pytest.raises(SettingsError, match="still 'auto'"):
        _ = TrainingConfig().peak_learning_rate
