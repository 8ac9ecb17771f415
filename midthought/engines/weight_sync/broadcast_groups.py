"""Groups of processes in which the learner, rank 0, broadcasts tensors: to a server's workers while a request is processed, or to
Ray workers. Does not depend on the messages that tell the others to join, and what is broadcast."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import Callable, Coroutine, Iterable
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.cuda import nccl

from midthought.errors import EngineError

T = TypeVar("T")

_TIMEOUT = timedelta(seconds=300)
"""Time for all ranks to join, and for one broadcast."""
_ERROR_HANDLING = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
"""Environment variable that a NCCL process group reads when it is created; 0: an error does not end the process."""
_HEAD_START_SECONDS = 0.1
"""Time for a server to refuse a request before the broadcast starts to wait for it."""


class NcclGroup:
    """Rank 0 of a group: a NCCL communicator that the other ranks join by its unique id.

    Its counterpart is vLLM's `PyNcclCommunicator`, which starts with an all-reduce of one number.
    All ranks need compatible NCCL versions and different GPUs.
    """

    def __init__(self, num_ranks: int, device: torch.device) -> None:
        self.unique_id = bytes(nccl.unique_id())
        self._num_ranks = num_ranks
        self._device = device
        self._communicator: Any = None

    def join(self) -> None:
        """Waits for the other ranks."""
        with torch.cuda.device(self._device):
            self._communicator = nccl.init_rank(self._num_ranks, self.unique_id, 0)
            number = torch.zeros(1, device=self._device)
            nccl.all_reduce([number], comms=[self._communicator])
            torch.cuda.current_stream().synchronize()

    def broadcast(self, tensor: Tensor) -> None:
        """Sends the tensor; the other ranks receive in the same order."""
        with torch.cuda.device(self._device):
            nccl.broadcast([tensor.contiguous()], comms=[self._communicator])

    def finish(self) -> None:
        """Waits until everything was sent."""
        torch.cuda.synchronize(self._device)


def open_store(address: str) -> Any:
    """Opens a rendezvous store (`TCPStore`) that listens on this address of this machine only, at a free port."""
    listener = socket.create_server((address, 0))
    return torch.distributed.TCPStore(
        address,
        listener.getsockname()[1],
        is_master=True,
        wait_for_workers=False,
        timeout=_TIMEOUT,
        master_listen_fd=listener.detach(),
    )


def join_torch_group(
    store: Any,
    rank: int,
    num_ranks: int,
    device: torch.device,
    *,
    name: str,
    backend: str,
    timeout: timedelta = _TIMEOUT,
) -> Any:
    """Joins a torch process group that is independent of the default one. Waits for the other ranks, or does so in its first
    broadcast.

    If another rank dies, NCCL's default would end this process, too; here the broadcast fails instead.
    """
    from torch import distributed

    store = distributed.PrefixStore(name, store)
    if backend != "nccl":
        return distributed.ProcessGroupGloo(store, rank, num_ranks, timeout=timeout)
    options: Any = distributed.ProcessGroupNCCL.Options()
    options._timeout = timeout
    options.group_name = name
    before = os.environ.get(_ERROR_HANDLING)
    os.environ[_ERROR_HANDLING] = "0"
    try:
        with torch.cuda.device(device):
            return distributed.ProcessGroupNCCL(store, rank, num_ranks, options)
    finally:
        if before is None:
            del os.environ[_ERROR_HANDLING]
        else:
            os.environ[_ERROR_HANDLING] = before


@torch.no_grad()
def broadcast_all(group: Any, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Sends the tensors one by one, and waits until they are sent. `group`: a `NcclGroup`."""
    for _, tensor in tensors:
        group.broadcast(tensor.detach())
    group.finish()


async def alongside(request: Coroutine[Any, Any, T], work: Callable[[], None], *, last_seconds: float = 60.0) -> T:
    """Returns the answer to the request, after `work` has ended in a thread of its own.

    The first error of either is raised at once, because the other one may wait for its counterpart without end. A thread that
    is left behind does not keep the process from ending.

    Args:
        last_seconds: time for the work to end after the server has answered.

    Raises `EngineError` if the work fails, or does not end in time.
    """
    answer = asyncio.ensure_future(request)
    try:
        await asyncio.wait([answer], timeout=_HEAD_START_SECONDS)
        if answer.done():
            answer.result()
        ended = _in_a_thread(work)
        both: list[asyncio.Future[Any]] = [answer, ended]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            ended.result()
            return await answer
        result = answer.result()
        await asyncio.wait([ended], timeout=last_seconds)
        if not ended.done():
            raise EngineError(f"it answered, but did not take part within {last_seconds:g} s")
        ended.result()
        return result
    finally:
        answer.cancel()


def _in_a_thread(work: Callable[[], None]) -> asyncio.Future[None]:
    """Starts the work in a daemon thread. The future gets its end, or `EngineError`."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    ended.add_done_callback(lambda future: future.cancelled() or future.exception())

    def report(error: Exception | None) -> None:
        if error is not None:
            ended.set_exception(EngineError(f"the broadcast failed ({type(error).__name__}: {str(error)[:300]})"))
        else:
            ended.set_result(None)

    def run() -> None:
        error = None
        try:
            work()
        except Exception as caught:
            error = caught
        with contextlib.suppress(RuntimeError):  # the loop may have been closed meanwhile
            loop.call_soon_threadsafe(report, error)

    threading.Thread(target=run, name="midthought-broadcast", daemon=True).start()
    return ended
