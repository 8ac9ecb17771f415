"""Output of a run: stages with live bars in a terminal, as one line that is updated in a notebook, elsewhere as a few lines.

All output is plain text, never markup or control codes. rich draws the live view and the tables; plain tables are
written here, because rich would wrap them to the width of a terminal that does not exist.
"""

from __future__ import annotations

import os
import sys
import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, Protocol

from midthought.report.progress import Progress
from midthought.report.results import duration

if TYPE_CHECKING:
    from rich.console import RenderableType

PLAIN_SECONDS = 5.0
"""Maximum time between plain lines while there is progress."""
PLAIN_SHARE = 0.1
"""A plain line is also printed after this share of the stage,"""
PLAIN_PAUSE_SECONDS = 1.0
"""but never sooner than this."""
NOTEBOOK_SECONDS = 0.2
"""Minimum time between two updates of a notebook's line."""

BIDIRECTIONAL_CONTROLS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


class Console:
    """`quiet` prints tables and errors only; `plain` None means plain output if standard output is not a terminal.

    >>> console = Console(quiet=True)
    >>> with console.stage("Warm-up", total=2) as progress:
    ...     progress.advance(1, loss=0.5)
    """

    def __init__(
        self,
        *,
        quiet: bool = False,
        plain: bool | None = None,
        num_stages: int | None = None,
        out: IO[str] | None = None,
        err: IO[str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.quiet = quiet
        self.num_stages = num_stages
        """Number of stages, for `[2/6]`; None leaves the total out."""
        self._out = out
        self._err = err
        self._clock = clock
        self._stage = 0
        is_terminal = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self.plain = not is_terminal if plain is None else plain
        self._rich: Any = None

    @property
    def _stream(self) -> IO[str]:
        return self._out or sys.stdout

    # -- stages ------------------------------------------------------------------------------------------------

    @contextmanager
    def stage(self, title: str, *, total: int | None = None, unit: str = "steps") -> Iterator[Progress]:
        """A stage of the run; its last line shows how it ended and how long it took."""
        self._stage += 1
        number = f"{self._stage}/{self.num_stages}" if self.num_stages else f"{self._stage}"
        label = f"[{number}] {printable(title)}"
        progress = Progress(label, total=total, unit=unit, clock=self._clock)
        with self._shown(progress):
            yield progress

    @contextmanager
    def _shown(self, progress: Progress) -> Iterator[None]:
        """Shows a stage while it runs and its last line, unless the console is quiet."""
        if self.quiet:
            yield
            return
        line = notebook_line(self._stream) if self.plain else None
        write = line or self._print
        watch = self._watch_live(progress) if not self.plain else self._watch_plain(progress, line)
        try:
            with watch:
                yield
        except BaseException as error:
            stopped = isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit)
            write(self._last_line("–" if stopped else "✗", progress), style="yellow" if stopped else "red")
            raise
        write(self._last_line("✓", progress), style="green")

    def _last_line(self, mark: str, progress: Progress) -> str:
        of = f"/{progress.total:,}" if progress.total is not None and progress.done != progress.total else ""
        counted = f"{progress.done:,}{of} {progress.unit}" if progress.done or progress.total else ""
        parts = [counted, duration(progress.seconds), progress.metrics(sparks=self._can_encode("▁"))]
        return f"{mark} {progress.label}  {' · '.join(part for part in parts if part)}"

    @contextmanager
    def _watch_plain(self, progress: Progress, line: ShowText | None) -> Iterator[None]:
        """`line` shows each text in place of the last one; None: every text is a line of its own, so there are few."""
        of = f" ({progress.total:,} {progress.unit})" if progress.total else ""
        (line or self._print)(f"  {progress.label}{of}")
        last_time, last_done = self._clock(), 0

        def say(progress: Progress) -> None:
            nonlocal last_time, last_done
            passed = self._clock() - last_time
            share = (progress.done - last_done) / progress.total if progress.total else 0.0
            if line is not None:
                is_due = passed >= NOTEBOOK_SECONDS
            elif progress.done == progress.total or passed < PLAIN_PAUSE_SECONDS:
                is_due = False
            else:
                is_due = passed >= PLAIN_SECONDS or share >= PLAIN_SHARE
            if is_due:
                last_time, last_done = self._clock(), progress.done
                metrics = progress.metrics(sparks=line is not None)
                (line or self._print)(f"  {progress.label}  {progress.counts()}{' · ' if metrics else ''}{metrics}")

        progress.on_change = say
        yield

    @contextmanager
    def _watch_live(self, progress: Progress) -> Iterator[None]:
        from rich.live import Live

        def view() -> RenderableType:
            return _live_view(progress, bar_width=24 if self._rich_console().width >= 100 else 12)

        with Live(get_renderable=view, console=self._rich_console(), refresh_per_second=8, transient=True):
            yield

    # -- text --------------------------------------------------------------------------------------------------

    def note(self, text: str) -> None:
        """Prints a note, unless the console is quiet."""
        if not self.quiet:
            self._print(printable(text))

    def error(self, text: str) -> None:
        """Prints an error on standard error, also if the console is quiet."""
        stream = self._err or sys.stderr
        stream.write(_encodable(printable(text), stream) + "\n")
        stream.flush()

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Prints a table with numbers aligned right, also if the console is quiet. None is shown as a dash."""
        cells = [[_cell(value) for value in row] for row in rows]
        to_right = [all(_is_number(row[index]) for row in rows) for index in range(len(columns))]
        if self.plain:
            self._print(_plain_table(title, columns, cells, to_right))
            return
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(title=Text(title, style="bold"), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
        for name, right in zip(columns, to_right, strict=True):
            table.add_column(Text(printable(name)), justify="right" if right else "left")
        for row in cells:
            table.add_row(*(Text(cell) for cell in row))
        self._rich_console().print(table)

    def _print(self, text: str, *, style: str = "") -> None:
        if self.plain:
            self._stream.write(_encodable(text, self._stream) + "\n")
            self._stream.flush()
            return
        from rich.text import Text

        line = Text(text)
        if style:
            line.stylize(style, 0, 1)
        self._rich_console().print(line)

    def _can_encode(self, character: str) -> bool:
        return _encodable(character, self._stream) == character

    def _rich_console(self) -> Any:
        if self._rich is None:
            from rich.console import Console as RichConsole

            self._rich = RichConsole(file=self._out, force_terminal=True, highlight=False, markup=False, emoji=False)
        return self._rich


def _live_view(progress: Progress, *, bar_width: int) -> RenderableType:
    """Two lines: label, bar and counts; below them the metrics."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    bar = ProgressBar(
        total=progress.total or None,
        completed=progress.done,
        width=bar_width,
        pulse=progress.total is None,
        complete_style="cyan",
        finished_style="cyan",
    )
    line = Table.grid(padding=(0, 2))
    label = Text(f"  {progress.label}", style="bold", overflow="ellipsis", no_wrap=True)
    line.add_row(label, bar, Text(progress.counts(), no_wrap=True))
    metrics = Text(f"        {progress.metrics()}", style="cyan", overflow="ellipsis", no_wrap=True)
    return Group(line, metrics) if progress.fields else line


def printable(text: str) -> str:
    """Returns `text` without characters that move the cursor or change the writing direction; line feeds and tabs stay."""
    return "".join(
        sign
        for sign in text
        if sign in "\n\t" or (unicodedata.category(sign) not in ("Cc", "Cs") and sign not in BIDIRECTIONAL_CONTROLS)
    )


def _encodable(text: str, stream: IO[str]) -> str:
    """Replaces characters that the stream's encoding does not have."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, errors="replace").decode(encoding)


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _cell(value: object) -> str:
    if value is None:
        return "–"
    return f"{value:.3f}" if isinstance(value, float) else printable(str(value))


def _plain_table(title: str, columns: Sequence[str], cells: list[list[str]], to_right: list[bool]) -> str:
    rows = [[printable(name) for name in columns], *cells]
    widths = [max(len(row[index]) for row in rows) for index in range(len(columns))]
    lines = [
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, to_right, strict=True)
        ).rstrip()
        for row in rows
    ]
    rule = "  ".join("-" * width for width in widths)
    return "\n".join(["", printable(title), lines[0], rule, *lines[1:], ""])


class ShowText(Protocol):
    def __call__(self, text: str, *, style: str = "") -> None: ...


def notebook_line(stream: IO[str]) -> ShowText | None:
    """Returns a function that shows a text in place of its last one; None if the stream is not the output of a Jupyter kernel.

    A saved notebook has the last text. Styles are ignored.
    """
    if not type(stream).__module__.startswith("ipykernel."):
        return None
    from IPython.display import DisplayHandle

    handle, is_shown = DisplayHandle(), False

    def show(text: str, *, style: str = "") -> None:
        nonlocal is_shown
        display = handle.update if is_shown else handle.display
        display({"text/plain": text}, raw=True)
        is_shown = True

    return show


class StyledStream:
    """Text with rich's styles, written piece by piece without line ends; plain text if the stream is no terminal. The terminal
    wraps long lines."""

    def __init__(self, out: IO[str] | None = None) -> None:
        from rich.console import Console as RichConsole

        self._console = RichConsole(file=out, highlight=False, markup=False, emoji=False, soft_wrap=True)

    def write(self, text: str, style: str = "") -> None:
        """Writes the text without control characters."""
        from rich.text import Text

        self._console.print(Text(printable(text), style=style), end="")
