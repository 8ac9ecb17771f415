"""An MCP server that is started here: its processes, which end with it, and the last lines of its standard error."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import threading
import time
import uuid
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from midthought.http.network import without_keys

_MAX_LOG_BYTES = 10_000
_MARK = "MIDTHOUGHT_MCP_SERVER"
"""Environment variable by which the processes of a server are found."""
_MAX_ROUNDS = 100
_AGAIN_SECONDS = 0.1
"""After a server's end its processes are looked for again, first after this long."""
_LONGEST_PAUSE_SECONDS = 10.0
_MAX_LINE_CHARS = 400


class Started:
    """A server that is started here. The last five lines of its standard error are kept."""

    again = "started again"

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str] | None, folder: str | Path | None
    ) -> None:
        self.name = f"MCP server {one_line(' '.join(map(str, command)))!r}"
        self._command = command
        self._environment = environment
        self._folder = folder
        self._log = b""

    @property
    def last_lines(self) -> str:
        return "\n".join(self._log.decode(errors="replace").strip().splitlines()[-5:])

    @contextlib.asynccontextmanager
    async def transport(self) -> AsyncIterator[Any]:
        from mcp import StdioServerParameters, stdio_client

        mark = uuid.uuid4().hex
        parameters = StdioServerParameters(
            command=str(self._command[0]),
            args=[str(word) for word in self._command[1:]],
            env={**(self._environment or {}), _MARK: mark},
            cwd=self._folder,
            encoding_error_handler="replace",
        )
        loop = asyncio.get_running_loop()
        readable, writable = os.pipe()
        os.set_blocking(readable, False)
        loop.add_reader(readable, self._read_log, readable)
        groups: set[int] = set()
        watched: dict[int, int] = {}
        looking: asyncio.TimerHandle | None = None

        def after_its_end(process: int) -> None:  # the SDK waits while another process has the server's output open
            loop.remove_reader(process)
            if looking is not None:
                looking.cancel()
            end_others(_AGAIN_SECONDS)
            groups.discard(watched[process])  # its number may become another process's

        def end_others(pause: float) -> None:
            """Looks again, the last time after 13 seconds: a process shows no environment while its program is loaded. Processes
            that start later end with the connection."""
            nonlocal looking
            _end_processes(groups, mark)
            looking = loop.call_later(pause, end_others, 2 * pause) if pause < _LONGEST_PAUSE_SECONDS else None

        try:
            with os.fdopen(writable, "w") as log:
                async with stdio_client(parameters, errlog=log) as streams:
                    groups.update(_children_of_this_thread())
                    with contextlib.suppress(OSError, AttributeError):  # an older kernel, another system
                        watched.update((os.pidfd_open(group), group) for group in groups)
                    for process in watched:
                        loop.add_reader(process, after_its_end, process)
                    yield streams
        finally:
            if looking is not None:
                looking.cancel()
            for process in watched:
                loop.remove_reader(process)
                os.close(process)
            # The SDK ends processes that a server has started only if the server does not end by itself.
            _end_processes(groups, mark)
            self._read_log(readable)
            loop.remove_reader(readable)
            os.close(readable)

    def _read_log(self, readable: int) -> None:
        with contextlib.suppress(BlockingIOError):
            if not (read := os.read(readable, 1 << 16)):
                asyncio.get_running_loop().remove_reader(readable)
            self._log += read
        if len(self._log) > _MAX_LOG_BYTES:  # without the rest of a word, which may be a key
            self._log = re.sub(rb"^\S*", b"", self._log[-_MAX_LOG_BYTES:])


def _children_of_this_thread() -> list[int]:
    """Returns process ids; nothing if the system does not list them."""
    with contextlib.suppress(OSError):
        return [*map(int, Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split())]
    return []


def _end_processes(groups: Collection[int], mark: str) -> None:
    """Ends on Linux the processes whose environment has the mark, and with them all others of these process groups.

    A group without such a process is left alone: after a server's end another process may have got its number.
    """
    entry = f"{_MARK}={mark}".encode()
    for _ in range(_MAX_ROUNDS):  # again, because they may start others
        found = False
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if entry in (process / "environ").read_bytes():
                    found = True
                    group = os.getpgid(int(process.name))
                    if group in groups:
                        os.killpg(group, signal.SIGKILL)
                    else:
                        os.kill(int(process.name), signal.SIGKILL)
        if not found:
            return
        time.sleep(0.01)


def one_line(text: str) -> str:
    """Returns the text without line breaks, control characters and keys; the end of a long one is left out."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in without_keys(text)).split())
    return line if len(line) <= _MAX_LINE_CHARS else line[:_MAX_LINE_CHARS] + "…"
