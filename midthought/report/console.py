"""Output of a run: stages with live bars in a terminal, elsewhere as a few lines; their counts, rate, time left and metrics.

All output is plain text, never markup or control codes. rich draws the live view.
"""

from __future__ import annotations

import os
import sys
import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any

PLAIN_SECONDS = 5.0
"""Time between plain lines while there is progress."""

BIDIRECTIONAL_CONTROLS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


class Progress:
    """A running stage. `advance` counts; keyword arguments are metrics to show."""

    def __init__(
        self, label: str, *, total: int | None = None, unit: str = "steps", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.label = label
        """The stage's number and title: `[2/6] Warm-up`."""
        self.total = total
        """Number of units; None if unknown."""
        self.unit = unit
        self.done = 0
        self.fields: dict[str, float | str] = {}
        self.on_change: Callable[[], None] | None = None
        """Called after every change."""
        self._clock = clock
        self._began = clock()
        self._start = self._began, 0

    def start_at(self, done: int) -> None:
        """Sets the count of a resumed stage; earlier units do not count for the rate."""
        self.done = done
        self._start = self._clock(), done

    def advance(self, num: int = 1, **fields: float | str) -> None:
        """Counts `num` more units and shows `fields` (`loss=0.31`, `reward=0.8`) from now on."""
        self.done += num
        self.fields |= fields
        if self.on_change is not None:
            self.on_change()

    def follow(self, done: int, total: int) -> None:
        """Takes over the counts of work that reports its own progress."""
        self.total = total
        self.advance(done - self.done)

    @property
    def seconds(self) -> float:
        """Seconds since the stage started."""
        return self._clock() - self._began

    def counts(self) -> str:
        """`120/600 steps · 3.4/s · 2 min 21 s left`; the rate is the mean since the start."""
        if self.total is None and self.done == 0:
            return duration(self.seconds)
        of = f"{self.done:,}/{self.total:,}" if self.total is not None else f"{self.done:,}"
        parts = [f"{of} {self.unit}"]
        start, done_before = self._start
        if (count := self.done - done_before) > 0 and (seconds := self._clock() - start) > 0:
            rate = count / seconds
            parts.append(f"{rate:.3g}/s" if rate >= 1 else f"{1 / rate:.3g} s each")
            if self.done < (self.total or 0):
                parts.append(f"{duration(((self.total or 0) - self.done) / rate)} left")
        return " · ".join(parts)

    def line(self) -> str:
        """The counts and the metrics."""
        return " · ".join(filter(None, (self.counts(), self.metrics())))

    def metrics(self) -> str:
        """`reward 0.81 · KL 0.012`"""
        return " · ".join(f"{name.replace('_', ' ')} {formatted(value)}" for name, value in self.fields.items())


def formatted(value: float | str) -> str:
    """Formats a number with three significant digits, integers in full."""
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"


def duration(seconds: float) -> str:
    """Formats seconds: `0.4 s`, `42 s`, `9 min 30 s`, `2 h 05 min`."""
    whole = round(seconds)
    if seconds < 0.95:
        return f"{seconds:.1f} s"
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


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

    @contextmanager
    def stage(self, title: str, *, total: int | None = None, unit: str = "steps") -> Iterator[Progress]:
        """A stage of the run; its last line shows how it ended and how long it took."""
        self._stage += 1
        number = f"{self._stage}/{self.num_stages}" if self.num_stages else f"{self._stage}"
        progress = Progress(f"[{number}] {printable(title)}", total=total, unit=unit, clock=self._clock)
        if self.quiet:
            yield progress
            return
        try:
            with self._watch_plain(progress) if self.plain else self._watch_live(progress):
                yield progress
        except BaseException as error:
            stopped = isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit)
            self._print(_last_line("–" if stopped else "✗", progress), style="yellow" if stopped else "red")
            raise
        self._print(_last_line("✓", progress), style="green")

    @contextmanager
    def _watch_plain(self, progress: Progress) -> Iterator[None]:
        of = f" ({progress.total:,} {progress.unit})" if progress.total else ""
        self._print(f"  {progress.label}{of}")
        last_time = self._clock()

        def say() -> None:
            nonlocal last_time
            if progress.done != progress.total and self._clock() - last_time >= PLAIN_SECONDS:
                last_time = self._clock()
                self._print(f"  {progress.label}  {progress.line()}")

        progress.on_change = say
        yield

    @contextmanager
    def _watch_live(self, progress: Progress) -> Iterator[None]:
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as LiveProgress

        columns = (TextColumn("  {task.description}", markup=False), BarColumn(bar_width=12))
        text = TextColumn("{task.fields[text]}", markup=False)
        with LiveProgress(*columns, text, console=self._rich_console(), transient=True) as live:
            task = live.add_task(progress.label, total=progress.total, text="")
            progress.on_change = lambda: live.update(
                task, completed=progress.done, total=progress.total, text=progress.line()
            )
            yield

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
        self._print(_table(title, columns, cells, to_right))

    def _print(self, text: str, *, style: str = "") -> None:
        if self.plain:
            self._stream.write(_encodable(text, self._stream) + "\n")
            self._stream.flush()
            return
        from rich.text import Text

        line = Text(text)
        if style:
            line.stylize(style, 0, 1)
        self._rich_console().print(line, soft_wrap=True)

    def _rich_console(self) -> Any:
        if self._rich is None:
            from rich.console import Console as RichConsole

            self._rich = RichConsole(file=self._out, force_terminal=True, highlight=False, markup=False, emoji=False)
        return self._rich


def _last_line(mark: str, progress: Progress) -> str:
    of = f"/{progress.total:,}" if progress.total is not None and progress.done != progress.total else ""
    counted = f"{progress.done:,}{of} {progress.unit}" if progress.done or progress.total else ""
    parts = [counted, duration(progress.seconds), progress.metrics()]
    return f"{mark} {progress.label}  {' · '.join(filter(None, parts))}"


def printable(text: str) -> str:
    """Returns `text` without characters that move the cursor or change the writing direction; line feeds and tabs stay."""
    kept = (sign for sign in text if sign in "\n\t" or unicodedata.category(sign) not in ("Cc", "Cs"))
    return "".join(sign for sign in kept if sign not in BIDIRECTIONAL_CONTROLS)


def tell(text: object, *, err: bool = False) -> None:
    """Prints a text, of users, models or servers too, as `printable`; on standard error with `err`. Commands print with it.
    Prints nothing if the stream is closed (`>&-`)."""
    stream = sys.stderr if err else sys.stdout
    if stream is not None:
        print(_encodable(printable(str(text)), stream), file=stream, flush=True)


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


def _table(title: str, columns: Sequence[str], cells: list[list[str]], to_right: list[bool]) -> str:
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
