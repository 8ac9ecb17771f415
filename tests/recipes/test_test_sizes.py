"""The number of test questions follows from the size of a given model; a small model answers all."""

import json
from pathlib import Path

import pytest

from midthought.plan.choices import ARM_WORK, MIN_QUESTIONS, as_recorded, choose, resolve
from midthought.plan.hardware import Hardware
from midthought.recipes import find_recipe

MOST = {
    ("podcast", "questions", "num_test"): 440,
    ("podcast", "questions", "num_test_no_memory"): 200,
    ("feedback", "problems", "num_test"): 800,
}
LAPTOP = Hardware("cpu", "a laptop", 24.0)


def model(folder: Path, hidden_size: int, num_layers: int) -> str:
    sizes = {"hidden_size": hidden_size, "num_hidden_layers": num_layers, "num_attention_heads": hidden_size // 32}
    sizes |= {"intermediate_size": 3 * hidden_size, "vocab_size": 8000, "tie_word_embeddings": True}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **sizes}), "utf-8")
    return str(folder)


def chosen(recipe: str, source: str, *words: str, hardware: Hardware = LAPTOP):
    given = [f"model.local_path={source}"] if source else []
    config, _ = find_recipe(recipe).begin(Path(), words=[*given, *words])
    return resolve(config, hardware, source=source, is_given=bool(source), has_vllm=False)


every = pytest.mark.parametrize(("recipe", "section", "key"), MOST)


@every
def test_the_small_model_of_the_demo_and_a_run_without_a_plan_play_all_questions(recipe, section, key):
    most = MOST[recipe, section, key]
    made = chosen(recipe, "")
    unknown = chosen(recipe, "Qwen/Qwen3-8B", hardware=Hardware("gpu", "a GPU", None))
    by_verl = choose(find_recipe(recipe).begin(Path(), words=[])[0], on_gpu=True, by_verl=True)
    for config in (made.config, unknown.config, by_verl):
        assert getattr(getattr(config, section), key) == most


@every
def test_a_slower_model_plays_fewer_questions_but_enough_for_an_interval(recipe, section, key, tmp_path):
    most, numbers = MOST[recipe, section, key], []
    for num_layers in (1, 8, 14, 20, 26, 60):
        choice = chosen(recipe, model(tmp_path / f"{num_layers}", 384, num_layers))
        numbers.append(getattr(getattr(choice.config, section), key))
        work = choice.plan.shape.computing_parameters * choice.plan.tokens_of_episode
        assert numbers[-1] == min(most, max(MIN_QUESTIONS, int(ARM_WORK["cpu"] / work)))
        assert f"{section}.{key}={numbers[-1]}" in choice.table()
    assert (numbers[0], numbers[-1]) == (most, MIN_QUESTIONS)
    assert numbers == sorted(numbers, reverse=True) and len(set(numbers)) > 2


@every
def test_a_number_that_is_set_or_that_the_run_started_with_stays(recipe, section, key, tmp_path):
    slow = model(tmp_path / "slow", 768, 40)
    given = chosen(recipe, slow, f"{section}.{key}=321")
    assert getattr(getattr(given.config, section), key) == 321
    (tmp_path / "config.yaml").write_text(chosen(recipe, slow).config.to_yaml(), "utf-8")
    config, _ = find_recipe(recipe).begin(Path(), words=[f"model.local_path={slow}"])
    faster = Hardware("gpu", "NVIDIA H100 80GB HBM3", 79.2)
    again = resolve(as_recorded(config, tmp_path / "config.yaml"), faster, source=slow, has_vllm=False)
    assert getattr(getattr(again.config, section), key) == MIN_QUESTIONS
