"""A trainer takes a PEFT model: its adapters learn, and what is sampled is what they compute."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_environments import Colours, settings

from midthought import RayPPOTrainer, SettingsError

peft = pytest.importorskip("peft")

KINDS: dict[str, dict[str, Any]] = {
    "LoRA": {},
    "DoRA": {"use_dora": True},
    "modules_to_save": {"modules_to_save": ["lm_head"]},
}


def adapted(model: Any, **options: Any) -> Any:
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=4, target_modules="all-linear", **options)
    return peft.get_peft_model(model, config)


@pytest.mark.parametrize("estimator", ["gae", "grpo"])
@pytest.mark.parametrize("kind", KINDS)
def test_it_trains_the_adapters_of_a_peft_model(kind: str, estimator: str, talker: dict[str, Any]) -> None:
    model = adapted(talker["model"], **KINDS[kind])
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    training = {"learning_rate": 1e-2, "kl_loss_coef": 0.01, "num_train_iters_per_epoch": 3}
    with RayPPOTrainer(
        settings(estimator, **training), Colours(), model=model, tokenizer=talker["tokenizer"]
    ) as trainer:
        history = trainer.fit()
    changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed
    assert all("lora_" in name or "modules_to_save" in name for name in changed)
    for figures in history:
        assert figures["logprob_difference_max"] < 1e-4
    assert history[0]["kl_loss"] == pytest.approx(0.0, abs=1e-6)
    assert history[-1]["kl_loss"] > 1e-5


@pytest.mark.parametrize("critic", ["separate", "shared"])
def test_its_critic_learns_with_adapters_too(critic: str, talker: dict[str, Any]) -> None:
    config = settings("gae").merged({"model": {"critic": critic}})
    with RayPPOTrainer(config, Colours(), model=adapted(talker["model"]), tokenizer=talker["tokenizer"]) as trainer:
        history = trainer.fit()
        learning = [name for name, tensor in trainer.learner.critic.named_parameters() if tensor.requires_grad]
    assert history[-1]["value_loss"] != history[0]["value_loss"]
    assert all("lora_" in name or name.startswith("head.") for name in learning)
    assert any("lora_" in name for name in learning) is (critic == "separate")


def test_its_reference_is_the_policy_that_training_began_with(talker: dict[str, Any]) -> None:
    """Adapters that did something before training are part of the reference."""
    model = adapted(talker["model"])
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if "lora_B" in name:
                tensor.add_(0.05)
    config = settings("grpo", kl_loss_coef=0.01)
    with RayPPOTrainer(config, Colours(), model=model, tokenizer=talker["tokenizer"]) as trainer:
        assert trainer.learner.reference is not trainer.learner.policy
        assert trainer.fit()[0]["kl_loss"] == pytest.approx(0.0, abs=1e-6)


def test_adapters_are_not_added_to_a_model_that_has_some(talker: dict[str, Any]) -> None:
    config = settings("grpo").merged({"model": {"lora_rank": 4}})
    with pytest.raises(SettingsError, match=r"model\.lora_rank=4, but the model has adapters already"):
        RayPPOTrainer(config, Colours(), model=adapted(talker["model"]), tokenizer=talker["tokenizer"]).fit()
