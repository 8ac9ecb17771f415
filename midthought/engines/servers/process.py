"""Starts, awaits and stops a model server with all its processes. For Linux and macOS. Does not depend on models."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from midthought.engines.servers.guard import guarded, wait
from midthought.errors import EngineError
from midthought.http.network import socket_path, tls_context

TERMINATE_SECONDS = 10.0
"""Time for a server to terminate by itself before it is killed."""


def free_port() -> int:
    """Returns a port of the loopback interface that is free now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class ServerProcess:
    """A running server. It ends with `stop`, when this object is garbage-collected, or when this process ends in any way.

    Args:
        command: command line of the server.
        url: its address, `http://127.0.0.1:PORT` or `unix:/PATH`.
        environment: variables, used if they are not set in this process.
        key: the key that its requests must have.
        folder: folder with its socket or key, removed when it ends.
    """

    def __init__(
        self,
        command: Sequence[str],
        url: str,
        *,
        environment: Mapping[str, str] | None = None,
        key: str = "",
        folder: Path | None = None,
    ) -> None:
        self.url, self.key = url, key
        handle, name = tempfile.mkstemp(prefix="midthought-server-", suffix=".log")
        self.log_path = Path(name)
        """File with its output, which only this user may read. `stop` removes it unless an error has named it."""
        self._keeps_log = False
        with open(handle, "wb") as log, contextlib.ExitStack() as undo:
            undo.callback(self.log_path.unlink)
            self._process = start_guarded(
                command,
                env={**(environment or {}), **os.environ},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            undo.pop_all()
        self._end = weakref.finalize(self, _end_server, self._process, folder)

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait_until_ready(self, timeout_seconds: float) -> None:
        """Waits until it is healthy. Raises `EngineError` with the end of the log if the server ends or takes too long."""
        deadline = time.monotonic() + timeout_seconds
        while not self._answers():
            if not self.is_running:
                what = f"the server ended with code {self._process.returncode} before it was ready"
            elif time.monotonic() > deadline:
                what = f"the server was not ready after {timeout_seconds:g} s"
            else:
                time.sleep(min(0.1, timeout_seconds / 20))
                continue
            reason = self._with_log_tail(what)
            self.stop()
            raise EngineError(reason)

    def exit_reason(self) -> str | None:
        """Returns None while the server runs, else how it ended, with the end of the log unless `stop` ended it."""
        if not self._end.alive:
            return "the server that was started here was stopped"
        if self.is_running:
            return None
        return self._with_log_tail(f"the server that was started here ended with code {self._process.returncode}")

    def stop(self) -> None:
        """Stops the server and all processes of its group. May be called twice."""
        self._end()
        if not self._keeps_log:
            self.log_path.unlink(missing_ok=True)

    def _answers(self) -> bool:
        import httpx

        file = socket_path(self.url)
        transport = httpx.HTTPTransport(uds=None if file is None else str(file), verify=tls_context(trust_env=False))
        url = self.url if file is None else "http://localhost"
        with httpx.Client(base_url=url, transport=transport, timeout=5) as client:
            try:
                return client.get("/health").status_code == 200 and self.is_running
            except httpx.HTTPError:
                return False

    def _with_log_tail(self, what: str) -> str:
        """Appends the end of the log to `what`. The log file is then kept."""
        self._keeps_log = True
        text = self.log_path.read_text("utf-8", errors="replace")
        lines = (text.replace(self.key, "…") if self.key else text).splitlines()
        last = " | ".join([line.strip()[:200] for line in lines if line.strip()][-6:]) or "nothing"
        return f"{what}; its log {self.log_path} ends in: {last}"


def start_guarded(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Starts a server in its own session; it ends with this process (`guard`). Signals to the result reach the server.

    Raises `EngineError` if the program does not exist.
    """
    if shutil.which(command[0], path=(options.get("env") or os.environ).get("PATH", os.defpath)) is None:
        raise EngineError(f"the server cannot be started with {command[0]!r}: there is no such program; check its path")
    return subprocess.Popen(guarded(command), start_new_session=True, **options)


def run_in_foreground(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """Runs a command until it ends, forwarding SIGINT, SIGTERM and SIGHUP to it once each. Returns its exit code."""
    return wait(start_guarded(words, env=dict(environment)))


def _end_server(process: subprocess.Popen[bytes], folder: Path | None) -> None:
    """Terminates the server, kills the rest of its process group, and removes its folder."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(TERMINATE_SECONDS)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
