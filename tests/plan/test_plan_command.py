"""`midthought plan`: words, recipes, JSON, mistakes."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from midthought.cli import app
from midthought.config import ConfigStore, create_default_config
from midthought.errors import SettingsError
from midthought.models.small_model import make_policy, make_tokenizer
from midthought.plan.choices import plan_of
from midthought.plan.run_settings import plan_arguments


def planned(*words: str) -> dict:
    return json.loads(CliRunner().invoke(app, ["plan", *words, "--json"]).output)


def settings_of_recipe(recipe: str, *words: str) -> dict:
    return planned("--recipe", recipe, *words)["settings"]


def test_json_has_every_part_in_bytes_and_settings_with_which_it_fits():
    found = planned("model=Qwen/Qwen3-0.6B")
    assert found["parameters"] == found["learning_parameters"] == 596_049_920
    parts = found["memory_bytes"]["learning"]
    assert sum(parts.values()) == found["total_bytes"]["learning"]
    assert parts["weights"] == 2 * 596_049_920
    large = planned("model=Qwen/Qwen3-8B", "gpus=8")
    assert (large["fits"], large["fits_with"]) == (False, ["training.gradient_checkpointing=true"])


def test_a_recipes_settings_are_planned_and_words_change_them():
    words = ["--config", "cluster", "training.micro_batch_tokens=8192", "gpus=8"]
    settings = settings_of_recipe("feedback", *words)
    assert (settings["critic"], settings["engine"]) == ("none", "vllm")
    assert (settings["micro_batch_tokens"], settings["gpus"]) == (8192, 8)
    settings = settings_of_recipe("podcast")
    assert (settings["critic"], settings["reference"], settings["engine"]) == ("separate", True, "local")
    assert settings["hidden_size"] == 128
    verl = settings_of_recipe("podcast", "--engine", "verl")
    assert (verl["gpus"], verl["micro_batch_tokens"], verl["critic"], verl["lora_rank"]) == (8, 16384, "separate", 0)
    assert verl["engine_sleeps"] and verl["offload"]


def test_a_kl_term_needs_a_reference():
    for training, expected in (({}, False), ({"kl_loss_coef": 0.1}, True)):
        config = create_default_config(training={**training, "micro_batch_tokens": 64})
        assert plan_arguments(config)["reference"] is expected


RANKS = ("ray.num_learners=4", "ray.gpus_per_learner=1")
ACTORS = ("ray.use_ray=true", "ray.num_actors=3", "ray.gpus_per_actor=1")
SHARED = (*RANKS, "ray.use_ray=true", "ray.num_actors=4", "ray.gpus_per_actor=0.4", "ray.colocate=true")


@pytest.mark.parametrize(
    ("words", "gpus", "engine_gpus", "shard"),
    [
        ((*RANKS, *ACTORS), 7, 3, 4),
        (RANKS, 5, 1, 4),  # the training process samples
        (ACTORS, 4, 3, 1),  # the training process learns
        (SHARED, 4, None, 4),
        (("ray.use_ray=true", "ray.num_actors=3"), 1, None, None),  # on CPUs
        (("ray.num_learners=4",), 1, None, None),
    ],
)
def test_with_ray_the_machines_are_those_of_its_processes(words, gpus, engine_gpus, shard):
    settings = settings_of_recipe("podcast", *words)
    assert (settings["gpus"], settings["engine_gpus"], settings["shard"]) == (gpus, engine_gpus, shard)


def test_an_engine_on_rays_workers_holds_weights_of_its_own():
    together, apart, colocated = (planned("--recipe", "podcast", *words) for words in ((), ACTORS, SHARED))
    assert together["memory_bytes"]["learning"]["engine's weights"] == 0
    assert apart["memory_bytes"]["sampling"]["engine's weights"] == 4 * apart["parameters"]
    assert colocated["memory_bytes"]["learning"]["engine's weights"] == 4 * apart["parameters"]


def test_a_recipe_is_planned_with_what_train_would_choose():
    words = ("podcast", "model.local_path=Qwen/Qwen3-4B")
    large, small = (settings_of_recipe(*words, f"gpu={gpu}") for gpu in ("h100", "rtx4090"))
    assert (large["dtype"], large["critic"], large["lora_rank"]) == ("bfloat16", "shared", 32)
    assert (large["micro_batch_tokens"], small["micro_batch_tokens"]) == (8192, 16_384)
    assert (large["gradient_checkpointing"], small["gradient_checkpointing"]) == (False, True)
    tiny = settings_of_recipe(*words, "gpu=rtx4090", "gpu_memory_gib=16")
    assert tiny["max_num_seqs"] < small["max_num_seqs"] == 128


def test_a_made_model_is_counted_as_it_is_made():
    tokenizer = make_tokenizer(["a few words to make a vocabulary of"], ConfigStore().model.vocab_size)
    policy = make_policy(tokenizer, hidden_size=128, num_layers=4, num_heads=2, max_length=64, seed=0)
    shape = plan_of(create_default_config(), "", {"vocab_size": len(tokenizer)}).shape
    assert shape.parameters == sum(parameter.numel() for parameter in policy.parameters())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("gpus=0",), "greater than or equal to 1"),
        (("gpu=h10",), "Did you mean 'h100'"),
        (("gpu_s=8",), "'gpu_s'"),
        (("training.batch_size=8",), "name the recipe with --recipe"),
        (("--config", "cluster"), "name the recipe with --recipe"),
        (("--recipe", "podcast", "--engine", "verk"), "Did you mean 'verl'"),
    ],
)
def test_a_mistake_is_told_with_its_remedy(words, message):
    with pytest.raises(SettingsError, match=message):
        raise CliRunner().invoke(app, ["plan", "model=Qwen/Qwen3-8B", *words]).exception
