"""The setup package's module of this name: the public names of `midthought`, among them its engines and managers."""

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    """Returns a public name of `midthought`. The other packages that were modules of the setup package use it, too."""
    public = importlib.import_module("midthought")
    if name in public.__all__:
        return getattr(public, name)
    raise AttributeError(f"no public name {name!r}; docs/api.md lists the public names")
