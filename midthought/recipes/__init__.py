"""Recipes: data, reward and settings for one kind of training. Each is a folder, whose package has a `Recipe` named `recipe`."""

from __future__ import annotations

import pkgutil
from typing import TYPE_CHECKING

from midthought.config.references import load, load_from_here
from midthought.errors import SettingsError, near_names

if TYPE_CHECKING:
    from midthought.recipes.recipe import Recipe


def recipe_names() -> list[str]:
    """Returns the names of the library's recipes: the packages in this folder. They are not imported."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if module.ispkg)


def find_recipe(name: str) -> Recipe:
    """Returns a recipe of the library, or that of your own module as `module:name`; the working directory is searched, too.

    Raises `SettingsError` if there is none, with similar names.
    """
    from midthought.recipes.recipe import Recipe

    if ":" in name:
        found = load_from_here(name)
    elif name in recipe_names():
        found = load(f"{__name__}.{name}:recipe")
    else:
        raise SettingsError(f"unknown recipe {name!r}. {near_names(name, recipe_names())}")
    if not isinstance(found, Recipe):
        raise SettingsError(
            f"{name} is no Recipe but a {type(found).__name__}; give a midthought.recipes.recipe.Recipe"
        )
    return found
