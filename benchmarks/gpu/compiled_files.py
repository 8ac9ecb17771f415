"""Keeps compiled Python files between the processes of the checks. Needs nothing but Python.

The packages' folder may be read-only or without compiled files: then every process would compile torch, transformers and
sympy again, for about 10 s.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from importlib.util import cache_from_source, find_spec
from pathlib import Path

PACKAGES = ("torch", "transformers", "sympy")
VARIABLE = "PYTHONPYCACHEPREFIX"


def keep_compiled_files(packages: Iterable[str] = PACKAGES) -> None:
    """Stores compiled files in the user's cache folder, for this process and those that it starts, if a package has none.
    Call it before they are imported."""
    if sys.pycache_prefix or all(map(_is_compiled, packages)):
        return
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    os.environ[VARIABLE] = sys.pycache_prefix = str(cache / "midthought" / "compiled")
    write_compiled_files()


def _is_compiled(package: str) -> bool:
    spec = find_spec(package)
    return spec is None or spec.origin is None or Path(cache_from_source(spec.origin)).exists()


def write_compiled_files() -> None:
    """In a process that was started with `-B`, as multiprocessing starts processes under PYTHONDONTWRITEBYTECODE."""
    if sys.pycache_prefix:
        sys.dont_write_bytecode = False
