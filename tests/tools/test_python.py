"""Code in a separate process: its results, and what hostile code cannot do.

If the system cannot isolate code, the isolation tests are skipped; the limits are tested everywhere.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import platform
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from calling import call, run

from midthought.errors import SettingsError
from midthought.tools.builtin.python import PythonTool
from midthought.tools.executor import ToolExecutor
from midthought.tools.registry import ToolRegistry
from midthought.tools.sandbox import isolation

T = TypeVar("T")

PATIENT = 120.0
"""Seconds for code that ends by itself: a busy machine may take long to start a process."""

try:
    PythonTool()
    WHY_NOT = ""
except SettingsError as error:
    WHY_NOT = str(error)
caged = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)


def limited(**options: Any) -> PythonTool:
    return PythonTool(**{"max_seconds": PATIENT, "require_isolation": not WHY_NOT, **options})


@pytest.fixture(scope="module")
def tool() -> PythonTool:
    return limited()


@pytest.fixture(autouse=True)
def no_folder_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    yield
    assert list((tmp_path / "temporary").iterdir()) == []


def attempts(tool: PythonTool, *lines: str) -> list[str]:
    """What became of each line, all run in one process: the exception's name or "done"."""
    code = f"""
import json
def attempt(line):
    try:
        exec(line, {{}})
    except BaseException as error:
        return type(error).__name__
    return "done"
print(json.dumps([attempt(line) for line in {list(lines)!r}]))
"""
    output = tool.execute(code=code)
    assert output.metadata == {"status": "ok"}, output.text
    return json.loads(output.text.splitlines()[-1])


# -- ordinary code ---------------------------------------------------------------------------------------------


def test_what_is_printed_and_the_last_value_are_shown(tool: PythonTool) -> None:
    code = "import math, sys\nprint('ä €', file=sys.stderr)\ndef f(x):\n    return x * 2\nprint('b')\n[f(3), math.pi]"
    output = tool.execute(code=code)
    assert (output.text, output.metadata) == ("ä €\nb\n[6, 3.141592653589793]", {"status": "ok"})
    assert tool.execute(code="x = 1").text == "(no output)"


def test_a_mistake_is_told_with_its_line_and_nothing_of_ours(tool: PythonTool) -> None:
    output = tool.execute(code="def f(x):\n    return 1 / x\nprint('before')\nf(0)")
    assert output.metadata == {"status": "raised"} and "__main__.py" not in output.text
    begin = 'before\nTraceback (most recent call last):\n  File "<code>", line 4, in <module>\n    f(0)'
    assert output.text.startswith(begin) and output.text.endswith("ZeroDivisionError: division by zero")
    assert '  File "<code>", line 2, in f\n    return 1 / x' in output.text


@pytest.mark.parametrize(
    ("code", "status", "last_words"),
    [
        ("def f(:\n", "raised", "SyntaxError: invalid syntax"),
        ("(" * 5000 + ")" * 5000, "raised", "SyntaxError: too many nested parentheses"),
        ("import os; os.close(1); os.close(2)", "raised|ok", ""),
        ("import ctypes; ctypes.string_at(0)", "killed", "[killed: SIGSEGV]"),
    ],
)
def test_code_that_fails_is_an_answer(tool: PythonTool, code: str, status: str, last_words: str) -> None:
    output = tool.execute(code=code)
    assert re.fullmatch(status, output.metadata["status"])
    assert last_words in output.text and "__main__.py" not in output.text


def test_a_executor_runs_several_at_once_and_nothing_is_kept_between_them(tool: PythonTool) -> None:
    box = ToolExecutor(ToolRegistry([tool]), timeout_seconds=0.01)  # the tool's own deadline counts
    codes = "y = open('x', 'w').write('1'); y", "import os; os.listdir('.')", "y"
    words = [event.call.result or "" for event in run(box, *(call("python", code=code) for code in codes))]
    assert words[:2] == ["1", "[]"] and words[2].endswith("NameError: name 'y' is not defined")


def test_installed_packages_are_seen_only_where_that_was_asked_for(tool: PythonTool) -> None:
    code = "import numpy\nint(numpy.arange(4).sum())"
    assert tool.execute(code=code).text.endswith("ModuleNotFoundError: No module named 'numpy'")
    assert limited(site_packages=True, max_memory_bytes=4 * 2**30).execute(code=code).text == "6"


# -- limits ----------------------------------------------------------------------------------------------------


def test_code_that_never_ends_is_killed_whatever_it_does_about_signals_and_what_it_printed_is_told(
    tool: PythonTool,
) -> None:
    started = time.perf_counter()
    tool.execute(code="")
    seconds = 1 + 5 * round(time.perf_counter() - started)  # enough to start in, on a busy machine too
    code = (
        "import signal\nfor n in (1, 2, 15):\n    signal.signal(n, signal.SIG_IGN)\nprint('so far')\nwhile True: pass"
    )
    output = limited(max_seconds=seconds).execute(code=code)
    assert output.text == f"so far\n[stopped: not finished after {seconds} seconds]"
    assert output.metadata == {"status": "timed_out"}


def test_processor_time_is_limited_by_the_system_too(tool: PythonTool) -> None:
    code = "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (1, 1))\nwhile True: pass"
    output = tool.execute(code=code)
    assert output.metadata == {"status": "killed"}
    assert output.text in ("[killed: out of processor time]", "[killed: SIGKILL]")
    assert tool.execute(code="import resource\nresource.getrlimit(resource.RLIMIT_CPU)").text == "(121, 121)"


def test_memory_files_and_open_files_are_limited() -> None:
    assert attempts(
        limited(max_memory_bytes=200 * 2**20, max_disk_bytes=2**20),
        "x = bytearray(10**9)",
        "x = [0]\nwhile True: x += x",
        "import mmap; mmap.mmap(-1, 10**9)",
        "import resource as r; r.setrlimit(r.RLIMIT_CORE, (10**6, 10**6))",
        "open('x', 'wb').write(bytes(2**21))",
        "f = [open('/dev/null') for _ in range(100)]",
        "x = bytearray(10**7)",
    ) == ["MemoryError", "MemoryError", "OSError", "ValueError", "OSError", "OSError", "done"]


FULL = {"status": "disk"}


def test_a_disk_is_not_filled_by_many_files() -> None:
    tool = limited(max_disk_bytes=2**22)
    code = "import itertools\nfor n in itertools.count():\n    open(str(n), 'wb').write(bytes({}))"
    assert tool.execute(code=code.format(2**20)).metadata == FULL
    output = tool.execute(code=code.format(0))
    assert (output.text, output.metadata) == ("[stopped: more than 4194304 bytes or 1000 files on disk]", FULL)


REMOVED_BUT_OPEN = """
    files.append(open("x", "wb"))
    os.remove("x")
    files[-1].write(bytes(2**20))
    files[-1].flush()
"""
REMOVED_BUT_MAPPED = """
    with open("x", "w+b") as file:
        file.truncate(2**20)
        address = libc.mmap(None, 2**20, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, file.fileno(), 0)
    os.unlink("x")
    ctypes.memset(address, 1, 2**20)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize("write", [REMOVED_BUT_OPEN, REMOVED_BUT_MAPPED], ids=["open", "mapped"])
def test_removed_files_count_as_disk_as_long_as_they_are_open_or_mapped(write: str) -> None:
    code = f"""
import ctypes, mmap, os, time
libc, files = ctypes.CDLL(None), []
libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
for number in range(40):{write}
time.sleep(600)
"""
    assert limited(max_disk_bytes=2**22).execute(code=code).metadata == FULL


def test_a_flood_of_output_is_cut_and_stopped() -> None:
    tool = limited(max_output_chars=10)
    output = tool.execute(code="while True: print('é' * 1000)")
    assert output.text == "éééééééééé\n[stopped: more than 10 characters of output]"
    assert output.metadata == {"status": "output"}
    assert tool.execute(code="'é' * 8").text == "'éééééééé'"
    assert tool.execute(code="'é' * 9").metadata == {"status": "output"}


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_seconds", 0), ("max_memory_bytes", 2**20), ("max_disk_bytes", -1), ("max_output_chars", 0)],
)
def test_a_limit_that_makes_no_sense_is_refused(name: str, value: int) -> None:
    with pytest.raises(SettingsError, match=f"PythonTool: {name} must be .* or more, not {value}"):
        PythonTool(**{name: value})


# -- hostile code ----------------------------------------------------------------------------------------------


@caged
def test_code_cannot_make_processes_or_threads(tool: PythonTool) -> None:
    assert attempts(
        tool,
        "import os\nwhile True: os.fork()",
        "import os; os.execv('/bin/true', ['true'])",
        "import subprocess; subprocess.run(['true'])",
        "import os; os.system('true') and 1/0",
        "import multiprocessing; multiprocessing.Pool(2)",
        "import threading; threading.Thread(target=print).start()",
        "import os; os.setsid()",
    ) == ["PermissionError"] * 3 + ["ZeroDivisionError", "PermissionError", "RuntimeError", "PermissionError"]


@caged
def test_code_cannot_reach_the_process_that_started_it(tool: PythonTool) -> None:
    assert attempts(
        tool,
        "import os; os.kill(os.getppid(), 9)",
        "import os; os.killpg(os.getpgid(os.getppid()), 9)",
        "import os, resource; resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (0, 0))",
        "import os; os.sched_setaffinity(os.getppid(), {0})",
        "import os; os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)",
        "import os; os.pidfd_open(os.getppid())",
        "import fcntl, os; fcntl.fcntl(os.pipe()[0], fcntl.F_SETOWN, os.getppid())",
        "import os; open(f'/proc/{os.getppid()}/environ').read()",
        "import os; open(f'/proc/{os.getppid()}/mem', 'r+b')",
        "import os; open(f'/proc/{os.getppid()}/oom_score_adj', 'w')",
        "import ctypes; assert ctypes.CDLL(None).ptrace(16, __import__('os').getppid(), 0, 0) == -1",
    ) == ["PermissionError"] * 10 + ["done"]


@caged
def test_code_cannot_read_or_change_files_outside_its_folder(tool: PythonTool, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    secret.chmod(0o640)
    before = secret.stat()
    path = repr(str(secret))
    refused = attempts(
        tool,
        f"open({path}).read()",
        f"open({path}, 'a')",
        f"open({str(tmp_path / 'new')!r}, 'w')",
        "open('/tmp/midthought-was-here', 'w')",
        f"import os; os.truncate({path}, 0)",
        f"import os; os.unlink({path})",
        f"import os; os.rename({path}, 'mine')",
        f"import os; os.chmod({path}, 0o777)",
        f"import os; os.utime({path})",
        f"import os; os.setxattr({path}, 'user.x', b'')",
        f"import os; os.chown({path}, {os.getuid()}, {os.getgid()})",
        f"import os; os.symlink({path}, 'link'); open('link').read()",
        f"import os; os.listdir({str(tmp_path)!r})",
        "import os; os.listdir('/')",
        "open('/etc/passwd').read()",
        "open('/proc/self/environ').read()",
        "import os; os.mkdir('folder')",
        "import os; os.mkfifo('pipe')",
    )
    assert set(refused) == {"PermissionError"}
    assert attempts(tool, f"import os; os.link({path}, 'mine')") in (["PermissionError"], ["OSError"])
    after = secret.stat()
    assert (after.st_mode, after.st_mtime_ns, after.st_nlink) == (before.st_mode, before.st_mtime_ns, 1)
    assert secret.read_text() == "secret"
    assert not Path("/tmp/midthought-was-here").exists()


@caged
def test_code_has_its_own_folder_and_the_standard_library(tool: PythonTool) -> None:
    may = [
        "open('a', 'w').write('x'); assert open('a').read() == 'x'",
        "import os; open('b', 'w').close(); os.rename('b', 'c'); os.remove('c')",
        "import tempfile; tempfile.NamedTemporaryFile().write(b'1')",
        "open('/dev/null', 'w').write('x')",
        "import decimal, datetime, random, statistics, fractions, re, csv, hashlib; random.random()",
        "import sqlite3; sqlite3.connect(':memory:').execute('select 1')",
        "import os, sys; os.listdir(os.path.join(sys.base_prefix, 'lib'))",
    ]
    assert attempts(tool, *may) == ["done"] * 7


@caged
def test_code_cannot_use_the_network(tool: PythonTool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert attempts(
            tool,
            f"import socket; socket.create_connection(('127.0.0.1', {port}))",
            "import socket; socket.socket(socket.AF_UNIX)",
            "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
            "import socket; socket.socketpair()",
            "import urllib.request; urllib.request.urlopen('http://example.org')",
            "import ctypes; assert ctypes.CDLL(None).syscall(425, 8, 0) == -1",
        ) == ["PermissionError"] * 4 + ["URLError", "done"]


@caged
def test_code_cannot_keep_memory_outside_its_limits_nor_raise_them(tool: PythonTool) -> None:
    assert attempts(
        tool,
        "import os; os.memfd_create('x')",
        "from multiprocessing import shared_memory; shared_memory.SharedMemory(create=True, size=100)",
        "import os; os.posix_fallocate(os.open('x', os.O_CREAT | os.O_RDWR), 0, 100)",
        "import resource as r; r.setrlimit(r.RLIMIT_AS, (10**12, 10**12))",
        "import ctypes; assert ctypes.CDLL(None).shmget(0, 4096, 0o1600) == -1",
        "import ctypes; assert ctypes.CDLL(None).syscall(4000) == -1",
    ) == ["PermissionError"] * 3 + ["ValueError", "done", "done"]


HEADERS = {"x86_64": "/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "aarch64": "/usr/include/asm-generic/unistd.h"}


def headers(machine: str) -> dict[str, int]:
    """The numbers of system calls in the kernel's headers; empty if they are not installed."""
    if not Path(HEADERS[machine]).exists():
        return {}
    text = Path(HEADERS[machine]).read_text()
    return {name: int(number) for name, number in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", text)}


@pytest.mark.parametrize("machine", HEADERS)
def test_the_numbers_of_system_calls_are_the_kernels(machine: str) -> None:
    if not (numbers := headers(machine)):
        pytest.skip("the kernel's headers are not installed")
    known = isolation.call_numbers(machine)
    assert known.keys() >= {"read", "prlimit64", "fcntl"}
    assert {name: numbers.get(name) for name in known} == known


SYSTEM_CALLS = {
    "shmget": "0, 4096, 0o1600",
    "shmat": "{segment}, None, 0",
    "shmctl": "{segment}, 0, None",
    "msgsnd": "0, b'', 0, 0",
    "msgctl": "0, 0, None",
    "semop": "0, b'', 0",
    "io_setup": "8, ctypes.byref(ctypes.c_ulong())",
    "prctl": "1, 0",
    "mount": "b'x', b'.', b'tmpfs', 0, None",
    "unshare": "0x10000000",
    "chroot": "b'.'",
    "keyctl": "0, 0",
    "bpf": "0, None, 0",
    "pidfd_open": "1, 0",
    "process_vm_readv": "1, None, 0, None, 0, 0",
    "perf_event_open": "None, 0, -1, -1, 0",
    "mknodat": "-100, b'x', 0o10600, 0",
    "memfd_secret": "0",
    "landlock_create_ruleset": "None, 0, 1",
    "seccomp": "0, 0, None",
}
"""System calls that code might try, and their arguments."""


@caged
def test_code_cannot_make_system_calls_that_computations_do_not_need(tool: PythonTool) -> None:
    """Each call fails with "permission denied" (13), whatever the kernel would have answered."""
    numbers = headers("x86_64")
    if platform.machine() != "x86_64" or not numbers:
        pytest.skip("needs the kernel's headers, on x86-64")
    segment = ctypes.CDLL(None).shmget(0, 4096, 0o1600)
    try:
        code = ["import ctypes", "call = ctypes.CDLL(None, use_errno=True).syscall"]
        for name, arguments in SYSTEM_CALLS.items():
            given = arguments.format(segment=segment)
            code.append(f"print({name!r}, call({numbers[name]}, {given}), ctypes.get_errno())")
        assert tool.execute(code="\n".join(code)).text.splitlines() == [f"{name} -1 13" for name in SYSTEM_CALLS]
        assert ctypes.CDLL(None).shmctl(segment, 2, ctypes.create_string_buffer(256)) == 0, "it is still there"
    finally:
        ctypes.CDLL(None).shmctl(segment, 0, None)


@caged
def test_code_cannot_take_back_what_was_set_for_its_process(tool: PythonTool) -> None:
    """It can neither outlive the program that started it (death signal) nor become traceable, undo the filter, or trace."""
    settings = {"death signal": 1, "dumpable": 4, "seccomp": 22, "memory map": 35, "capabilities": 24, "subreaper": 36}
    code = f"""
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for name, number in {settings}.items():
    print(name, libc.prctl(number, 0, 0, 0, 0), ctypes.get_errno())
print("trace", libc.ptrace(0, 0, 0, 0), ctypes.get_errno())
"""
    assert tool.execute(code=code).text.splitlines() == [f"{name} -1 13" for name in (*settings, "trace")]
    refused = attempts(
        tool,
        "open('/proc/self/mem', 'r+b')",
        "open('/proc/self/status').read()",
        "open('/dev/tty', 'w')",
        "open('/dev/mem', 'rb')",
        "open('/sys/kernel/mm/transparent_hugepage/enabled').read()",
        "open('/etc/hostname').read()",
        "import os; os.listdir(os.path.expanduser('~root'))",
    )
    assert set(refused) <= {"PermissionError", "FileNotFoundError", "KeyError"}


def test_code_sees_no_environment_variable_of_ours(tool: PythonTool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hush")
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    output = tool.execute(code="import os, sys\nprint(sorted(os.environ), '/somewhere' in sys.path)")
    seen, _, has_path = output.text.rpartition(" ")
    assert "SECRET_TOKEN" not in seen and "PYTHONPATH" not in seen and has_path == "False"


@caged
def test_where_code_cannot_be_shut_in_the_tool_refuses_unless_told_otherwise() -> None:
    script = """
import ctypes, errno, struct
from midthought.errors import SettingsError
from midthought.tools.sandbox import isolation
from midthought.tools.builtin.python import PythonTool
load_number, is_landlock = (0x20, 0, 0, 0), (0x15, 0, 1, 444)
deny, allow = (0x06, 0, 0, 0x00050000 | errno.EACCES), (0x06, 0, 0, 0x7FFF0000)
no_landlock = [struct.pack("HBBI", *step) for step in (load_number, is_landlock, deny, allow)]
isolation.install(ctypes.CDLL(None, use_errno=True), no_landlock)
try:
    PythonTool()
except SettingsError as error:
    print(error)
tool = PythonTool(max_seconds=120, max_memory_bytes=2**27, require_isolation=False)
print(tool.execute(code="x = 6 * 7\\nx").text, tool.execute(code="bytearray(10**9)").text.splitlines()[-1])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=600)
    assert re.fullmatch(
        r"PythonTool cannot isolate code on this system: the kernel has no Landlock .*require_isolation=False.*\n"
        r"42 MemoryError\n",
        done.stdout,
    ), done.stdout + done.stderr


@caged
def test_the_code_ends_with_the_program_that_started_it() -> None:
    script = """
from midthought.tools.builtin.python import PythonTool
tool = PythonTool(max_seconds=600)
print("ready", flush=True)
tool.execute(code="import time; time.sleep(600)")
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as program:
        try:
            assert program.stdout is not None and program.stdout.readline() == b"ready\n"
            child = eventually(lambda: child_of(program.pid))
        finally:
            program.kill()
    eventually(lambda: not is_alive(child))
    for folder in Path(tempfile.gettempdir()).glob("midthought-python-*"):
        folder.rmdir()  # what was killed could not clean up


def eventually(question: Callable[[], T]) -> T:
    for _ in range(3000):
        if answer := question():
            return answer
        time.sleep(0.02)
    raise AssertionError("not within a minute")


def child_of(parent: int) -> int:
    """Process id of the sandbox that this process has started, after it is isolated; 0 if there is none."""
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            text = status.read_text()
            if f"PPid:\t{parent}\n" in text and "Seccomp:\t2" in text:
                return int(status.parent.name)
    return 0


def is_alive(process: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False
