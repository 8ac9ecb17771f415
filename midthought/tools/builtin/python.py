"""A tool that runs Python code in a separate process with limits on time, memory, disk and output.

This module starts, monitors and ends the process; `tools.sandbox` restricts what it may access.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import selectors
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from midthought.errors import SettingsError
from midthought.tools.definition import Tool, ToolDefinition, ToolOutput, ToolParameter

_SANDBOX = Path(__file__).parents[1] / "sandbox"
_GRACE_SECONDS = 5.0
"""The tool's deadline minus that of the code: time for starting, ending, cleaning up."""
_CHECK_SECONDS = 0.05
_MAX_FILES = 1000
_LEAST_MEMORY_BYTES = 64 * 2**20


class PythonTool(Tool):
    """`python(code)`: runs code in a new process and returns its output, and the value of a last expression.

    Limits: `max_seconds` of wall-clock time (then the process is killed) and of CPU time, `max_memory_bytes` of address
    space, `max_disk_bytes` in files, `max_output_chars` of output. The code has the standard library (with `site_packages`
    also installed packages), an empty working directory, which is removed afterwards, an empty standard input, and none of
    our environment variables. No state is kept between calls.

    On Linux 6.2 or later, Landlock and a seccomp filter, which need no privileges, prevent: reading files other than Python's
    and the system's libraries; writing outside the working directory (inside: plain files only, no folders or links); the
    network and all other sockets; processes and threads; signals to other processes; changing the mode or owner of files.
    Not prevented: checking whether a path exists and how large it is; reading the clock, the CPU model, the process's own
    limits; exploiting a bug in the kernel. If you must exclude these too, run the training in a virtual machine.

    If the system does not support this, `PythonTool()` raises `SettingsError`. With `require_isolation=False` only the limits
    apply: the code can read and write all files of this process's user and use the network. Disk usage is then monitored,
    not limited, and processes that leave the process group survive.

    `metadata["status"]` is "ok", "raised", "killed" (by a signal: CPU time exceeded, or a crash), "timed_out", "output" or
    "disk" (limit exceeded). Code that fails is a normal result, not an error: the text is its traceback.
    """

    def __init__(
        self,
        *,
        max_seconds: float = 5.0,
        max_memory_bytes: int = 512 * 2**20,
        max_disk_bytes: int = 64 * 2**20,
        max_output_chars: int = 20_000,
        site_packages: bool = False,
        require_isolation: bool = True,
    ) -> None:
        for name, value, least in (
            ("max_seconds", max_seconds, 0.1),
            ("max_memory_bytes", max_memory_bytes, _LEAST_MEMORY_BYTES),
            ("max_disk_bytes", max_disk_bytes, 0),
            ("max_output_chars", max_output_chars, 1),
        ):
            if not least <= value < math.inf:
                raise SettingsError(f"PythonTool: {name} must be {least} or more, not {value}")
        self.definition = ToolDefinition(
            "python",
            "Runs Python code in a fresh process and returns what it prints and the value of its last expression. "
            f"It has {max_seconds:g} seconds{', no network' * require_isolation} and keeps nothing from call to call.",
            [ToolParameter("code", "string", "The code to run.")],
        )
        self.timeout_seconds = max_seconds + _GRACE_SECONDS
        self.max_concurrency = 2 * (os.cpu_count() or 1)
        self._max_seconds = max_seconds
        self._max_disk_bytes = max_disk_bytes
        self._max_output_chars = max_output_chars
        self._command = [sys.executable, "-I", "-u", "-X", "utf8", *["-S"] * (not site_packages), str(_SANDBOX)]
        self._job = {
            "max_cpu_seconds": int(max_seconds) + 1,
            "max_memory_bytes": int(max_memory_bytes),
            "max_disk_bytes": int(max_disk_bytes),
            "require_isolation": require_isolation,
        }
        self._require_sandbox()

    def execute(self, *, code: str) -> ToolOutput:
        """Runs the code and returns its output, with a last line in brackets if it was stopped."""
        output, status, return_code = self._run(code, self._max_seconds)
        text = output.decode(errors="replace").rstrip("\n")
        status = status if len(text) <= self._max_output_chars else "output"
        remark = {
            "timed_out": f"[stopped: not finished after {self._max_seconds:g} seconds]",
            "output": f"[stopped: more than {self._max_output_chars} characters of output]",
            "disk": f"[stopped: more than {self._max_disk_bytes} bytes or {_MAX_FILES} files on disk]",
            "killed": f"[killed: {_signal_name(return_code)}]",
            "ok": "" if text else "(no output)",
        }.get(status, "")
        text = text[: self._max_output_chars]
        return ToolOutput("\n".join(part for part in (text, remark) if part), {"status": status})

    def _require_sandbox(self) -> None:
        if os.name != "posix":
            raise SettingsError("PythonTool needs process limits that Windows does not have; run it on Linux")
        output, status, return_code = self._run("", max_seconds=60.0)
        if return_code != 0:
            reason = output.decode(errors="replace").strip()[-200:] or status
            raise SettingsError(
                f"PythonTool cannot isolate code on this system: {reason}. With require_isolation=False it runs with "
                "limits on time and memory only and can read and write your files: use that for code you trust"
            )

    def _run(self, code: str, max_seconds: float) -> tuple[bytes, str, int]:
        """Returns the output, the status and the return code."""
        folder = tempfile.mkdtemp(prefix="midthought-python-")
        try:
            with tempfile.TemporaryFile() as job:
                job.write(json.dumps({**self._job, "code": code}).encode())
                job.seek(0)
                process = subprocess.Popen(
                    self._command,
                    stdin=job,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    cwd=folder,
                    env=_environment(folder),
                    start_new_session=True,
                )
            try:
                output, status = self._watch(process, folder, max_seconds)
            finally:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                assert process.stdout is not None
                process.stdout.close()
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        ended = "killed" if process.returncode < 0 else "raised" if process.returncode else "ok"
        return output, status or ended, process.returncode

    def _watch(self, process: subprocess.Popen[bytes], folder: str, max_seconds: float) -> tuple[bytes, str]:
        """Returns the output until the process ends or must be stopped, and the reason; empty if it ended by itself."""
        assert process.stdout is not None
        ends_at = time.monotonic() + max_seconds
        checks_at = 0.0
        output = bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while (now := time.monotonic()) < ends_at:
                has_ended = process.poll() is not None
                wait_seconds = 0.0 if has_ended else min(_CHECK_SECONDS, ends_at - now)
                if selector.select(wait_seconds):
                    piece = os.read(process.stdout.fileno(), 2**16)
                    output += piece
                    if len(output) > 4 * self._max_output_chars:  # a character has at most 4 bytes in UTF-8
                        return bytes(output), "output"
                    if not piece:
                        selector.unregister(process.stdout)
                        with contextlib.suppress(subprocess.TimeoutExpired):
                            process.wait(wait_seconds)
                elif has_ended:
                    return bytes(output), ""
                if now >= checks_at:
                    checks_at = now + _CHECK_SECONDS
                    if _is_full(folder, process.pid, self._max_disk_bytes):
                        return bytes(output), "disk"
        return bytes(output), "timed_out"


def _signal_name(return_code: int) -> str:
    if return_code == -signal.SIGXCPU:
        return "out of processor time"
    return signal.Signals(-return_code).name if return_code < 0 else ""


def _environment(folder: str) -> dict[str, str]:
    """Returns the environment of the process. Python itself may be loaded through the library path."""
    threads = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}
    libraries = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    return {"HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8", **threads, **libraries}


def _is_full(folder: str, process: int, max_bytes: int) -> bool:
    num_bytes = 0
    for num_files, file_bytes in enumerate(itertools.chain(_files_in(folder), _removed_files_of(process)), 1):
        num_bytes += file_bytes
        if num_files > _MAX_FILES or num_bytes > max_bytes:
            return True
    return False


def _files_in(folder: str) -> Iterator[int]:
    """Yields the size on disk of each file."""
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # just removed
                yield os.lstat(os.path.join(parent, name)).st_blocks * 512


def _removed_files_of(process: int) -> Iterable[int]:
    """Returns the size of each removed file, which exists as long as it is open or mapped. (On Linux; none on other systems.)"""
    sizes: dict[int, int] = {}
    with contextlib.suppress(OSError):
        for opened in os.scandir(f"/proc/{process}/fd"):
            status = os.stat(opened.path)
            if stat.S_ISREG(status.st_mode) and status.st_nlink == 0:
                sizes[status.st_ino] = status.st_blocks * 512
    with contextlib.suppress(OSError), open(f"/proc/{process}/maps", encoding="utf-8", errors="replace") as mappings:
        for mapping in mappings:
            addresses, permissions, _, _, inode, *path = mapping.split(maxsplit=5)
            if permissions.endswith("s") and path and path[0].rstrip().endswith("(deleted)"):
                start, end = (int(address, 16) for address in addresses.split("-"))
                sizes.setdefault(int(inode), end - start)
    return sizes.values()
