"""`midthought plan`: words, recipes, JSON, mistakes."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from midthought.cli import app
from midthought.config import ConfigStore, create_default_config
from midthought.errors import SettingsError
from midthought.plan.run_settings import plan_arguments


def invoke(*words: str):
    return CliRunner().invoke(app, ["plan", *words])


def test_json_has_every_part_in_bytes():
    found = json.loads(invoke("model=Qwen/Qwen3-0.6B", "--json").output)
    assert found["parameters"] == found["learning_parameters"] == 596_049_920
    parts = found["memory_bytes"]["learning"]
    assert sum(parts.values()) == found["total_bytes"]["learning"]
    assert parts["weights"] == 2 * 596_049_920


def test_what_does_not_fit_comes_with_settings_of_ours():
    found = json.loads(invoke("model=Qwen/Qwen3-8B", "gpus=8", "--json").output)
    assert found["fits"] is False
    assert found["fits_with"] == ["training.gradient_checkpointing=true"]


def test_a_recipes_settings_are_planned_and_words_change_them():
    words = ["--recipe", "feedback", "--config", "cluster", "training.micro_batch_tokens=8192", "gpus=8", "--json"]
    settings = json.loads(invoke(*words).output)["settings"]
    assert (settings["critic"], settings["engine"]) == ("none", "vllm")
    assert (settings["micro_batch_tokens"], settings["gpus"]) == (8192, 8)


def test_the_podcast_recipe_has_a_critic_and_a_reference():
    settings = json.loads(invoke("--recipe", "podcast", "--json").output)["settings"]
    assert (settings["critic"], settings["reference"], settings["engine"]) == ("separate", True, "local")
    assert settings["hidden_size"] == 128


@pytest.mark.parametrize(("training", "expected"), [({}, False), ({"kl_loss_coef": 0.1}, True)])
def test_a_kl_term_needs_a_reference(training, expected):
    config = create_default_config(training={**training, "micro_batch_tokens": 64})
    assert plan_arguments(config)["reference"] is expected


def test_with_verl_the_machines_are_those_of_its_profile():
    settings = json.loads(invoke("--recipe", "podcast", "--engine", "verl", "--json").output)["settings"]
    assert (settings["gpus"], settings["micro_batch_tokens"]) == (8, 16384)
    assert settings["engine_sleeps"] and settings["offload"]


RANKS = ("ray.num_learners=4", "ray.gpus_per_learner=1")
ACTORS = ("ray.use_ray=true", "ray.num_actors=3", "ray.gpus_per_actor=1")


@pytest.mark.parametrize(
    ("words", "gpus", "engine_gpus", "shard"),
    [
        ((*RANKS, *ACTORS), 7, 3, 4),
        (RANKS, 5, 1, 4),  # the training process samples
        (ACTORS, 4, 3, 1),  # the training process learns
        (
            (*RANKS, "ray.use_ray=true", "ray.num_actors=4", "ray.gpus_per_actor=0.4", "ray.colocate=true"),
            4,
            None,
            4,
        ),
        (("ray.use_ray=true", "ray.num_actors=3"), 1, None, None),  # on CPUs
        (("ray.num_learners=4",), 1, None, None),
    ],
)
def test_with_ray_the_machines_are_those_of_its_processes(words, gpus, engine_gpus, shard):
    settings = json.loads(invoke("--recipe", "podcast", *words, "--json").output)["settings"]
    assert (settings["gpus"], settings["engine_gpus"], settings["shard"]) == (gpus, engine_gpus, shard)


def test_an_engine_on_rays_workers_holds_weights_of_its_own():
    def parts(*words: str):
        return json.loads(invoke("--recipe", "podcast", *words, "--json").output)

    together, apart = parts(), parts(*ACTORS)
    assert together["memory_bytes"]["learning"]["engine's weights"] == 0
    assert apart["memory_bytes"]["sampling"]["engine's weights"] == 4 * apart["parameters"]
    colocated = parts(*RANKS, "ray.use_ray=true", "ray.num_actors=4", "ray.gpus_per_actor=0.4", "ray.colocate=true")
    assert colocated["memory_bytes"]["learning"]["engine's weights"] == 4 * apart["parameters"]


def rows(*words: str) -> dict[tuple[str, str], list[str]]:
    """The table of `--sizes` with the podcast recipe: (model, GiB) to its other cells."""
    lines = invoke("--recipe", "podcast", "--sizes", *words).output.splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {(name.removeprefix("Qwen/Qwen3-"), memory_gib): rest for name, memory_gib, *rest in cells}


def test_the_table_of_a_recipe_shows_what_train_chooses_and_refuses():
    chosen = rows()
    assert list(chosen) == [(name, gib) for name in ("0.6B", "1.7B", "4B", "8B") for gib in ("24", "48", "80")]
    limit, needed, settings, outcome = chosen["1.7B", "24"]
    assert limit == "21.6" and float(needed) < 21.6 and outcome == "starts"
    assert "`lora_rank=32`" in settings and "`gradient_checkpointing=false`" in settings
    before = rows("model.dtype=float32", "model.critic=separate", "model.lora_rank=0", "training.micro_batch_tokens=4096",
                  "training.gradient_checkpointing=false", "inference.max_num_seqs=128")  # fmt: skip
    limit, needed, settings, outcome = before["1.7B", "80"]
    assert needed == "103.6" and settings == "nothing"
    assert outcome == "refuses; it fits with `model.critic=shared`"
    assert before["8B", "24"][-1] == "refuses; no setting makes it fit"


def test_a_recipe_is_planned_with_what_train_would_choose():
    words = ("--recipe", "podcast", "model.local_path=Qwen/Qwen3-4B", "--json")
    large, small = (json.loads(invoke(*words, f"gpu={gpu}").output)["settings"] for gpu in ("h100", "rtx4090"))
    assert (large["dtype"], large["critic"], large["lora_rank"]) == ("bfloat16", "shared", 32)
    assert (large["micro_batch_tokens"], small["micro_batch_tokens"]) == (8192, 16_384)
    assert (large["gradient_checkpointing"], small["gradient_checkpointing"]) == (False, True)
    tiny = json.loads(invoke(*words, "gpu=rtx4090", "gpu_memory_gib=16").output)["settings"]
    assert tiny["max_num_seqs"] < small["max_num_seqs"] == 128
    verl = json.loads(invoke("--recipe", "podcast", "--engine", "verl", "--json").output)["settings"]
    assert (verl["critic"], verl["lora_rank"]) == ("separate", 0)


def test_a_made_model_is_counted_as_it_is_made():
    from midthought.learning.small_model import make_policy, make_tokenizer
    from midthought.plan.settings import PlanSettings
    from midthought.plan.shape import find_shape

    config = ConfigStore()
    tokenizer = make_tokenizer(["a few words to make a vocabulary of"], config.model.vocab_size)
    policy = make_policy(tokenizer, hidden_size=128, num_layers=4, num_heads=2, max_length=64, seed=0)
    shape = find_shape(PlanSettings(**{**plan_arguments(config), "vocab_size": len(tokenizer)}))
    assert shape.parameters == sum(parameter.numel() for parameter in policy.parameters())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("gpus=0",), "greater than or equal to 1"),
        (("gpu=h10",), "Did you mean 'h100'"),
        (("gpu_s=8",), "'gpu_s'"),
        (("training.batch_size=8",), "name the recipe with --recipe"),
        (("--config", "cluster"), "name the recipe with --recipe"),
        (("--sizes", "--json"), "leave --json and --engine out"),
        (("--recipe", "podcast", "--engine", "verk"), "Did you mean 'verl'"),
    ],
)
def test_a_mistake_is_told_with_its_remedy(words, message):
    with pytest.raises(SettingsError, match=message):
        raise invoke("model=Qwen/Qwen3-8B", *words).exception
