"""Recipes: data, reward and settings that make the library do one job. Each is a folder with its YAML files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from midthought.config import RecipeConfig
from midthought.errors import SettingsError, near_names

RECIPES = ("podcast", "feedback")


class Recipe(Protocol):
    """What the command line asks of a recipe's package."""

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
        """Run the recipe in the folder `path`; the summary."""
        ...

    def config_class(self) -> type[RecipeConfig]:
        """The class of its settings."""
        ...


def find_recipe(name: str) -> Recipe:
    """The recipe of this name. Raises SettingsError with the near names."""
    if name not in RECIPES:
        raise SettingsError(f"unknown recipe {name!r}. {near_names(name, RECIPES)}")
    from importlib import import_module

    recipe: Recipe = import_module(f"midthought.recipes.{name}")
    return recipe
