"""Runs code that nobody has looked at: reads a job from standard input, sets the limits, shuts the doors, then runs the
code like a notebook's cell (the value of a last expression is shown). Ends with 0, 1 (it raised) or 97 (no sandbox).
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import json
import linecache
import os
import resource
import signal
import struct
import sys
import traceback
import types
from typing import Any

import landlock
import seccomp

RAISED, NO_CAGE = 1, 97
_NAME = "<code>"
_MAX_OPEN_FILES = 64
_SYSTEM_FILES = (
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/usr/local/lib",
    "/etc/ld.so.cache",
    "/usr/share/zoneinfo",
    "/dev/urandom",
)
"""What imports of the standard library may still have to read: shared libraries and time zones."""
_NO_NEW_PRIVILEGES, _SET_DEATH_SIGNAL = 38, 1
_CAPABILITY_VERSION = 0x20080522


def main() -> int:
    job = json.load(sys.stdin.buffer)
    os.dup2(os.open(os.devnull, os.O_RDONLY), sys.stdin.fileno())
    sys.path.pop(0)  # this folder
    set_limits(job)
    try:
        shut_doors()
    except OSError as error:
        if job["require_isolation"]:
            print(error)
            return NO_CAGE
    return run(job["code"])


def set_limits(job: dict[str, Any]) -> None:
    """What the process may use. Whoever runs as root is not stopped from making processes by this, but by the doors."""
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
        with contextlib.suppress(ValueError, OSError):  # macOS refuses some
            resource.setrlimit(kind, (limit, limit))


def shut_doors() -> None:
    """No way out to files, the network and other processes. OSError where the system cannot do that, or not all of it."""
    if sys.platform != "linux":
        raise OSError(f"code can be shut in on Linux only, this is {sys.platform}")
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    give_up_capabilities(libc)
    landlock.shut(libc, readable=[*sys.path, *_SYSTEM_FILES], writable=[os.getcwd(), os.devnull])
    seccomp.shut(libc)


def give_up_capabilities(libc: ctypes.CDLL) -> None:
    """Root keeps its name but none of its powers, such as raising limits."""
    if libc.capset(struct.pack("=Ii", _CAPABILITY_VERSION, 0), bytes(24)) != 0:
        raise OSError(ctypes.get_errno(), f"capset: {os.strerror(ctypes.get_errno())}")


def run(code: str) -> int:
    main_module = types.ModuleType("__main__")
    sys.modules["__main__"] = main_module
    sys.argv = [_NAME]
    linecache.cache[_NAME] = (len(code), None, code.splitlines(keepends=True), _NAME)
    try:
        tree = ast.parse(code, _NAME)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, _NAME, "exec", dont_inherit=True), main_module.__dict__)
        if last is not None:
            exec(compile(ast.Interactive([last]), _NAME, "single", dont_inherit=True), main_module.__dict__)
    except SystemExit:
        raise
    except BaseException as error:
        place = error.__traceback__
        while place is not None and place.tb_frame.f_code.co_filename != _NAME:
            place = place.tb_next
        traceback.print_exception(type(error), error, place)
        return RAISED
    return 0


if __name__ == "__main__":
    sys.exit(main())
