"""The checks of the library, one module per subject. Every module of this folder is imported, so its checks are registered."""

from __future__ import annotations

import pkgutil
from importlib import import_module

_FIRST = ("machine", "tokens", "calls", "lengths", "data", "movement")
"""Modules whose checks run first: the fast ones."""


def import_checks() -> None:
    """Imports every module of this folder."""
    others = sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name not in _FIRST)
    for name in (*_FIRST, *others):
        import_module(f"{__name__}.{name}")


import_checks()
