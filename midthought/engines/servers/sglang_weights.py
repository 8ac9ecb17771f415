"""Sends whole models to SGLang servers without a file: CUDA IPC on one GPU, NCCL between GPUs.

Sends the messages that SGLang's `managers/io_struct.py` defines. Does not import sglang.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import pickle
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from midthought.engines.servers.connection import Connection
from midthought.engines.servers.server import WeightIterator
from midthought.engines.weight_sync.broadcast_groups import TorchGroup, alongside, broadcast_all
from midthought.engines.weight_sync.shared_tensors import CudaHandles, Handle
from midthought.errors import EngineError

_GROUP_NAME = "midthought"
_BUCKET_BYTES = 512 * 2**20
"""Bytes that one request announces at most; the server allocates them on its GPU while it receives."""
_DEVICE_ARGUMENT = 6
"""Position of the device in the arguments of torch's `rebuild_cuda_tensor`. SGLang takes the device's UUID there."""


class SGLangIpcSender:
    """`/update_weights_from_tensor`. Implements `midthought.engines.servers.server.WeightSender`.

    The server must run on the learner's GPU alone (`--tp-size 1`).
    """

    def __init__(self, handles: CudaHandles | None = None) -> None:
        self._handles = handles or CudaHandles()

    async def refusal(self, server: Connection) -> str | None:
        num_gpus, reason = await _num_gpus(server)
        if reason is None and num_gpus != 1:
            reason = f"it runs on {num_gpus} GPUs, and handles are opened on the learner's GPU only"
        return reason

    async def send(self, server: Connection, weights: WeightIterator, *, is_new: bool) -> None:
        kept = [(name, tensor.detach().contiguous()) for name, tensor in weights()]
        self._handles.before_sending(kept[0][1])
        named = [
            (name, _Opened(self._handles.handle(tensor), self._handles.device_id(tensor))) for name, tensor in kept
        ]
        body = {
            "serialized_named_tensors": [base64.b64encode(pickle.dumps(named)).decode("ascii")],
            "load_format": None,
            "flush_cache": False,
            "abort_all_requests": False,
        }
        await _post(server, "/update_weights_from_tensor", body)
        del kept, named
        self._handles.after_reading()


class _Opened:
    """Becomes the tensor of a handle when it is unpickled."""

    def __init__(self, handle: Handle, device_id: str) -> None:
        self._function, arguments = handle
        self._arguments = (*arguments[:_DEVICE_ARGUMENT], device_id, *arguments[_DEVICE_ARGUMENT + 1 :])

    def __reduce__(self) -> tuple[Any, ...]:
        return self._function, self._arguments


class SGLangNcclSender:
    """`/update_weights_from_distributed`, with the workers as ranks 1, 2, …. Implements
    `midthought.engines.servers.server.WeightSender`.
    """

    def __init__(self, backend: str = "nccl") -> None:
        self._backend = backend
        self._group: TorchGroup | None = None

    async def refusal(self, server: Connection) -> str | None:
        return (await _num_gpus(server))[1]

    async def send(self, server: Connection, weights: WeightIterator, *, is_new: bool) -> None:
        if is_new or self._group is None:
            self._group = None  # a group that failed is not used again
            self._group = await self._connect(server, next(iter(weights()))[1].device)
        group, self._group = self._group, None
        for bucket in buckets(weights(), _BUCKET_BYTES):
            body = {
                "names": [name for name, _ in bucket],
                "dtypes": [str(tensor.dtype).removeprefix("torch.") for _, tensor in bucket],
                "shapes": [list(tensor.shape) for _, tensor in bucket],
                "group_name": _GROUP_NAME,
                "flush_cache": False,
                "abort_all_requests": False,
                "load_format": None,
            }
            request = _post(server, "/update_weights_from_distributed", body)
            await alongside(request, functools.partial(broadcast_all, group, bucket))
        self._group = group

    async def _connect(self, server: Connection, device: torch.device) -> TorchGroup:
        num_gpus, reason = await _num_gpus(server)
        if reason is not None:
            raise EngineError(reason)
        with contextlib.suppress(EngineError):  # there may be no group of an earlier run
            await server.post("/destroy_weights_update_group", {"group_name": _GROUP_NAME})
        group = TorchGroup(1 + num_gpus, device, name=_GROUP_NAME, backend=self._backend)
        body = {
            "master_address": group.address,
            "master_port": group.port,
            "rank_offset": 1,
            "world_size": 1 + num_gpus,
            "group_name": _GROUP_NAME,
            "backend": group.backend,
        }
        await alongside(_post(server, "/init_weights_update_group", body), group.join)
        return group


def buckets(tensors: Iterable[tuple[str, Tensor]], max_bytes: int) -> Iterator[list[tuple[str, Tensor]]]:
    """Groups tensors so that each group has at most `max_bytes`, or is one larger tensor."""
    bucket: list[tuple[str, Tensor]] = []
    num_bytes = 0
    for name, tensor in tensors:
        if bucket and num_bytes + tensor.nbytes > max_bytes:
            yield bucket
            bucket, num_bytes = [], 0
        bucket.append((name, tensor))
        num_bytes += tensor.nbytes
    if bucket:
        yield bucket


async def _num_gpus(server: Connection) -> tuple[int, str | None]:
    """Returns the number of the server's workers, or the reason why it cannot receive tensors."""
    said = await server.get("/get_server_info") or await server.get("/server_info")
    if said is None or "tp_size" not in said:
        return 0, "it has no /get_server_info; use an SGLang version that has it"
    if said.get("pp_size", 1) != 1 or said.get("dp_size", 1) != 1:
        return 0, f"pp_size={said.get('pp_size')}, dp_size={said.get('dp_size')}: it must be one tensor-parallel group"
    return int(said["tp_size"]), None


async def _post(server: Connection, path: str, body: Any) -> None:
    require_success(await server.post(path, body), path)


def require_success(said: dict[str, Any] | None, path: str) -> None:
    """Raises `EngineError` if the server lacks the route or reports a failure."""
    if said is None:
        raise EngineError(f"it has no {path}; use an SGLang version that has it")
    if said.get("success") is not True:
        raise EngineError(f"{path}: {str(said.get('message') or said)[:300]}")
