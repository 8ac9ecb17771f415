"""The `midthought` command, one module per group of commands.

Exit codes: 0 done; 1 `doctor` or `feedback check` has a finding, a model gave no reply, or the run of `watch` ended early;
2 a mistake of the user, which one line explains; 3 training was stopped because it cannot learn; 70 an error of this library,
with a traceback; 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import traceback
import warnings
from importlib.metadata import version
from typing import Annotated

import typer

from midthought.cli import feedback, memory, runs, serving
from midthought.errors import TrainingStoppedError, UserError
from midthought.files.regular import storage_error
from midthought.report.console import printable, tell

MISTAKE, TRAINING_STOPPED, INTERNAL_ERROR = 2, 3, os.EX_SOFTWARE

app = typer.Typer(
    help="Train language models to use tools while they reason.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    runs.init,
    runs.train,
    runs.evaluate,
    runs.doctor,
    runs.settings,
    runs.report,
    runs.compare,
    runs.watch,
    serving.chat,
    serving.serve,
    serving.export,
):
    app.command()(command)
app.add_typer(memory.app, name="memory")
app.add_typer(serving.app, name="engine")
app.add_typer(feedback.app, name="feedback")


def _print_version(is_requested: bool) -> None:
    if is_requested:
        tell(f"midthought {version('midthought')}")
        raise typer.Exit


@app.callback()
def _options(
    is_version_requested: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None: ...


class PrintableFormatter(logging.Formatter):
    """Formats log messages for a terminal, as `tell` does."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def main() -> None:
    """Entry point of the `midthought` command."""
    # Batches differ in shape: with oneDNN's default capacity its cache grows to gigabytes.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "32")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # the help has characters that not every encoding has
    if logging.lastResort is not None:  # for logs that nothing else has configured
        logging.lastResort.setFormatter(PrintableFormatter())
    warnings.showwarning = lambda message, *_: tell(f"warning: {message}", err=True)
    try:
        app(prog_name="midthought")
    except UserError as error:
        tell(f"midthought: {error}", err=True)
        sys.exit(TRAINING_STOPPED if isinstance(error, TrainingStoppedError) else MISTAKE)
    except Exception as error:
        if found := storage_error(error):
            tell(f"midthought: {found}", err=True)
            sys.exit(MISTAKE)
        tell(traceback.format_exc(), err=True)
        tell(
            f"midthought: this is an error of midthought or of your own code ({type(error).__name__}), see above",
            err=True,
        )
        sys.exit(INTERNAL_ERROR)
