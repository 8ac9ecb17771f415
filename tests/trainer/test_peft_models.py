"""A trainer takes a PEFT model: its adapters learn, and what is sampled is what they compute."""

import copy
import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from precision import logit_tolerance
from representatives import representatives
from small_environments import QUESTIONS, Colours, settings
from transformers import AutoModelForCausalLM

from midthought import RayPPOTrainer, SettingsError, Trainer
from midthought.errors import ModelPathError
from midthought.models.pretrained import load_model

KINDS: dict[str, dict[str, Any]] = {
    "LoRA": {},
    "DoRA": {"use_dora": True},
    "modules_to_save": {"modules_to_save": ["lm_head"]},
    "new tokens": {},
    "trained new tokens": {"modules_to_save": ["embed_tokens"]},
}


def adapted(model: Any, **options: Any) -> Any:
    return peft.get_peft_model(model, lora(**options))


def lora(**options: Any) -> Any:
    return peft.LoraConfig(task_type="CAUSAL_LM", r=4, target_modules="all-linear", **options)


@pytest.mark.parametrize(
    ("kind", "estimator"),
    representatives(
        product([*KINDS][:3], ["gae", "grpo"]), ("LoRA", "grpo"), ("DoRA", "gae"), ("modules_to_save", "gae")
    ),
)
def test_it_trains_the_adapters_of_a_peft_model(kind: str, estimator: str, talker: dict[str, Any]) -> None:
    model = adapted(talker["model"], **KINDS[kind])
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    config = settings(estimator, learning_rate=1e-2, kl_loss_coef=0.01, num_train_iters=2)
    with RayPPOTrainer(config, Colours(), model=model, tokenizer=talker["tokenizer"]) as trainer:
        history = trainer.fit()
    changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed and all("lora_" in name or "modules_to_save" in name for name in changed)
    for figures in history:
        assert figures["logprob_difference_max"] < logit_tolerance(model.get_base_model(), 256)
    assert history[0]["kl_loss"] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("critic", ["separate", "shared"])
def test_its_critic_learns_with_adapters_too(critic: str, talker: dict[str, Any]) -> None:
    config = settings("gae").merged({"model": {"critic": critic}})
    with RayPPOTrainer(config, Colours(), model=adapted(talker["model"]), tokenizer=talker["tokenizer"]) as trainer:
        history = trainer.fit()
        learning = [name for name, tensor in trainer.learner.critic.named_parameters() if tensor.requires_grad]
    assert history[-1]["value_loss"] != history[0]["value_loss"]
    assert all("lora_" in name or name.startswith("head.") for name in learning)
    assert any("lora_" in name for name in learning) is (critic == "separate")


def test_adapters_are_not_added_to_a_model_that_has_some(talker: dict[str, Any]) -> None:
    config = settings("grpo").merged({"model": {"lora_rank": 4}})
    with pytest.raises(SettingsError, match=r"model\.lora_rank=4, but the model has adapters already"):
        RayPPOTrainer(config, Colours(), model=adapted(talker["model"]), tokenizer=talker["tokenizer"]).fit()


# -- folders of adapters, and models that do not learn ---------------------------------------------------------------

CHECKPOINT = "run/checkpoints/ppo/checkpoints/step_000001/policy"


def write_adapters(folder: Path, talker: dict[str, Any], kind: str = "LoRA", *, has_tokenizer: bool = True) -> Any:
    """Writes a base model, and adapters with their tokenizer as peft does. Returns the model with the adapters."""
    tokenizer = copy.deepcopy(talker["tokenizer"])
    talker["model"].save_pretrained(folder / "base")
    tokenizer.save_pretrained(folder / "base")
    base = AutoModelForCausalLM.from_pretrained(folder / "base")
    if "new tokens" in kind:
        tokenizer.add_tokens([f"<new{number}>" for number in range(30)])
        base.resize_token_embeddings(len(tokenizer) + 3)
    model = adapted(base, **KINDS[kind])
    add(0.02, model, "lora_B", "modules_to_save")
    model.save_pretrained(folder / "adapters")
    if has_tokenizer:
        tokenizer.save_pretrained(folder / "adapters")
    return model.eval()


@torch.no_grad()
def add(number: float, model: Any, *names: str) -> None:
    """Adds the number to the weights with one of these texts in their names."""
    for name, tensor in model.named_parameters():
        if any(each in name for each in names):
            tensor.add_(number)


def logits(model: Any) -> torch.Tensor:
    return model(torch.arange(5, 25)[None]).logits


def trained_and_resumed(make: Callable[[], Any], tmp_path: Path, **options: Any) -> Trainer:
    """A trainer of `make()` that was resumed after a step, and has computed the same as before."""
    options |= {"run_path": tmp_path / "run"}
    with trainer_of(make(), **options) as trainer:
        trainer.train_step(trainer.rollout())
        trainer.save_checkpoint()
        expected = logits(trainer.model)
        assert trainer.metrics_history[0]["kl_loss"] == pytest.approx(0.0, abs=1e-6)
    same(load_model(tmp_path / CHECKPOINT), expected)
    resumed = trainer_of(make(), resume=True, **options)
    assert resumed.iteration == 1 and torch.equal(logits(resumed.model), expected)
    return resumed


def same(model: Any, expected: torch.Tensor) -> None:
    torch.testing.assert_close(logits(model), expected, rtol=0, atol=1e-4)


def trainer_of(model: Any, **options: Any) -> Trainer:
    config = settings("grpo", num_train_iters=2, kl_loss_coef=0.01, learning_rate=1e-2, group_size=2, kl_coef=0.0)
    config.checkpoint.save_interval = 1
    reward = lambda trajectory: float(trajectory.seed % 7)  # noqa: E731
    return Trainer(config, dataset=QUESTIONS, reward_fn=reward, model=model, progress=False, **options)


@pytest.mark.parametrize("kind", representatives(["DoRA", "new tokens", "trained new tokens"], "trained new tokens"))
def test_a_folder_of_adapters_of_another_library_is_trained_on_resumed_and_evaluated(kind, talker, tmp_path) -> None:
    given, adapters = write_adapters(tmp_path, talker, kind, has_tokenizer=kind != "DoRA"), str(tmp_path / "adapters")
    with trainer_of(adapters) as whole:
        assert whole.config.model.lora_rank == 4
        same(whole.model, logits(given))
        whole.fit()
        last = logits(whole.model)
    with trained_and_resumed(lambda: adapters, tmp_path) as trainer:
        named = json.loads((tmp_path / CHECKPOINT / "adapter_config.json").read_text())["base_model_name_or_path"]
        assert named == adapters
        load_model(tmp_path / CHECKPOINT, "bfloat16")
        trainer.fit()
        assert torch.equal(logits(trainer.model), last)
    same(load_model(tmp_path / "run/policy"), last)


@pytest.mark.slow
def test_of_a_folder_of_adapters_all_weights_learn_if_that_is_asked_for_and_it_learns_from_demonstrations(
    talker, tmp_path
) -> None:
    write_adapters(tmp_path, talker)
    with trainer_of(str(tmp_path / "adapters"), lora_rank=0) as trainer:
        assert all(parameter.requires_grad for parameter in trainer.model.parameters())
        trainer.fit()
    demonstrate = lambda task: [{"role": "assistant", "content": task.answer}]  # noqa: E731
    with trainer_of(str(tmp_path / "adapters")) as trainer:
        assert len(trainer.sft(demonstrate, num_steps=2, batch_tokens=300)) == 2
        trainer.fit()


def test_a_base_model_that_is_not_there_is_named_with_the_file_that_names_it(talker, tmp_path) -> None:
    write_adapters(tmp_path, talker)
    file = tmp_path / "adapters/adapter_config.json"
    for base in ("/nowhere/gone", "gone", None):
        file.write_text(json.dumps({**json.loads(file.read_text()), "base_model_name_or_path": base}))
        with pytest.raises(ModelPathError, match=rf"base_model_name_or_path in {file}"):
            trainer_of(str(tmp_path / "adapters"))


def test_a_given_model_of_which_nothing_learns_is_refused_with_the_remedy(talker, tmp_path) -> None:
    write_adapters(tmp_path, talker)

    def loaded(**options: Any) -> Any:
        return peft.PeftModel.from_pretrained(copy.deepcopy(talker["model"]), tmp_path / "adapters", **options)

    tokenizer, frozen = talker["tokenizer"], copy.deepcopy(talker["model"]).requires_grad_(False)
    for model in (loaded(), loaded().merge_and_unload(), frozen):
        with pytest.raises(SettingsError, match=r"is_trainable=True\).*lora_rank.*requires_grad_\(True\)"):
            trainer_of(model, tokenizer=tokenizer, run_path=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    for model, options in ((loaded(is_trainable=True), {}), (frozen, {"lora_rank": 2})):
        with trainer_of(model, tokenizer=tokenizer, **options) as trainer:
            trainer.fit()


@pytest.mark.parametrize("first", representatives(["default", "first"], "first"))
def test_of_several_adapters_the_active_one_learns_and_is_what_a_checkpoint_holds(first, talker, tmp_path) -> None:
    talker["model"].save_pretrained(tmp_path / "base")

    def with_two() -> Any:
        base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
        model = peft.get_peft_model(base, lora(), adapter_name=first)
        model.add_adapter("second", lora())
        add(-0.02, model, f"lora_B.{first}")
        add(0.02, model, "lora_B.second")
        model.set_adapter("second")
        return model

    trained_and_resumed(with_two, tmp_path, tokenizer=talker["tokenizer"]).cleanup()


def test_a_model_with_adapters_and_sampling_options_as_transformers_gives_it_is_saved_and_resumed(
    talker, tmp_path
) -> None:
    """Without `do_sample`, as published models have them, transformers refuses to save the options."""
    talker["model"].save_pretrained(tmp_path / "base")

    def given() -> Any:
        model = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
        model.generation_config.update(do_sample=False, temperature=0.6)
        model.add_adapter(lora())
        return model

    with trained_and_resumed(given, tmp_path, tokenizer=talker["tokenizer"]) as trainer:
        trainer.fit()
        torch.testing.assert_close(logits(load_model(tmp_path / "run/policy")), logits(trainer.model))
