"""Output of the commands. Texts of users, models, tools and servers reach the terminal without control characters."""

from __future__ import annotations

import logging
import shutil
import sys
import warnings

import typer

from midthought.report.console import printable


def tell(text: object, *, err: bool = False) -> None:
    """Prints the text, on standard error with `err`, without characters that move the cursor or change the writing direction."""
    typer.echo(printable(str(text)), err=err)


def program() -> str:
    """Returns how a shell starts this command: by its name if it is on the path, otherwise as it was started."""
    return "midthought" if shutil.which("midthought") else sys.argv[0]


class PrintableFormatter(logging.Formatter):
    """Formats log messages for a terminal, as `tell` does."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def make_logs_printable() -> None:
    """Applies `PrintableFormatter` to warnings if nothing else has configured the logs."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(PrintableFormatter())


def shorten_warnings() -> None:
    """Prints a Python warning as one line, without the place in the source and its code."""
    warnings.showwarning = lambda message, *_: tell(f"warning: {message}", err=True)
