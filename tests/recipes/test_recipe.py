"""Recipes are found by name, as folders of the package."""

import pytest

from midthought.errors import SettingsError
from midthought.recipes import find_recipe, recipe_names


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
