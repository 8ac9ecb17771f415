"""A recipe is found by name, and begins with the settings `own` for a given model, `tiny` for the model that a run makes."""

import json
from pathlib import Path

import pytest

from midthought import Trainer
from midthought.config import RecipeConfig, read_yaml
from midthought.errors import CheckpointError, ModelPathError, SettingsError
from midthought.plan.choices import choose, resolve
from midthought.plan.hardware import Hardware
from midthought.recipes import find_recipe, recipe_names
from midthought.recipes.recipe import run_of
from midthought.report.console import Console
from midthought.report.run_folder import RunFolder

RATE = {"podcast": "warmup", "feedback": "sft"}
RECIPES = list(RATE)


def started(recipe: str, *words: str, path: Path = Path("run"), **options) -> RecipeConfig:
    return find_recipe(recipe).begin(path, words=words, **options)[0]


def is_own(recipe: str, config: RecipeConfig) -> bool:
    return config.training.learning_rate == getattr(config, RATE[recipe]).learning_rate == "auto"


@pytest.fixture
def yaml(tmp_path):
    def write(text: str) -> Path:
        (tmp_path / "mine.yaml").write_text(text, "utf-8")
        return tmp_path / "mine.yaml"

    return write


@pytest.fixture
def run(tmp_path):
    def make(name: str, *, is_given: bool = False) -> Path:
        (tmp_path / name / "warmup").mkdir(parents=True)
        (tmp_path / name / "config.yaml").write_text("model: {}", "utf-8")
        (tmp_path / name / "progress.json").write_text(json.dumps({"is_given": is_given}), "utf-8")
        return tmp_path / name

    return make


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_model_in_a_yaml_file_is_trained_with_own_and_the_files_values_win(recipe, yaml):
    file = yaml("model: {local_path: some/model}\ntraining: {num_train_iters: 7}")
    config = started(recipe, "training.seed=3", config=file)
    assert is_own(recipe, config)
    assert (config.training.num_train_iters, config.training.seed, config.model.lora_alpha) == (7, 3, 32)
    assert not is_own(recipe, started(recipe, config=yaml("training: {num_train_iters: 7}")))
    assert is_own(recipe, started(recipe, "model.local_path=some/model", config=yaml("training: {seed: 3}")))
    with pytest.raises(SettingsError, match=r"model\.local_path=7: Input should be a valid string"):
        started(recipe, config=yaml("model: {local_path: 7}"))


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_model_to_begin_with_is_trained_with_own_unless_a_run_made_it(recipe, tmp_path, run):
    assert is_own(recipe, started(recipe, from_path=tmp_path))
    made, given = run("made"), run("given", is_given=True)
    assert [is_own(recipe, started(recipe, from_path=path)) for path in (made, given)] == [False, True]
    paths = [started(recipe, from_path=path).model.local_path for path in (made, given, tmp_path)]
    assert paths == ["", str(given), str(tmp_path)]  # the prompts of a given model describe the call
    (given / "config.yaml").write_text("model: {local_path: some/model}", "utf-8")
    assert started(recipe, from_path=given / "warmup").model.local_path == "some/model"


@pytest.mark.parametrize("recipe", RECIPES)
def test_tiny_is_refused_for_a_given_model(recipe, tmp_path):
    for words, options in ((["model.local_path=some/model"], {}), ([], {"from_path": tmp_path})):
        with pytest.raises(SettingsError, match=r"--config tiny is for the small model.*--config own"):
            started(recipe, *words, config=Path("tiny"), **options)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_given_model_learns_more_gently_than_one_that_knows_nothing_and_a_larger_one_more_so(recipe):
    tiny, section = started(recipe), RATE[recipe]
    for on_gpu in (False, True):
        own = choose(started(recipe, "model.local_path=some/model"), on_gpu=on_gpu)
        assert own.training.learning_rate <= tiny.training.learning_rate / 10
        assert getattr(own, section).learning_rate < getattr(tiny, section).learning_rate / 10
    config, machine = started(recipe, "model.local_path=some/model", "model.lora_rank=0"), Hardware("cpu", "a", 512.0)
    for size, rate in (("0.6B", 6.9e-5), ("8B", 1.8e-5)):
        resolved = resolve(config, machine, source=f"Qwen/Qwen3-{size}").config
        assert getattr(resolved, section).learning_rate == rate


@pytest.mark.parametrize("recipe", RECIPES)
def test_values_of_other_presets_stay_as_they_are_and_come_back_from_their_yaml(recipe, yaml):
    for name in ("seed", "cluster"):
        config = started(recipe, config=Path(name))
        assert find_recipe(recipe).config_class()().merged(read_yaml(yaml(config.to_yaml()))) == config
        config = choose(config, on_gpu=True)
        assert (config.model.dtype, config.model.lora_rank) == ("bfloat16", 0)
        assert config.training.learning_rate < 2e-5


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_resumed_run_keeps_its_choices_whatever_file_is_given(recipe, tmp_path):
    chosen = choose(started(recipe, "model.local_path=some/model"), on_gpu=True)
    (tmp_path / "config.yaml").write_text(chosen.to_yaml(), "utf-8")
    (tmp_path / "mine.yaml").write_text(f"{RATE[recipe]}: {{num_steps: {getattr(chosen, RATE[recipe]).num_steps}}}")
    for words in ("model.local_path=some/model",), ():
        for config in (None, Path("own"), tmp_path / "mine.yaml"):
            assert started(recipe, *words, path=tmp_path, config=config, resume=True) == chosen


@pytest.mark.parametrize("name", ["config.yaml", "progress.json"])
def test_settings_and_progress_of_a_damaged_run_are_not_used(name, tmp_path):
    run = RunFolder(tmp_path / "run").create()
    run.write_file("config.yaml", RecipeConfig().to_yaml())
    run.write_file("progress.json", '{"is_given": false}\n')
    run.unlock()
    (run.path / name).write_bytes((run.path / name).read_bytes()[:-9])
    for options in (
        {"path": tmp_path / "e", "stage": "evaluate", "from_path": run.path},
        {"path": tmp_path / "n", "stage": "rl", "from_path": run.path / "policy"},
        {"path": run.path, "resume": True},
    ):
        with pytest.raises(CheckpointError, match=f"is not whole: {name} has"):
            started("podcast", **options)


def test_a_trainers_own_run_is_a_model_whose_settings_are_no_recipes(tmp_path, monkeypatch):
    rows, sizes = [{"question": "a", "answer": "b"}], {"hidden_size": 64, "num_layers": 1, "num_heads": 2}
    with Trainer(dataset=rows, num_train_iters=0, run_path=tmp_path / "run", **sizes) as trainer:
        trainer.fit()
    damaged = tmp_path / "damaged"
    (damaged / "policy").mkdir(parents=True)
    (damaged / "policy" / "tokenizer.json").touch()
    monkeypatch.setenv("HOME", str(tmp_path))
    for recipe in RECIPES:
        options = {"words": ["model.dtype=float32"], "stage": "evaluate"}
        evaluation = find_recipe(recipe).make_run(tmp_path / "e", Console(), from_path=Path("~/run"), **options)
        assert evaluation.from_path is None and evaluation.beginning == str(tmp_path / "run/policy")
        without = find_recipe(recipe).make_run(tmp_path / "e", Console(), from_path=damaged, **options)
        message = r"damaged/policy is not whole: config\.json .* is missing; restore it"
        with pytest.raises(ModelPathError, match=message):
            _ = without.beginning
    assert run_of(tmp_path / "run" / "policy") is None


def test_the_run_of_a_control_arms_checkpoint_is_the_recipes(tmp_path, run):
    outer = run("outer")
    arm = outer / "arms/rft"
    (arm / "checkpoints/ppo/checkpoints/step_000001/policy").mkdir(parents=True)
    (arm / "progress.json").write_text('{"stage": "", "is_given": true}', "utf-8")
    assert run_of(arm / "checkpoints/ppo/checkpoints/step_000001/policy") == outer
    inner = run("outer/inner")
    assert run_of(inner) == inner


def test_the_recipes_are_the_folders_of_the_package_and_another_name_is_refused(call):
    assert {"feedback", "podcast"} <= set(recipe_names())
    assert [find_recipe(name).name for name in recipe_names()] == recipe_names()
    with pytest.raises(SettingsError, match=r"unknown recipe 'podcats'\. Did you mean 'podcast'"):
        find_recipe("podcats")
    code, text, _ = call("settings", "podcast")
    assert code == 0 and "num_test_no_memory" in text


def test_presets_for_verl_are_no_presets(tmp_path):
    with pytest.raises(SettingsError, match=r"seed\.verl"):
        find_recipe("podcast").begin(tmp_path, words=[], config=tmp_path / "seed.verl")
