"""Blocks system calls for access to other processes, the network, or memory and disk outside the process's limits.

A seccomp filter (https://man7.org/linux/man-pages/man2/seccomp.2.html). Needs no privileges; cannot be undone. Blocked calls
fail with "permission denied"; calls newer than this list fail as on a kernel without them.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
from collections.abc import Iterable, Mapping, Sequence

_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Column of the table below, and the kernel's constant for the architecture."""

_RESTRICTED: Mapping[str, tuple[int, int]] = {"prlimit64": (302, 261), "fcntl": (72, 25)}
"""System calls that are blocked for some arguments only."""
_NUMBERS: Mapping[str, tuple[int | None, int | None]] = {
    # other processes: creating, executing, accessing
    "fork": (57, None),
    "vfork": (58, None),
    "clone": (56, 220),
    "clone3": (435, 435),
    "execve": (59, 221),
    "execveat": (322, 281),
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
    "pidfd_getfd": (438, 438),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "kcmp": (312, 272),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setattr": (314, 274),
    "sched_setaffinity": (203, 122),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "setpgid": (109, 154),
    "setsid": (112, 157),
    "unshare": (272, 97),
    "setns": (308, 268),
    # the network, and other ways to use it
    "socket": (41, 198),
    "socketpair": (53, 199),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    # memory and disk that no limit counts, or that outlive the process
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    "fallocate": (285, 47),
    # attributes of files: Landlock restricts only their content
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
    "ioctl": (16, 29),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "fanotify_init": (300, 262),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    # kernel features that computations do not need
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "modify_ldt": (154, None),
    "personality": (135, 92),
    "sync": (162, 81),
    "syncfs": (306, 267),
    **_RESTRICTED,
}
_FIRST_UNKNOWN = 463
"""The first number newer than this list (Linux 6.10). The numbers of the x32 ABI are far above it."""
_F_SETOWN, _F_SETSIG, _F_SETOWN_EX = 8, 10, 15
"""With these, a file descriptor could send signals to other processes."""

_LOAD, _IF_EQUAL, _IF_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _FIRST_ARGUMENT_AT, _SECOND_ARGUMENT_AT = 0, 4, 16, 24
_ALLOW, _KILL = 0x7FFF0000, 0x80000000
_DENY, _UNKNOWN = 0x00050000 | errno.EACCES, 0x00050000 | errno.ENOSYS
_NO_NEW_PRIVILEGES, _SET_SECCOMP, _MODE_FILTER = 38, 22, 2


def restrict(libc: ctypes.CDLL) -> None:
    """Blocks these system calls for this process. Raises OSError if the system has no seccomp filters."""
    if sys.platform != "linux" or platform.machine() not in _ARCHITECTURES:
        raise OSError(f"there is no system-call filter for {sys.platform} on {platform.machine()}")
    numbers = call_numbers(platform.machine()).items()
    denied = [number for name, number in numbers if number is not None and name not in _RESTRICTED]
    install(libc, program(platform.machine(), denied))


def call_numbers(machine: str) -> dict[str, int | None]:
    """Returns the numbers of the blocked system calls by name; None if `machine` (`platform.machine()`) has no such call."""
    column, _ = _ARCHITECTURES[machine]
    return {name: numbers[column] for name, numbers in _NUMBERS.items()}


def install(libc: ctypes.CDLL, steps: Sequence[bytes]) -> None:
    """Installs a filter program for this process."""
    instructions = ctypes.create_string_buffer(b"".join(steps))
    header = ctypes.create_string_buffer(struct.pack("@HP", len(steps), ctypes.addressof(instructions)))
    libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
    for action in ((_NO_NEW_PRIVILEGES, 1, 0, 0, 0), (_SET_SECCOMP, _MODE_FILTER, ctypes.addressof(header), 0, 0)):
        if libc.prctl(*action) != 0:
            raise OSError(
                ctypes.get_errno(), f"the system-call filter was not installed: {os.strerror(ctypes.get_errno())}"
            )


def program(machine: str, denied: Iterable[int]) -> list[bytes]:
    """Returns the filter as BPF instructions; `denied` are numbers of system calls that are blocked for all arguments."""
    column, architecture = _ARCHITECTURES[machine]
    prlimit64, fcntl = (numbers[column] for numbers in _RESTRICTED.values())
    steps = [
        _step(_LOAD, _ARCHITECTURE_AT),
        _step(_IF_EQUAL, architecture, 1, 0),
        _step(_RETURN, _KILL),
        _step(_LOAD, _NUMBER_AT),
        _step(_IF_AT_LEAST, _FIRST_UNKNOWN, 0, 1),
        _step(_RETURN, _UNKNOWN),
    ]
    for number in denied:
        steps += [_step(_IF_EQUAL, number, 0, 1), _step(_RETURN, _DENY)]
    return [
        *steps,
        _step(_IF_EQUAL, prlimit64, 0, 4),  # only for this process itself
        _step(_LOAD, _FIRST_ARGUMENT_AT),
        _step(_IF_EQUAL, 0, 1, 0),
        _step(_RETURN, _DENY),
        _step(_RETURN, _ALLOW),
        _step(_IF_EQUAL, fcntl, 0, 4),
        _step(_LOAD, _SECOND_ARGUMENT_AT),
        _step(_IF_EQUAL, _F_SETOWN, 3, 0),
        _step(_IF_EQUAL, _F_SETSIG, 2, 0),
        _step(_IF_EQUAL, _F_SETOWN_EX, 1, 0),
        _step(_RETURN, _ALLOW),
        _step(_RETURN, _DENY),
    ]


def _step(code: int, value: int, skip_if: int = 0, skip_else: int = 0) -> bytes:
    return struct.pack("HBBI", code, skip_if, skip_else, value)
