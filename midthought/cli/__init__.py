"""The `midthought` command, one module per group of commands. A user's mistake prints one message and exits with code 2."""

from __future__ import annotations

import os
import sys

import typer

from midthought.cli import doctor, feedback, memory, planning, servers, training
from midthought.cli.output import make_logs_printable, tell
from midthought.errors import UserError

app = typer.Typer(
    help="Train language models to use tools while they reason.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (
    training.train,
    training.evaluate,
    doctor.doctor,
    planning.settings,
    planning.plan,
    planning.report,
    planning.compare,
    planning.guard,
):
    app.command()(command)
app.add_typer(memory.app, name="memory")
app.add_typer(servers.app, name="engine")
app.add_typer(feedback.app, name="feedback")


def main() -> None:
    """Entry point of the `midthought` command."""
    # Batches differ in shape: with oneDNN's default capacity its cache grows to gigabytes.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "32")
    make_logs_printable()
    try:
        app()
    except UserError as error:
        tell(f"midthought: {error}", err=True)
        sys.exit(2)
