"""Isolates this process: blocks access to files (Landlock), to the network and other processes (a seccomp filter).

Needs no privileges; cannot be undone; child processes inherit it. https://docs.kernel.org/userspace-api/landlock.html,
https://man7.org/linux/man-pages/man2/seccomp.2.html
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import re
import signal
import stat
import struct
import sys
from collections.abc import Iterable, Mapping, Sequence

_SYSTEM_FILES = (
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/usr/local/lib",
    "/etc/ld.so.cache",
    "/usr/share/zoneinfo",
    "/dev/urandom",
)
"""Files that imports of the standard library may read: shared libraries and time zones."""
_NO_NEW_PRIVILEGES, _SET_DEATH_SIGNAL = 38, 1
_CAPABILITY_VERSION = 0x20080522


def isolate() -> None:
    """Blocks access to files, the network and other processes. Raises OSError if the system does not support all of it."""
    if sys.platform != "linux":
        raise OSError(f"code can be isolated on Linux only, this is {sys.platform}")
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    drop_capabilities(libc)
    libraries = os.path.join(sys.base_prefix, "lib")  # conda's Python has shared libraries of its modules there
    restrict_files(libc, readable=[*sys.path, libraries, *_SYSTEM_FILES], writable=[os.getcwd(), os.devnull])
    restrict_system_calls(libc)


def drop_capabilities(libc: ctypes.CDLL) -> None:
    """Root keeps its user id but loses its privileges, such as raising limits."""
    _require(libc.capset(struct.pack("=Ii", _CAPABILITY_VERSION, 0), bytes(24)), "capset")


def _require(result: int, action: str) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{action}: {os.strerror(ctypes.get_errno())}")
    return result


# -- files: Landlock ---------------------------------------------------------------------------------------------

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION = 1
_RULE_PATH_BENEATH = 1
_MIN_VERSION = 3
"""Linux 6.2: the first version that also restricts `truncate`."""

_WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 1, 1 << 2, 1 << 3
_REMOVE_FILE, _MAKE_FILE, _TRUNCATE, _USE_DEVICE = 1 << 5, 1 << 8, 1 << 14, 1 << 15
_ALL_FILE_RIGHTS = (1 << 15) - 1
_NETWORK_RIGHTS = 3
"""TCP bind and connect."""
_SCOPES = 3
"""Abstract sockets, and signals to other processes."""
_READ = _READ_FILE | _READ_DIR
_WRITE = _READ | _WRITE_FILE | _REMOVE_FILE | _MAKE_FILE | _TRUNCATE
_OF_A_FILE = _READ_FILE | _WRITE_FILE | _TRUNCATE


def restrict_files(libc: ctypes.CDLL, readable: Iterable[str], writable: Iterable[str]) -> None:
    """Restricts this process to these paths and everything below them. In writable folders it may create and remove plain
    files, but no folders, links or devices. Paths that do not exist are skipped. Raises OSError without Landlock.
    """
    version = libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _ASK_VERSION)
    if version < _MIN_VERSION:
        raise OSError("the kernel has no Landlock of version 3 or later (Linux 6.2)")
    rules = _require(libc.syscall(_CREATE_RULESET, *_handled(version), 0), "landlock_create_ruleset")
    for rights, paths in ((_READ, readable), (_WRITE, writable)):
        for path in paths:
            _allow(libc, rules, path, rights)
    _require(libc.syscall(_RESTRICT_SELF, rules, 0), "landlock_restrict_self")
    os.close(rules)


def _handled(version: int) -> tuple[bytes, ctypes.c_size_t]:
    """Returns the ruleset attributes with every access right that this version of Landlock can restrict."""
    fields = [_ALL_FILE_RIGHTS | (_USE_DEVICE if version >= 5 else 0)]
    fields += [_NETWORK_RIGHTS] if version >= 4 else []
    fields += [_SCOPES] if version >= 6 else []
    packed = struct.pack(f"={len(fields)}Q", *fields)
    return packed, ctypes.c_size_t(len(packed))


def _allow(libc: ctypes.CDLL, rules: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
        rights &= _OF_A_FILE
    rule = struct.pack("=Qi", rights, descriptor)
    _require(libc.syscall(_ADD_RULE, rules, _RULE_PATH_BENEATH, rule, 0), f"landlock_add_rule for {path}")
    os.close(descriptor)


# -- system calls: a seccomp filter -----------------------------------------------------------------------------

_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Column of the numbers below, and the kernel's constant for the architecture."""

_RESTRICTED = ("prlimit64", "fcntl")
"""System calls that are allowed for some arguments only."""
_TABLE = """
# files, within what Landlock and the limits permit
read 0 63, write 1 64, open 2 -, openat 257 56, close 3 57, creat 85 -, stat 4 -, fstat 5 80, lstat 6 -,
newfstatat 262 -, fstatat - 79, statx 332 291, access 21 -, faccessat 269 48, faccessat2 439 439, lseek 8 62,
pread64 17 67, pwrite64 18 68, readv 19 65, writev 20 66, preadv 295 69, pwritev 296 70, preadv2 327 286,
pwritev2 328 287, truncate 76 45, ftruncate 77 46, fsync 74 82, fdatasync 75 83, fadvise64 221 223,
readahead 187 213, flock 73 32, dup 32 23, dup2 33 -, dup3 292 24, pipe 22 -, pipe2 293 59, close_range 436 436,
rename 82 -, renameat 264 38, renameat2 316 276, unlink 87 -, unlinkat 263 35, readlink 89 -, readlinkat 267 78,
getdents 78 -, getdents64 217 61, getcwd 79 17, chdir 80 49, fchdir 81 50, umask 95 166, statfs 137 43,
fstatfs 138 44, sendfile 40 71, copy_file_range 326 285,
# waiting
poll 7 -, ppoll 271 73, select 23 -, pselect6 270 72, epoll_create 213 -, epoll_create1 291 20, epoll_ctl 233 21,
epoll_wait 232 -, epoll_pwait 281 22, epoll_pwait2 441 441, eventfd 284 -, eventfd2 290 19, timerfd_create 283 85,
timerfd_settime 286 86, timerfd_gettime 287 87, pause 34 -, nanosleep 35 101, clock_nanosleep 230 115,
restart_syscall 219 128, sched_yield 24 124, futex 202 98, futex_waitv 449 449,
# memory
brk 12 214, mmap 9 222, mprotect 10 226, munmap 11 215, mremap 25 216, madvise 28 233, msync 26 227, mincore 27 232,
membarrier 324 283,
# signals to itself, timers
rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139, rt_sigpending 127 136, rt_sigtimedwait 128 137,
rt_sigsuspend 130 133, sigaltstack 131 132, alarm 37 -, getitimer 36 102, setitimer 38 103,
# what Python and the C library read about the process and the clock
getpid 39 172, getppid 110 173, gettid 186 178, getpgrp 111 -, getpgid 121 155, getsid 124 156, getuid 102 174,
geteuid 107 175, getgid 104 176, getegid 108 177, getgroups 115 158, getresuid 118 148, getresgid 120 150,
getrlimit 97 163, getrusage 98 165, getpriority 140 141, sched_getaffinity 204 123, sched_getparam 143 121,
sched_getscheduler 145 120, sched_get_priority_max 146 125, sched_get_priority_min 147 126,
sched_rr_get_interval 148 127, getcpu 309 168, uname 63 160, sysinfo 99 179, times 100 153, time 201 -,
gettimeofday 96 169, clock_gettime 228 113, clock_getres 229 114, getrandom 318 278,
# starting and ending
arch_prctl 158 -, set_tid_address 218 96, set_robust_list 273 99, get_robust_list 274 100, rseq 334 293, exit 60 93,
exit_group 231 94,
# for some arguments only
prlimit64 302 261, fcntl 72 25
"""
"""The allowed system calls: name, number on x86-64, number on ARM64; - if there is none."""
_NUMBERS: Mapping[str, tuple[int | None, int | None]] = {
    name: (None if x86 == "-" else int(x86), None if arm == "-" else int(arm))
    for name, x86, arm in re.findall(r"(\w+) (\d+|-) (\d+|-)", _TABLE)
}
_FIRST_UNKNOWN = 463
"""The first number newer than Linux 6.10: such a call fails as on a kernel without it, so that libraries use an older one."""
_F_SETOWN, _F_SETSIG, _F_SETOWN_EX = 8, 10, 15
"""With these, a file descriptor could send signals to other processes."""

_LOAD, _IF_EQUAL, _IF_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _FIRST_ARGUMENT_AT, _SECOND_ARGUMENT_AT = 0, 4, 16, 24
_ALLOW, _KILL = 0x7FFF0000, 0x80000000
_DENY, _UNKNOWN = 0x00050000 | errno.EACCES, 0x00050000 | errno.ENOSYS
_SET_SECCOMP, _MODE_FILTER = 22, 2


def restrict_system_calls(libc: ctypes.CDLL) -> None:
    """Blocks all system calls but those that a computation needs: files, memory, waiting, its own signals and the clock. Others
    fail with "permission denied", also those that a kernel adds later. Raises OSError if the system has no seccomp filters.
    """
    if sys.platform != "linux" or platform.machine() not in _ARCHITECTURES:
        raise OSError(f"there is no system-call filter for {sys.platform} on {platform.machine()}")
    install(libc, program(platform.machine()))


def call_numbers(machine: str) -> dict[str, int]:
    """Returns the numbers of the allowed system calls by name, on `machine` (`platform.machine()`)."""
    column, _ = _ARCHITECTURES[machine]
    return {name: number for name, numbers in _NUMBERS.items() if (number := numbers[column]) is not None}


def install(libc: ctypes.CDLL, steps: Sequence[bytes]) -> None:
    """Installs a filter program for this process."""
    instructions = ctypes.create_string_buffer(b"".join(steps))
    header = ctypes.create_string_buffer(struct.pack("@HP", len(steps), ctypes.addressof(instructions)))
    libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
    for action in ((_NO_NEW_PRIVILEGES, 1, 0, 0, 0), (_SET_SECCOMP, _MODE_FILTER, ctypes.addressof(header), 0, 0)):
        _require(libc.prctl(*action), "the system-call filter was not installed")


def program(machine: str) -> list[bytes]:
    """Returns the filter as BPF instructions."""
    _, architecture = _ARCHITECTURES[machine]
    numbers = call_numbers(machine)
    prlimit64, fcntl = (numbers.pop(name) for name in _RESTRICTED)
    steps = [
        _step(_LOAD, _ARCHITECTURE_AT),
        _step(_IF_EQUAL, architecture, 1, 0),
        _step(_RETURN, _KILL),
        _step(_LOAD, _NUMBER_AT),
        _step(_IF_AT_LEAST, _FIRST_UNKNOWN, 0, 1),
        _step(_RETURN, _UNKNOWN),
    ]
    for number in numbers.values():
        steps += [_step(_IF_EQUAL, number, 0, 1), _step(_RETURN, _ALLOW)]
    return [
        *steps,
        _step(_IF_EQUAL, prlimit64, 0, 4),  # only for this process itself
        _step(_LOAD, _FIRST_ARGUMENT_AT),
        _step(_IF_EQUAL, 0, 0, 1),
        _step(_RETURN, _ALLOW),
        _step(_RETURN, _DENY),
        _step(_IF_EQUAL, fcntl, 0, 5),
        _step(_LOAD, _SECOND_ARGUMENT_AT),
        _step(_IF_EQUAL, _F_SETOWN, 3, 0),
        _step(_IF_EQUAL, _F_SETSIG, 2, 0),
        _step(_IF_EQUAL, _F_SETOWN_EX, 1, 0),
        _step(_RETURN, _ALLOW),
        _step(_RETURN, _DENY),
    ]


def _step(code: int, value: int, skip_if: int = 0, skip_else: int = 0) -> bytes:
    return struct.pack("HBBI", code, skip_if, skip_else, value)
