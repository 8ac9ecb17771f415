"""Sends whole models to vLLM servers without a file, with vLLM's weight transfer: CUDA IPC on one GPU, NCCL between GPUs.

Sends the messages that vLLM 0.32 defines (`entrypoints/rl/online/api_router.py`, `distributed/weight_transfer/`). Does not import
vllm.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import pickle
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from midthought.engines.servers.connection import Connection
from midthought.engines.servers.server import WeightIterator
from midthought.engines.weight_sync.broadcast_groups import NcclGroup, alongside, broadcast_all
from midthought.engines.weight_sync.shared_tensors import CudaHandles
from midthought.errors import EngineError

_END_SECONDS = 10.0
"""Time for a server to end an update that failed; it may be blocked in a broadcast."""
_REMEDY = "start it with `midthought engine serve … --weight-transport {0}`"


class VLLMIpcSender:
    """vLLM's backend `ipc`. Implements `midthought.engines.servers.server.WeightSender`.

    The server unpickles the handles (VLLM_ALLOW_INSECURE_SERIALIZATION=1), so only trusted processes may reach it. It must run on
    the learner's GPU alone (no tensor parallelism over several GPUs).
    """

    def __init__(self, handles: CudaHandles | None = None) -> None:
        self._handles = handles or CudaHandles()

    async def refusal(self, server: Connection) -> str | None:
        return await _refusal(server, "ipc")

    async def send(self, server: Connection, weights: WeightIterator, *, is_new: bool) -> None:
        if is_new:
            await _post(server, "/init_weight_transfer_engine", {"init_info": {"packed": False}})
        kept = [(name, tensor.detach().contiguous()) for name, tensor in weights()]
        self._handles.before_sending(kept[0][1])
        handles = [{self._handles.device_id(tensor): self._handles.handle(tensor)[1]} for _, tensor in kept]
        pickled = base64.b64encode(pickle.dumps(handles)).decode("ascii")
        async with _weight_update(server):
            await _post(server, "/update_weights", {"update_info": _metadata(kept) | {"ipc_handles_pickled": pickled}})
        del kept, handles  # vLLM reads the tensors until the update is finished
        self._handles.after_reading()


class VLLMNcclSender:
    """vLLM's backend `nccl`, with the workers as ranks 1, 2, …. Implements `midthought.engines.servers.server.WeightSender`."""

    def __init__(self, make_group: Callable[[int, torch.device], Any] = NcclGroup) -> None:
        self._make_group = make_group
        self._group: NcclGroup | None = None

    async def refusal(self, server: Connection) -> str | None:
        return await _refusal(server, "nccl")

    async def send(self, server: Connection, weights: WeightIterator, *, is_new: bool) -> None:
        if is_new or self._group is None:
            self._group = None  # a group that failed is not used again
            self._group = await self._connect(server, next(iter(weights()))[1].device)
        group, self._group = self._group, None
        body = {"update_info": _metadata(weights())}
        async with _weight_update(server):
            await alongside(_post(server, "/update_weights", body), lambda: broadcast_all(group, weights()))
        self._group = group

    async def _connect(self, server: Connection, device: torch.device) -> Any:
        with contextlib.suppress(EngineError):  # there may be nothing to end
            await server.post("/shutdown_weight_transfer_engine")
        said = await server.get("/get_world_size")
        if said is None:
            raise EngineError(f"it has no /get_world_size: {_REMEDY.format('nccl')}")
        num_ranks = 1 + int(said["world_size"])
        group = self._make_group(num_ranks, device)
        info = {
            "nccl_unique_id_b64": base64.b64encode(group.unique_id).decode("ascii"),
            "rank_offset": 1,
            "world_size": num_ranks,
            "packed": False,
        }
        await alongside(_post(server, "/init_weight_transfer_engine", {"init_info": info}), group.join)
        return group


@contextlib.asynccontextmanager
async def _weight_update(server: Connection) -> AsyncIterator[None]:
    """Starts and finishes an update. After an error it is finished, too, because vLLM refuses a second start."""
    await _post(server, "/start_weight_update")
    try:
        yield
    except BaseException:
        with contextlib.suppress(Exception):
            async with asyncio.timeout(_END_SECONDS):
                await server.post("/finish_weight_update")
        raise
    await _post(server, "/finish_weight_update")


def _metadata(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, Any]:
    described = [(name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)) for name, tensor in tensors]
    names, dtype_names, shapes = (list(column) for column in zip(*described, strict=True))
    return {"names": names, "dtype_names": dtype_names, "shapes": shapes}


async def _post(server: Connection, path: str, body: Any = None) -> dict[str, Any]:
    said = await server.post(path, body)
    if said is None:
        raise EngineError(f"it has no {path}: use vLLM 0.32 or newer, started with VLLM_SERVER_DEV_MODE=1")
    return said


async def _refusal(server: Connection, backend: str) -> str | None:
    said = await server.get("/server_info?config_format=json")
    if said is None:
        return f"it was not started with VLLM_SERVER_DEV_MODE=1; {_REMEDY.format(backend)}"
    config = (said.get("vllm_config") or {}).get("weight_transfer_config") or {}
    if config.get("backend") != backend:
        other = (
            f"its weight transfer is {config['backend']!r}" if config.get("backend") else "it has no weight transfer"
        )
        return f"{other}; {_REMEDY.format(backend)}"
    return None
