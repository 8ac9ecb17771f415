"""Recipes: data, reward and settings for one kind of training. Each is a folder with its YAML files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from midthought.config import RecipeConfig
from midthought.errors import SettingsError, near_names

RECIPES = ("podcast", "feedback")


class Recipe(Protocol):
    """Interface of a recipe's package, used by the command line."""

    def run(
        self,
        path: Path,
        console: Any,
        *,
        words: Sequence[str],
        config: Path | None,
        stage: str,
        from_path: Path | None,
        resume: bool,
        allow_changes: bool = False,
    ) -> dict[str, Any]:
        """Runs the recipe in the folder `path` and returns the summary."""
        ...

    def config_class(self) -> type[RecipeConfig]:
        """Returns the class of the recipe's settings."""
        ...


def find_recipe(name: str) -> Recipe:
    """Returns the recipe with this name. Raises `SettingsError` with similar names if there is none."""
    if name not in RECIPES:
        raise SettingsError(f"unknown recipe {name!r}. {near_names(name, RECIPES)}")
    from importlib import import_module

    recipe: Recipe = import_module(f"midthought.recipes.{name}")
    return recipe
