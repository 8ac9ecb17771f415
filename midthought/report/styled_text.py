"""Writes styled text to a terminal piece by piece, without a line end after each piece."""

from __future__ import annotations

from typing import IO

from midthought.report.console import printable


class StyledStream:
    """Text with rich's styles; plain text if the stream is no terminal. The terminal wraps long lines."""

    def __init__(self, out: IO[str] | None = None) -> None:
        from rich.console import Console

        self._console = Console(file=out, highlight=False, markup=False, emoji=False, soft_wrap=True)

    def write(self, text: str, style: str = "") -> None:
        """Writes the text without control characters."""
        from rich.text import Text

        self._console.print(Text(printable(text), style=style), end="")
