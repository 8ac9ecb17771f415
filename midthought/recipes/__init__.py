"""Recipes: data, reward and settings for one kind of training. Each is a folder, whose package has a `Recipe` named `recipe`."""

from __future__ import annotations

import pkgutil
from typing import TYPE_CHECKING

from midthought.config.references import load
from midthought.errors import SettingsError, near_names

if TYPE_CHECKING:
    from midthought.recipes.recipe import Recipe


def recipe_names() -> list[str]:
    """Returns the names of the recipes: the packages in this folder. They are not imported."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if module.ispkg)


def find_recipe(name: str) -> Recipe:
    """Returns a recipe. Raises `SettingsError` if there is none, with similar names."""
    if name not in recipe_names():
        raise SettingsError(f"unknown recipe {name!r}. {near_names(name, recipe_names())}")
    found: Recipe = load(f"{__name__}.{name}:recipe")
    return found
