"""Defaults suit a given model; the preset `tiny` suits the small one that a run creates, and gives only what was not set."""

from pathlib import Path

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from midthought.config import ConfigStore, TrainingConfig, create_default_config
from midthought.config.store import TINY
from midthought.errors import SettingsError
from midthought.models.small_model import make_tokenizer
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
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 1}
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(Qwen3Config(vocab_size=len(tokenizer), num_key_value_heads=1, head_dim=32, **sizes))
    with Trainer(create_default_config(**SMALL), dataset=ROWS, model=model.eval(), tokenizer=tokenizer) as trainer:
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


def recorded(folder: Path, config: ConfigStore) -> Path:
    (folder / "config.yaml").write_text(config.to_yaml(), "utf-8")
    return folder / "config.yaml"


def test_a_resumed_run_keeps_the_recorded_values_of_settings_that_are_not_set(tmp_path):
    before = create_default_config(training={"learning_rate": 1e-5, "kl_coef": 0.01, "num_train_iters": 2})
    file = recorded(tmp_path, before)
    resumed = as_recorded(create_default_config(training={"num_train_iters": 4}), file).training
    assert (resumed.learning_rate, resumed.kl_coef, resumed.num_train_iters) == (1e-5, 0.01, 4)
    assert as_recorded(create_default_config(training={"kl_coef": 0.5}), file).training.kl_coef == 0.5
    assert as_recorded(create_default_config(), file).training.num_train_iters is None  # harmless: as given now


def test_a_resumed_run_keeps_the_values_of_its_algorithm_if_the_preset_has_changed(tmp_path):
    before = create_default_config(training={"algorithm": "grpo", "kl_loss_coef": 0.04})
    file = recorded(tmp_path, before)
    assert as_recorded(create_default_config(training={"algorithm": "grpo"}), file).training.kl_loss_coef == 0.04
    other = as_recorded(create_default_config(training={"algorithm": "dr_grpo"}), file).training
    assert (other.kl_loss_coef, other.adv_estimator) == (0.0, "dr_grpo")


def test_the_learning_rate_of_settings_alone_is_open():
    with pytest.raises(SettingsError, match="still 'auto'"):
        _ = TrainingConfig().peak_learning_rate
