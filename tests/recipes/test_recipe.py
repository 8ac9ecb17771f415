"""A recipe of the user: one file with a `Recipe`, found in the library's folder or by `module:name`."""

import sys
from pathlib import Path

import pytest

from midthought import recipes
from midthought.errors import SettingsError
from midthought.recipes import find_recipe, recipe_names

ECHO = """
from pydantic import Field

from midthought.config import RecipeConfig, Section
from midthought.recipes.recipe import Recipe

class EchoSection(Section):
    num_echoes: int = 1
    \"\"\"Number of echoes.\"\"\"

class EchoConfig(RecipeConfig):
    echo: EchoSection = Field(default_factory=EchoSection)

class EchoRun:
    def __init__(self, config, path, console, stage, from_path, resume, allow_changes):
        self.config, self.path, self.stage = config, path, stage

    def train(self):
        self.path.mkdir(parents=True)
        echoes = "echo " * self.config.echo.num_echoes
        (self.path / "said").write_text(f"{echoes}{self.stage} {self.config.training.seed}")
        return {"num_echoes": self.config.echo.num_echoes}

recipe = Recipe(__name__, EchoConfig, EchoRun, presets={"tiny": {"echo": {"num_echoes": 2}}, "loud": {"echo": {"num_echoes": 3}}})
"""


@pytest.fixture
def call(call, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield call
    for name in ("echo_recipe", "midthought.recipes.echo"):
        sys.modules.pop(name, None)


@pytest.fixture
def echo(tmp_path, call) -> str:
    (tmp_path / "echo_recipe.py").write_text(ECHO, "utf-8")
    return "echo_recipe:recipe"


def test_the_recipes_of_the_library_are_its_folders():
    assert {"feedback", "podcast"} <= set(recipe_names())
    assert [find_recipe(name).name for name in recipe_names()] == recipe_names()


def test_a_new_folder_beside_them_is_a_recipe(tmp_path, call, monkeypatch):
    (tmp_path / "more" / "echo").mkdir(parents=True)
    (tmp_path / "more" / "echo" / "__init__.py").write_text(ECHO, "utf-8")
    monkeypatch.setattr(recipes, "__path__", [*recipes.__path__, str(tmp_path / "more")])
    assert "echo" in recipe_names()
    assert call("train", "echo", "--run", "run", "training.seed=7")[0] == 0
    assert Path("run/said").read_text() == "echo echo all 7"
    code, text, _ = call("settings", "echo")
    assert code == 0 and "num_echoes" in text


def test_a_module_of_the_user_is_trained_evaluated_and_documented_by_its_name(echo, call, tmp_path):
    assert call("train", echo, "--run", "run", "--config", "loud")[0] == 0
    assert Path("run/said").read_text() == "echo echo echo all 0"
    assert call("evaluate", str(tmp_path), "echo.num_echoes=4", "--recipe", echo, "--run", "evaluation")[0] == 0
    assert Path("evaluation/said").read_text() == "echo echo echo echo evaluate 0"
    code, text, _ = call("settings", echo)
    assert code == 0 and "num_echoes" in text


def test_a_run_without_a_given_folder_is_named_after_the_recipe(echo, call):
    assert call("train", echo)[0] == 0
    assert [path.name.startswith("echo_recipe-") for path in Path("runs").iterdir()] == [True]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("echo_recipe:recip", r"'echo_recipe:recip': echo_recipe has no 'recip'\. Did you mean 'recipe'"),
        ("echo_recip:recipe", r"'echo_recip:recipe': there is no module 'echo_recip' on this machine"),
        ("echo_recipe:EchoConfig", r"echo_recipe:EchoConfig is no Recipe but a ModelMetaclass"),
        ("echo", r"unknown recipe 'echo'\..*Known: .*podcast"),
    ],
)
def test_a_name_that_leads_to_no_recipe_is_refused(echo, name, message):
    with pytest.raises(SettingsError, match=message):
        find_recipe(name)


def test_a_recipe_without_verl_says_so(echo, call):
    code, _, error = call("train", echo, "--run", "run", "--dry-run", "--engine", "verl")
    assert code == 2 and "the recipe 'echo_recipe' does not support verl yet; leave --engine out" in error
