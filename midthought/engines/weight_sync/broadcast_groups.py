"""Groups of Ray processes in which rank 0 broadcasts tensors."""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from typing import Any

import torch

_TIMEOUT = timedelta(seconds=300)
"""Time for all ranks to join, and for one broadcast."""
_ERROR_HANDLING = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
"""Environment variable that a NCCL process group reads when it is created; 0: an error does not end the process."""


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
