"""Process that runs the requested checks one after another and sends every figure back at once.

Torch is imported when the process serves, not with this module, so that compiled files are kept (`compiled_files`).
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import os
import signal
import time
import traceback
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.gpu.compiled_files import write_compiled_files
from benchmarks.gpu.findings import CHECKS, Check, NotRunError, Report, Status

if TYPE_CHECKING:
    from benchmarks.gpu.machine import Machine


class Started(NamedTuple):
    """The first message of a process: it has imported every check's module and initialized the device."""

    device_name: str


def serve(pipe: Connection, device: str, is_tiny: bool, model_names: tuple[str, ...]) -> None:
    """Sends `Started`, then answers `(check, seconds)` with its findings and `(status, reason)`. After an error this process
    ends, for the device may be in a state in which no later check runs."""
    os.setsid()  # a process group of its own, which the parent can end as a whole
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=False)  # from the parent: prints the stack of a check that hangs
    try:
        machine = start(device, is_tiny, model_names)
        pipe.send(Started(machine.device_name))
        status = Status.OK
        while status is not Status.ERROR:
            check, seconds = pipe.recv()
            machine.deadline = time.monotonic() + seconds
            status, reason = run_check(check, machine, Report(pipe.send))
            machine.clean()
            pipe.send((status, reason))
    except (EOFError, BrokenPipeError):
        return


def start(device: str, is_tiny: bool, model_names: tuple[str, ...]) -> Machine:
    """Imports all that the checks need, so that no check is charged for it, and makes the device ready."""
    write_compiled_files()
    from benchmarks.gpu.machine import Machine

    machine = Machine(device, is_tiny=is_tiny, model_names=model_names)
    for check in CHECKS:
        with contextlib.suppress(ImportError):  # the check itself reports it
            importlib.import_module(check.module)
    machine.initialize()
    return machine


def run_check(check: Check, machine: Machine, report: Report) -> tuple[Status, str]:
    """Status and reason; requirements that are not met are among the findings."""
    try:
        importlib.import_module(check.module).run(machine, report)
    except NotRunError as reason:
        return Status.NOT_RUN, str(reason)
    except ModuleNotFoundError as error:
        return Status.NOT_RUN, f"{error.name} is not installed"
    except Exception as error:
        traceback.print_exc()
        return Status.ERROR, f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
    return Status.OK, ""
