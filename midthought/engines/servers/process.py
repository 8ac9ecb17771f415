"""A model server that this process starts, waits for and ends, with all the processes that it starts itself.

Knows commands, ports and logs; nothing of models or tokens. For Linux and macOS.
"""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from midthought.engines.servers.guard import guarded
from midthought.errors import EngineError, MissingExtraError

_END_SECONDS = 10.0
"""How long a server may take to end by itself."""


class NoServerPackageError(MissingExtraError):
    """The package that would run a server here is not installed."""

    def __init__(self, package: str) -> None:
        super(MissingExtraError, self).__init__(
            f"{package} is not installed, so no server can be started here. Give base_url='http://HOST:PORT' of one that "
            f"runs (that needs only pip install 'midthought[{package}]'), install {package}, or name the interpreter of an "
            "environment that has it as server_python"
        )


def interpreter_with(package: str, python: str | None = None) -> str:
    """`python` where it is given, else this interpreter. NoServerPackageError where this one lacks the package."""
    if python is None and importlib.util.find_spec(package) is None:
        raise NoServerPackageError(package)
    return python or sys.executable


def free_port() -> int:
    """A port of the loopback interface that nobody uses now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class ServerProcess:
    """A running server. It ends with `stop`, when nobody holds this object any more, or with this process, however that ends.

    Args:
        command: what to run; it listens on `port` of 127.0.0.1.
        environment: variables for it, where this process has not set them.
        log_path: where its output goes; a file among the temporary ones by default, removed by `stop`.
    """

    def __init__(
        self,
        command: Sequence[str],
        port: int,
        *,
        environment: Mapping[str, str] | None = None,
        log_path: str | Path | None = None,
    ) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._port = port
        if log_path is None:
            handle, name = tempfile.mkstemp(prefix=f"midthought-server-{port}-", suffix=".log")
            os.close(handle)
        self.log_path = Path(name if log_path is None else log_path)
        self._is_own_log = log_path is None
        with self.log_path.open("wb") as log:
            self._process = start_guarded(
                command,
                env={**(environment or {}), **os.environ},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._end = weakref.finalize(self, _end_group, self._process)

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait_until_ready(self, timeout_seconds: float, path: str = "/health") -> None:
        """Wait for status 200 at `path`. EngineError, with the log's last lines, where it ends or takes too long."""
        deadline = time.monotonic() + timeout_seconds
        while not self._answers(path):
            if not self.is_running:
                what = f"the server ended with code {self._process.returncode} before it was ready"
            elif time.monotonic() > deadline:
                what = f"the server was not ready after {timeout_seconds:g} s"
            else:
                time.sleep(min(0.5, timeout_seconds / 20))
                continue
            reason = self._with_last_words(what)
            self.stop()
            raise EngineError(reason)

    def how_it_ended(self) -> str | None:
        """What to tell of a server that is not there any more, with its log's last lines unless `stop` ended it; None while
        it runs."""
        if not self._end.alive:
            return "the server that was started here was stopped"
        if self.is_running:
            return None
        return self._with_last_words(f"the server that was started here ended with code {self._process.returncode}")

    def stop(self) -> None:
        """End the server and every process of its group. Doing so twice is fine."""
        self._end()
        if self._is_own_log:
            self.log_path.unlink(missing_ok=True)

    def _answers(self, path: str) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=5)
        try:
            connection.request("GET", path)
            return connection.getresponse().status == 200 and self.is_running
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _with_last_words(self, what: str) -> str:
        """The log stays, to be looked at."""
        self._is_own_log = False
        lines = self.log_path.read_text("utf-8", errors="replace").splitlines()
        last = " | ".join([line.strip()[:200] for line in lines if line.strip()][-6:]) or "nothing"
        return f"{what}; its log {self.log_path} ends in: {last}"


def start_guarded(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a server in a session of its own; it ends with this process, see `guard`. Signals sent to what is given reach
    the server itself. EngineError where there is no such program."""
    if shutil.which(command[0], path=(options.get("env") or os.environ).get("PATH", os.defpath)) is None:
        raise EngineError(f"the server cannot be started with {command[0]!r}: there is no such program; check its path")
    return subprocess.Popen(guarded(command), start_new_session=True, **options)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """The server ends its own processes; what is left of its group is killed."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_END_SECONDS)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
