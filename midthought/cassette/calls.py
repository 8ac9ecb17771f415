"""The seam of all calls that an episode makes to others: tools, critics, judges, the engine, the environment.

A call within another recorded call (the critic that a tool asks) is part of that call. Outside of an episode with a cassette, a
call is only made.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import functools
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

from midthought import errors
from midthought.cassette.entries import JSON_VALUES, Codec, RecordedCall, as_json, without_keys
from midthought.cassette.faults import CallPosition, Fault, Faults
from midthought.cassette.files import SUFFIX, PartReader, PartWriter
from midthought.config import CassetteConfig
from midthought.errors import CassetteError

T = TypeVar("T")

_current: ContextVar[EpisodeCalls | None] = ContextVar("midthought_cassette", default=None)


def current_calls() -> EpisodeCalls | None:
    """Returns the calls of the running episode; None without a cassette, and within a recorded call."""
    return _current.get()


async def recorded(
    kind: str, name: str, arguments: Any, run: Callable[[], Awaitable[T]], codec: Codec[T] = JSON_VALUES
) -> T:
    """Returns `await run()`, recorded, replayed or with a fault, as the cassette of the running episode says.

    Without one it only returns `await run()`. `kind`: `judge` or `feedback` for your own functions. `arguments`: what was asked,
    JSON values. The result must be JSON values, too, unless there is a `codec`.
    """
    calls = _current.get()
    if calls is None:
        return await run()

    async def make(fault: Fault | None) -> T:
        return await run() if fault is None else await fault.apply(run, codec.garbled, codec.error, hangs=False)

    return await calls.call(kind, name, arguments, make, codec)


class Part:
    """One batch of episodes of a cassette: where their calls are recorded or replayed. Open it with `Cassette.part`."""

    def __init__(self, config: CassetteConfig, folder: Path, name: str, faults: Faults) -> None:
        self.name = name
        self.faults = faults
        self.has_completions = config.completions
        self.has_latency = config.latency
        self.writer = PartWriter(folder / f"{name}{SUFFIX}") if config.record else None
        self.reader = PartReader(folder, name) if config.replay else None

    def episode(self, number: int, *, task_id: str, seed: int) -> contextlib.AbstractContextManager[EpisodeCalls]:
        """Records, replays or faults the calls of one episode of the part, made in the block.

        Raises `CassetteError` at the end of the block if a call was not recorded, also if that error was caught.
        """
        return EpisodeCalls(self, number, task_id, seed).current()


class EpisodeCalls:
    """The calls of one episode. An equal call of another episode is another entry, so a replay does not depend on the order in
    which episodes run."""

    def __init__(self, part: Part, episode: int, task_id: str, seed: int) -> None:
        self.has_completions = part.has_completions
        """Whether completions of the engine are recorded or replayed."""
        self._part, self._episode, self._task_id, self._seed = part, episode, task_id, seed
        self._num_calls: Counter[tuple[str, str]] = Counter()
        self._num_equal: Counter[bytes] = Counter()
        self._failure: CassetteError | None = None

    @property
    def is_replayed(self) -> bool:
        """Whether results come from a cassette."""
        return self._part.reader is not None

    @contextlib.contextmanager
    def current(self) -> Iterator[EpisodeCalls]:
        """Makes these the calls of the running episode. Raises the first `CassetteError` at the end, if there was one."""
        token = _current.set(self)
        try:
            yield self
        finally:
            _current.reset(token)
        if self._failure is not None:
            raise self._failure

    async def call(
        self, kind: str, name: str, arguments: Any, make: Callable[[Fault | None], Awaitable[T]], codec: Codec[T]
    ) -> T:
        """Returns `await make(fault)` and records it, or returns what was recorded. `fault`: what `make` must simulate.

        Raises `CassetteError` if the call was not recorded or cannot be recorded.
        """
        try:
            found, position = self._identified(kind, name, arguments)
            if self._part.reader is not None:
                return await self._replay(self._part.reader, found, codec)
            fault = self._part.faults.draw(position)
            if self._part.writer is None:
                with _inside():
                    return await make(fault)
            return await self._record(self._part.writer, found, functools.partial(make, fault), codec)
        except CassetteError as error:
            self._failure = self._failure or error
            raise

    def _identified(self, kind: str, name: str, arguments: Any) -> tuple[RecordedCall, CallPosition]:
        self._num_calls[kind, name] += 1
        number = self._num_calls[kind, name]
        position = CallPosition(part=self._part.name, episode=self._episode, kind=kind, name=name, call=number)
        what = f"the arguments of {kind} {name!r}"
        fields = {
            "episode": self._episode,
            "task": self._task_id,
            "seed": self._seed,
            "kind": kind,
            "name": name,
            "arguments": without_keys(as_json(arguments, what)),
        }
        equal = RecordedCall(**fields)
        repeat = self._num_equal[equal.key]
        self._num_equal[equal.key] += 1
        return RecordedCall(**fields, repeat=repeat), position

    async def _record(
        self, writer: PartWriter, call: RecordedCall, run: Callable[[], Awaitable[T]], codec: Codec[T]
    ) -> T:
        started = time.perf_counter()
        entry = {name: getattr(call, name) for name in RecordedCall.__slots__}

        def write(**outcome: Any) -> None:
            writer.write({**entry, **outcome, "seconds": round(time.perf_counter() - started, 6)})

        try:
            with _inside():
                value = await run()
        except asyncio.CancelledError:
            write(cancelled=True)
            raise
        except Exception as error:
            write(error={"type": type(error).__name__, "message": without_keys(str(error))})
            raise
        result = without_keys(as_json(codec.encode(value), f"the result of {call.kind} {call.name!r}"))
        write(result=result)
        return codec.decode(result)

    async def _replay(self, reader: PartReader, call: RecordedCall, codec: Codec[T]) -> T:
        entry = reader.find(call)
        try:
            if self._part.has_latency:
                await asyncio.sleep(float(entry["seconds"]))
            if entry.get("cancelled"):
                await asyncio.Event().wait()  # until the caller's deadline, as when it was recorded
            if "error" in entry:
                raised = _exception(entry["error"]["type"], entry["error"]["message"], codec)
            else:
                return codec.decode(entry["result"])
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise reader.damaged(call, error) from None
        raise raised


@contextlib.contextmanager
def _inside() -> Iterator[None]:
    """In the block, calls are part of the call that is running."""
    token = _current.set(None)
    try:
        yield
    finally:
        _current.reset(token)


def _exception(name: str, message: str, codec: Codec[Any]) -> Exception:
    """Returns an exception of the recorded class, if it is one of Python's or of this library's; else of the codec's."""
    found = getattr(errors, name, None) or getattr(builtins, name, None)
    if isinstance(found, type) and issubclass(found, Exception):
        with contextlib.suppress(TypeError):
            raised = found(message)
            if str(raised) == message:
                return raised
    return codec.error(message)
