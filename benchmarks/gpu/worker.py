"""Process that runs the requested checks one after another and sends every figure back at once."""

from __future__ import annotations

import faulthandler
import importlib
import os
import time
import traceback
from multiprocessing.connection import Connection

from benchmarks.gpu.findings import Check, NotRunError, Report, Status
from benchmarks.gpu.machine import Machine


def serve(pipe: Connection, device: str, is_tiny: bool, model_names: tuple[str, ...]) -> None:
    """Sends the device's name, then answers `(check, seconds)` with its findings and `(status, reason)`. After an error this
    process ends, for the device may be in a state in which no later check runs."""
    os.setsid()  # a process group of its own, which the parent can end as a whole
    faulthandler.enable()  # the parent sends SIGABRT to a check that hangs: its stack is printed
    try:
        machine = Machine(device, is_tiny=is_tiny, model_names=model_names)
        pipe.send(machine.device_name)
        status = Status.OK
        while status is not Status.ERROR:
            check, seconds = pipe.recv()
            machine.deadline = time.monotonic() + seconds
            status, reason = run_check(check, machine, Report(pipe.send))
            machine.clean()
            pipe.send((status, reason))
    except (EOFError, BrokenPipeError):
        return


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
