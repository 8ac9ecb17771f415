"""Sends whole models to a vLLM server on other GPUs without a file: vLLM's weight transfer over NCCL.

Sends the messages that vLLM 0.32 defines (`entrypoints/rl/online/api_router.py`, `distributed/weight_transfer/`). Does not import
vllm.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from midthought.engines.servers.connection import Connection
from midthought.engines.servers.server import WeightIterator
from midthought.engines.weight_sync.broadcast_groups import NcclGroup, alongside, broadcast_all
from midthought.errors import EngineError

_END_SECONDS = 10.0
"""Time for a server to end an update that failed; it may be blocked in a broadcast."""
_REMEDY = "start it with `midthought engine serve … --nccl`"


class WeightSender:
    """Broadcasts models to one server, whose workers are ranks 1, 2, …"""

    def __init__(self, make_group: Callable[[int, torch.device], Any] = NcclGroup) -> None:
        self._make_group = make_group
        self._group: Any = None

    async def refusal(self, server: Connection) -> str | None:
        """Returns the reason why the server cannot receive tensors, None if it can."""
        said = await server.get("/server_info?config_format=json")
        if said is None:
            return f"it was not started with VLLM_SERVER_DEV_MODE=1; {_REMEDY}"
        backend = ((said.get("vllm_config") or {}).get("weight_transfer_config") or {}).get("backend")
        if backend != "nccl":
            return f"{f'its weight transfer is {backend!r}' if backend else 'it has no weight transfer'}; {_REMEDY}"
        return None

    async def send(self, server: Connection, weights: WeightIterator, *, is_new: bool) -> None:
        """As `Server.send_tensors`."""
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
            raise EngineError(f"it has no /get_world_size: {_REMEDY}")
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


async def _post(server: Connection, path: str, body: Any = None) -> None:
    if await server.post(path, body) is None:
        raise EngineError(f"it has no {path}: use vLLM 0.32 or newer, started with VLLM_SERVER_DEV_MODE=1")
