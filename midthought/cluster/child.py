"""A learner in a process of its own on this machine, so that it works while this process samples. Does not depend on Ray.

Messages go through a pipe, their tensors through memory (`SharedTensors`). Both ends are ours: nothing that is unpickled here
comes from outside. Run as a module, this file is the learner's process; it ends with the process that started it.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from midthought.cluster.process import ProcessSettings, deserialize, pack_learner, serialize, unpack_learner
from midthought.config import TrainingConfig
from midthought.engines.shared_tensors import SharedTensors, memory_folder, read_shared_tensors
from midthought.errors import EngineError, LearnerLostError
from midthought.learning.model import Models
from midthought.learning.optimizer import TrainingSchedule
from midthought.tools.background_loop import SilenceError, silence_check

_REMEDY = "continue from the last checkpoint (--resume, or RayPPOTrainer with resume=True)"


class ChildGroup:
    """The only worker of a `RemoteLearner`: a process on this machine. Implements `WorkerGroup`. The process is started at once,
    because its imports take seconds.

    Args:
        num_threads: threads with which it computes on a CPU; an assignment applies to the next call.
        device: where it keeps its models.
        silence_seconds: time without an answer and without computing after which it is stopped (`ray.silence_timeout_seconds`).
    """

    can_start_again = True

    def __init__(self, num_threads: int, device: str = "cpu", silence_seconds: float = 300.0) -> None:
        self.num_threads, self._device, self._silence_seconds = num_threads, device, silence_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._messages: _Messages | None = None
        self._start_process()

    @property
    def process_id(self) -> int | None:
        """None: it does not run."""
        return self._process.pid if self._process else None

    def start(self, models: Models, training: TrainingConfig, schedule: TrainingSchedule) -> None:
        """Creates the models in the process; if it was lost, in a new one. Raises `SettingsError` if they cannot be pickled,
        `LearnerLostError` if the process does not start."""
        payload = pack_learner(models, training, schedule)
        if self._process is None:
            self._start_process()
        self.call("build", payload, ProcessSettings.of_this_process(self.num_threads), self._device)

    def _start_process(self) -> None:
        ours, theirs = socket.socketpair()
        limit = struct.pack("ll", math.ceil(min(self._silence_seconds, 1e9)), 0)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        with theirs:
            command = [sys.executable, "-P", "-m", "midthought.cluster.child", str(theirs.fileno())]
            paths = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
            self._process = subprocess.Popen(command, env=paths, pass_fds=[theirs.fileno()], start_new_session=True)
        self._messages = _Messages(Connection(ours.detach()))

    def call(self, method: str, *arguments: Any) -> Any:
        """Calls the method in the process and returns its result. Raises what it raises, or `LearnerLostError` if it ended or is
        silent; in these cases it is stopped."""
        if self._messages is None or self._process is None:
            raise LearnerLostError(f"the learner's process has ended; {_REMEDY}")
        message = self._messages.pack((method, arguments, self.num_threads))
        try:
            self._messages.send(message)
            computes = functools.partial(_cpu_tenths, self._process.pid)
            check = silence_check(computes, self._silence_seconds)
            result, error = self._messages.receive(check, self._silence_seconds / 4)
        except (BlockingIOError, SilenceError) as silence:
            self.close()
            raise LearnerLostError(
                f"the learner's process did not answer or compute in {method!r} for {self._silence_seconds:g} s and was stopped; "
                f"{_REMEDY}, or raise ray.silence_timeout_seconds"
            ) from silence
        except (EOFError, OSError) as lost:
            process = self._process
            self.close()
            code = process.returncode
            raise LearnerLostError(
                f"the learner's process was lost in {method!r} (exit code {code}); {_REMEDY}"
            ) from lost
        except BaseException:
            self.close()
            raise
        if error is not None:
            self.close()
            raise error
        return result

    def close(self) -> None:
        """Stops the process. May be called twice."""
        if self._messages is not None:
            self._messages.close()
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE_SECONDS)
            self._process.kill()
            self._process.wait()
        self._messages = self._process = None


_GRACE_SECONDS, _POLL_SECONDS = 1.0, 5.0


def _cpu_tenths(process_id: int) -> object:
    """Returns the processor time of a process in tenths of a second, of which one that hangs uses none. Always something else on
    a system without /proc."""
    try:
        fields = Path(f"/proc/{process_id}/stat").read_text("utf-8").rpartition(")")[2].split()
    except OSError:
        return object()
    return 10 * (int(fields[11]) + int(fields[12])) // os.sysconf("SC_CLK_TCK")


class _Messages:
    """One end of the pipe, through which the two processes take turns."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._sent: SharedTensors | None = None
        """What the other process reads before it sends the next message."""

    def pack(self, message: object) -> tuple[bytes, SharedTensors]:
        """Writes the tensors of a message. Raises `StorageError` if there is no room for them."""
        tensors: dict[int, torch.Tensor] = {}

        def place(thing: object) -> object | None:
            if not isinstance(thing, torch.Tensor):
                return None
            tensors[id(thing)] = thing
            return id(thing)

        data = serialize(message, "what the learner needs", place)
        num_bytes = sum(tensor.nbytes for tensor in tensors.values())
        folder = str(memory_folder(num_bytes) or tempfile.gettempdir())
        return data, SharedTensors(((str(name), tensor) for name, tensor in tensors.items()), folder)

    def send(self, packed: tuple[bytes, SharedTensors]) -> None:
        data, self._sent = packed
        self._pipe.send((data, self._sent.manifest))

    def receive(self, check: Callable[[], None], seconds: float = _POLL_SECONDS) -> Any:
        """Waits for the next message; meanwhile `check`, called every few `seconds`, may raise. Raises `EOFError` if the other
        process has ended."""
        while not self._pipe.poll(min(seconds, _POLL_SECONDS)):
            check()
        data, manifest = self._pipe.recv()
        self._forget()
        tensors = dict(read_shared_tensors(manifest))
        return deserialize(data, "what the learner computed", lambda name: tensors[str(name)])

    def close(self) -> None:
        self._pipe.close()
        self._forget()

    def _forget(self) -> None:
        if self._sent is not None:
            self._sent.close()
        self._sent = None


class _Child:
    """The learner's process."""

    def build(self, payload: bytes, settings: ProcessSettings, device: str) -> None:
        """Creates the models with uninitialized tensors."""
        settings.begin()
        settings.apply_numerics()
        if device.startswith("cuda"):
            torch.cuda.set_device(device)
        self.worker = unpack_learner(payload, device)
        self.worker.be_alone()

    def answer(self, method: str, arguments: tuple[Any, ...], num_threads: int) -> tuple[Any, Exception | None]:
        try:
            torch.set_num_threads(num_threads)
            owner = self if method == "build" else self.worker
            return getattr(owner, method)(*arguments), None
        except Exception as error:
            return None, _portable(error)

    def serve(self, messages: _Messages) -> None:
        """Answers until the other process has ended."""
        parent = os.getppid()

        def check() -> None:
            if os.getppid() != parent:
                raise EOFError

        with contextlib.suppress(EOFError, ConnectionError, FileNotFoundError):
            while True:
                answer = self.answer(*messages.receive(check))
                try:
                    packed = messages.pack(answer)
                except Exception as error:
                    packed = messages.pack((None, _portable(error)))
                messages.send(packed)


def _portable(error: Exception) -> Exception:
    """Returns the error with its traceback as a note, or what can be sent in its place."""
    error.add_note("".join(traceback.format_exception(error)).rstrip())
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301  # our own bytes
    except Exception:
        return EngineError(f"{type(error).__name__}: {error}")
    return error


def _main(descriptor: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # the process that started this one decides, and ends it
        signal.signal(number, signal.SIG_IGN)
    messages = _Messages(Connection(int(descriptor)))
    try:
        _Child().serve(messages)
    finally:
        messages.close()


if __name__ == "__main__":
    _main(*sys.argv[1:])
