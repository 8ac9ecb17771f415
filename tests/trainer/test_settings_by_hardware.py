"""The trainer replaces `auto` in its settings for its hardware, keeps that in the run folder, and refuses what does not fit."""

import copy
from pathlib import Path
from typing import Any

import pytest
from small_environments import Colours, settings

from midthought import RayPPOTrainer, SettingsError
from midthought.config import ConfigStore
from midthought.learning.model import has_adapters
from midthought.models.pretrained import save_model
from midthought.plan.choices import Choice
from midthought.plan.hardware import GIB, Hardware
from midthought.trainer.initial_policy import choose_settings, find_policy


@pytest.fixture
def path(talker: dict[str, Any], tmp_path: Path) -> str:
    save_model(talker["model"], talker["tokenizer"], tmp_path / "model")
    return str(tmp_path / "model")


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The trainer believes that its device, this CPU, is a GPU with so many GiB."""

    def believe(memory_gib: float) -> None:
        hardware = Hardware("gpu", "a GPU", memory_gib)
        monkeypatch.setattr("midthought.trainer.initial_policy.find_hardware", lambda device: hardware)

    return believe


def chosen(trainer: RayPPOTrainer) -> tuple[object, ...]:
    model = trainer.config.model
    return model.dtype, model.critic, model.lora_rank, trainer.config.training.gradient_checkpointing


ON_GPU = ("bfloat16", "shared", 32, False)
ON_CPU = ("float32", "separate", 0, False)


def test_a_model_from_a_folder_learns_as_its_hardware_allows_also_after_resuming(
    path: str, on_gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings("gae").merged({"model": {"local_path": path}})
    on_gpu(24)
    with RayPPOTrainer(config, Colours(), run_path=tmp_path / "run") as trainer:
        assert chosen(trainer) == ON_GPU
        assert has_adapters(trainer.learner.policy) and trainer.learner.critic.is_shared
        trainer.fit()
    monkeypatch.undo()  # this CPU again
    for options, expected in (({"run_path": tmp_path / "run", "resume": True}, ON_GPU), ({}, ON_CPU)):
        with RayPPOTrainer(config, Colours(), **options) as trainer:
            assert chosen(trainer) == expected


def test_a_model_object_gets_no_adapters(talker: dict[str, Any]) -> None:
    with RayPPOTrainer(settings("gae"), Colours(), **talker) as trainer:
        assert chosen(trainer) == ON_CPU and not has_adapters(trainer.learner.policy)


def test_the_sizes_of_a_model_objects_update_are_chosen_with_its_plan(talker: dict[str, Any], on_gpu: Any) -> None:
    on_gpu(24)
    with RayPPOTrainer(settings("gae"), Colours(), **talker) as trainer:
        training = trainer.config.training
        assert chosen(trainer)[1:] == ("shared", 0, False)
        assert (training.micro_batch_tokens, training.logits_mib) == (16_384, 512)
        trainer.fit()


def test_an_updates_passes_hold_a_group_with_the_longest_prompt_of_the_data_set(talker: dict[str, Any]) -> None:
    rows = [{"question": "Say a colour. " * number, "answer": "red"} for number in (1, 300)]
    config = settings("grpo", batch_size=16, group_size=16).merged({"inference": {"deterministic": False}})
    with RayPPOTrainer(config, dataset=rows, **talker) as trainer:
        tasks, messages = trainer.setup.all_tasks, trainer.setup.policy.messages
        longest = max(len(trainer.renderer.prompt(messages(task))) for task in tasks)
        own = 40 + 1 + -(-(longest - 1) // 8)
        assert trainer.config.training.micro_batch_tokens == longest - 1 + 16 * own > 4096
        line = f"Prompts: {longest:,} tokens at most, computed once per 16 of 16 samples"
        assert line in trainer.setup.choice.table()
    with RayPPOTrainer(config, Colours(), **talker) as trainer:
        line = "Prompts: 1,024 tokens at most (assumed), computed once per 16 of 16 samples"
        assert line in trainer.setup.choice.table()


def test_the_weights_of_a_model_object_are_in_the_memory_that_it_may_use(talker: dict[str, Any], on_gpu: Any) -> None:
    model = talker["model"]
    num_bytes = sum(parameter.nbytes for parameter in model.parameters())
    on_gpu(2.0)
    choice = choose_settings(settings("gae"), model)
    assert choice.hardware.memory_gib == pytest.approx(2 + num_bytes / GIB, rel=1e-9)


def test_adapters_of_a_model_object_are_planned_if_they_are_on_all_linear_layers(talker: dict[str, Any]) -> None:
    from peft import LoraConfig, get_peft_model

    def choice(**lora: Any) -> Choice:
        model = copy.deepcopy(talker["model"])
        return choose_settings(settings("gae"), get_peft_model(model, LoraConfig(r=4, task_type="CAUSAL_LM", **lora)))

    plan = choice(target_modules="all-linear").plan
    assert plan is not None and plan.lora_rank == 4
    for other in (choice(target_modules=["q_proj"]), choice(target_modules="all-linear", use_dora=True)):
        assert other.plan is None and "only LoRA on all linear layers is planned" in other.unknown


def test_a_model_that_does_not_fit_is_refused_before_its_weights_are_loaded(
    path: str, on_gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_gpu(0.001)
    monkeypatch.setattr(
        "midthought.trainer.initial_policy.load_model", lambda *given: pytest.fail("weights are loaded")
    )
    with pytest.raises(SettingsError, match="does not fit"):
        RayPPOTrainer(settings("gae").merged({"model": {"local_path": path}}), Colours())


@pytest.mark.parametrize(("device", "expected"), [("auto", "cpu"), ("meta", "meta")])
def test_a_made_model_is_where_the_settings_say(device: str, expected: str) -> None:
    """torch has the device `meta` everywhere."""
    config = ConfigStore.model_validate({"model": {"vocab_size": 300, "hidden_size": 32, "device": device}})
    model, _ = find_policy(config, None, None, texts=lambda: ["a small sea", "the sea is small"])
    assert model.device.type == expected
