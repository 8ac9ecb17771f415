"""What a run was started with: the command, the versions of the packages, the machine. Kept in `settings_history.yaml`."""

from __future__ import annotations

import platform
import shlex
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PACKAGES = ("midthought", "torch", "transformers", "tokenizers", "peft", "vllm", "ray", "numpy")


def command() -> str:
    """Returns the command line of this process, as a shell reads it."""
    program, *arguments = sys.argv or [""]
    return shlex.join([Path(program).name, *arguments])


def versions() -> dict[str, str]:
    """Returns the installed versions of Python and of the packages that matter for results, without importing them."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return {**found, "platform": platform.platform(terse=True)}
