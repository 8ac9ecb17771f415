"""`midthought doctor SCRIPT`: runs a Python file up to its first `Trainer.fit`, which is replaced by `Trainer.check`."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import runpy
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from midthought.checks.before import Report, examine, refusal
from midthought.errors import MidthoughtError, SettingsError
from midthought.trainer.sft import SftStage
from midthought.trainer.trainer import Trainer


class _Examined(BaseException):
    """Ends the file after the examination."""

    def __init__(self, report: Report) -> None:
        super().__init__("the file calls fit(), and was examined")
        self.report = report


def examine_script(path: str | Path, arguments: Sequence[str] = ()) -> Report:
    """Runs the file as `python FILE ARGUMENTS` does. The report is of the trainer whose `fit` is called first.

    `sft` reads its demonstrations and takes no step. What the file prints is dropped. An error of this library that the file
    raises before is a finding; others are raised. Raises `SettingsError` if there is no such file, or if it calls no `fit`.
    """
    if not Path(path).is_file():
        raise SettingsError(f"{path}: there is no such file; give a Python file that calls Trainer.fit()")
    began = time.perf_counter()
    report = _run(Path(path), arguments)
    report.seconds = time.perf_counter() - began
    return report


def _run(path: Path, arguments: Sequence[str]) -> Report:
    try:
        with _as_program(path, arguments), contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO(), "utf-8")):
            runpy.run_path(str(path), run_name="__main__")
    except _Examined as examined:
        return examined.report
    except MidthoughtError as error:
        report = Report()
        report.findings.append(refusal(error))
        return report
    except SystemExit as end:
        remedy = "" if isinstance(end.code, str) else "; give its arguments after --"
        raise SettingsError(f"{path} ended before it called fit() with: {end.code}{remedy}") from None
    raise SettingsError(f"{path} has ended and called no Trainer.fit(); give the file that trains")


@contextlib.contextmanager
def _as_program(path: Path, arguments: Sequence[str]) -> Iterator[None]:
    """Sets the arguments and the folder of the file, and replaces `fit` and the steps of `sft`."""
    skipped: list[str] = []

    def examine_at_fit(trainer: Trainer, *_: Any, **__: Any) -> None:
        setup = trainer.setup
        if skipped:
            setup = dataclasses.replace(setup, why_not_sampled=skipped[0])
        raise _Examined(examine(setup))

    def take_no_step(*_: Any) -> None:
        skipped.append("the supervised steps come first, and they are not taken here; call check() after sft()")

    with (
        mock.patch.object(sys, "argv", [str(path), *arguments]),
        mock.patch.object(sys, "path", [str(path.resolve().parent), *sys.path]),
        mock.patch.object(Trainer, "fit", examine_at_fit),
        mock.patch.object(SftStage, "train", take_no_step),
    ):
        yield
