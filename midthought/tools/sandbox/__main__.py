"""Runs untrusted code: reads a job from standard input, sets limits, isolates the process, then runs the code like a
notebook cell (the value of a last expression is printed). Exits with 0, 1 (it raised) or 97 (no sandbox).
"""

from __future__ import annotations

import ast
import contextlib
import json
import linecache
import os
import resource
import sys
import traceback
import types
from typing import Any

from isolation import isolate

RAISED, NO_SANDBOX = 1, 97
_NAME = "<code>"
_MAX_OPEN_FILES = 64


def main() -> int:
    job = json.load(sys.stdin.buffer)
    os.dup2(os.open(os.devnull, os.O_RDONLY), sys.stdin.fileno())
    sys.path.pop(0)  # this folder
    set_limits(job)
    try:
        isolate()
    except OSError as error:
        if job["require_isolation"]:
            print(error)
            return NO_SANDBOX
    return run(job["code"])


def set_limits(job: dict[str, Any]) -> None:
    """Sets the resource limits. The limit on processes has no effect for root; `isolate` prevents them."""
    limits = {
        "RLIMIT_CPU": job["max_cpu_seconds"],
        "RLIMIT_AS": job["max_memory_bytes"],
        "RLIMIT_FSIZE": job["max_disk_bytes"],
        "RLIMIT_NOFILE": _MAX_OPEN_FILES,
        "RLIMIT_NPROC": 0,
        "RLIMIT_CORE": 0,
    }
    for name, wanted in limits.items():
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(ValueError, OSError):  # macOS rejects some
            resource.setrlimit(kind, (limit, limit))


def run(code: str) -> int:
    main_module = types.ModuleType("__main__")
    sys.modules["__main__"] = main_module
    sys.argv = [_NAME]
    linecache.cache[_NAME] = (len(code), None, code.splitlines(keepends=True), _NAME)
    try:
        tree = ast.parse(code, _NAME)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, _NAME, "exec", dont_inherit=True), main_module.__dict__)  # noqa: S102  # isolated
        if last is not None:
            exec(compile(ast.Interactive([last]), _NAME, "single", dont_inherit=True), main_module.__dict__)  # noqa: S102
    except SystemExit:
        raise
    except BaseException as error:
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename != _NAME:
            frames = frames.tb_next
        traceback.print_exception(type(error), error, frames)
        return RAISED
    return 0


if __name__ == "__main__":
    sys.exit(main())
