"""What the shell offers after Tab: recipes, and settings with the values that they may have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, get_args, get_origin

import typer

from midthought.errors import UserError
from midthought.recipes import find_recipe, recipe_names


def recipes(incomplete: str) -> list[str]:
    """Returns the names of the library's recipes."""
    return [name for name in recipe_names() if name.startswith(incomplete)]


def recipes_and_library(incomplete: str) -> list[str]:
    """Returns the arguments of `midthought settings`."""
    return [name for name in (*recipe_names(), "library") if name.startswith(incomplete)]


def settings(context: typer.Context, incomplete: str) -> list[str]:
    """Returns settings of the command's recipe as `section.key=`; after `=`, the values if they are a fixed list."""
    try:
        store = find_recipe(context.params.get("recipe") or "").config_class()
    except UserError:
        return []
    key, has_value, _ = incomplete.partition("=")
    words = [f"{key}={value}" for value in _values(store, key)] if has_value else [f"{name}=" for name in _keys(store)]
    return [word for word in words if word.startswith(incomplete)]


def _keys(store: type) -> Iterator[str]:
    for section, field in store.model_fields.items():  # type: ignore[attr-defined]
        for key in getattr(field.annotation, "model_fields", {}):
            yield f"{section}.{key}"


def _values(store: type, key: str) -> tuple[str, ...]:
    section, _, name = key.partition(".")
    field = store.model_fields.get(section)  # type: ignore[attr-defined]
    kind = getattr(field.annotation, "model_fields", {}).get(name) if field is not None else None
    if kind is None:
        return ()
    if kind.annotation is bool:
        return ("true", "false")
    choices = [kind.annotation, *get_args(kind.annotation)]
    return tuple(str(value) for each in choices if get_origin(each) is Literal for value in get_args(each))
