"""`midthought watch`: shows a run while it runs, from its folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from midthought.cli.output import tell
from midthought.cli.planning import tell_damage
from midthought.errors import MidthoughtError, SettingsError
from midthought.storage_errors import value_errors

if TYPE_CHECKING:
    from midthought.report.watch import RunWatcher


def watch(
    run: Annotated[Path, typer.Argument(help="Run folder, of a run that is running or has ended.")],
    once: Annotated[bool, typer.Option("--once", help="Print the present state and exit.")] = False,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks at the folder.")] = 1.0,
    web: Annotated[bool, typer.Option("--web", help="Serve a page that reloads itself, on 127.0.0.1.")] = False,
    port: Annotated[int, typer.Option(help="With --web: the port; 0 chooses a free one.")] = 0,
) -> None:
    """Show a run while it runs: progress, latest metrics, findings; exit code 1 if it failed or was killed.

    Reads the run folder only, so it works from another terminal or machine. Without a terminal it prints a line per change.
    """
    from midthought.report.watch import RunState, RunWatcher, follow, status_lines

    watcher = RunWatcher(run, _findings)
    if web:
        _serve(watcher, port)
        return
    tell_damage(run)
    with value_errors(run):
        watched = watcher.look() if once else follow(watcher, interval_seconds=interval)
        if once:
            tell("\n".join(status_lines(watched)))
    if watched.state in (RunState.FAILED, RunState.KILLED):
        raise typer.Exit(1)


def _findings(path: Path) -> Iterator[str]:
    from midthought.guards.command import judge

    try:
        with value_errors(path):
            found = judge(path)
        yield from (f"{finding.guard}: {finding.observation}" for finding in found)
    except MidthoughtError as error:
        yield f"the guards cannot read the run: {error}"


def _serve(watcher: RunWatcher, port: int) -> None:
    from midthought.report.watch_page import WatchServer

    try:
        server = WatchServer(watcher, port)
    except OSError as error:
        raise SettingsError(
            f"--port {port}: {error.strerror or error}; give another port, or 0 for a free one"
        ) from None
    tell(f"{server.url} (Ctrl-C ends it)")
    with server:
        server.serve_forever()
