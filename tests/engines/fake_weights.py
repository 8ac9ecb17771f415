"""vLLM's side of weight transfer without files, on the CPU: it checks every message as the real server does.

NCCL is replaced by gloo. Real sources: vLLM 0.32 `entrypoints/rl/online/api_router.py`, `v1/worker/gpu_worker.py`,
`distributed/weight_transfer/{nccl_common,nccl_engine}.py`.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed

from midthought.engines.weight_sync.broadcast_groups import join_torch_group, open_store

Answer = tuple[int, Any]
Logits = Callable[[list[int]], list[float]]
NAME = "vllm"


class GlooGroup:
    """The counterpart of `NcclGroup`: its unique id, of NCCL's length, names the store."""

    def __init__(self, num_ranks: int, device: torch.device) -> None:
        self._store, self._num_ranks, self._device = open_store("127.0.0.1"), num_ranks, device
        self.unique_id = f"127.0.0.1 {self._store.port}".encode().ljust(128, b"\0")

    def join(self) -> None:
        self._group = join_torch_group(self._store, 0, self._num_ranks, self._device, name=NAME, backend="gloo")

    def broadcast(self, tensor: Tensor) -> None:
        self._group.broadcast(tensor.contiguous(), 0).wait()

    def finish(self) -> None:
        pass


def joined(unique_id: bytes, *, rank: int, world_size: int) -> Any:
    address, port = unique_id.rstrip(b"\0").decode().split()
    timeout = timedelta(seconds=20)
    store: Any = distributed.TCPStore(address, int(port), world_size, is_master=False, timeout=timeout)
    return join_torch_group(store, rank, world_size, torch.device("cpu"), name=NAME, backend="gloo", timeout=timeout)


def receive(group: Any, dtypes: list[str], shapes: list[list[int]]) -> list[Tensor]:
    tensors = [torch.empty(shape, dtype=getattr(torch, dtype)) for dtype, shape in zip(dtypes, shapes, strict=True)]
    for tensor in tensors:
        group.broadcast(tensor, 0).wait()
    return tensors


@dataclass(kw_only=True)
class VLLMNcclInit:
    rank_offset: int
    world_size: int
    master_address: str | None = None
    master_port: int | None = None
    nccl_unique_id_b64: str | None = None
    packed: bool = False
    packed_buffer_size_bytes: int = 2**30
    packed_num_buffers: int = 2

    def __post_init__(self) -> None:
        assert bool(self.nccl_unique_id_b64) != (self.master_address is not None and self.master_port is not None)
        assert len(base64.b64decode(self.nccl_unique_id_b64 or "", validate=True)) == 128


@dataclass(kw_only=True)
class VLLMUpdate:
    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]

    def __post_init__(self) -> None:
        assert len(self.names) == len(self.dtype_names) == len(self.shapes)


class VLLMReceiver:
    """A server's model, which gets tensors under their names in a checkpoint.

    `backend=None` is a server without `--weight-transfer-config`.
    """

    def __init__(self, model: Any, logits_of: Callable[[Any], Logits], backend: str | None = "nccl") -> None:
        self.model, self.logits_of, self.backend = model, logits_of, backend
        self.is_active = False
        self.group: Any = None
        self._pending: list[tuple[str, Tensor]] = []
        self.lost: set[str] = set()
        """Tensors that arrive and are not loaded."""
        self.fails_at = ""
        """Path of the next request that fails."""
        self.cuts_at = ""
        """Path of the next request whose connection is closed without an answer."""
        self.messages: list[tuple[str, Any]] = []
        self.num_groups = 0

    def load(self, tensors: list[tuple[str, Tensor]]) -> None:
        own = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, tensor in tensors:
                if name not in self.lost:
                    assert own[name].shape == tensor.shape and own[name].dtype == tensor.dtype
                    own[name].copy_(tensor)

    def logits(self) -> Logits:
        return self.logits_of(self.model)

    def answer(self, path: str, body: Any) -> Answer | None:
        """Answers a request; None if there is no such route."""
        self.messages.append((path, body))
        if path == self.cuts_at:
            self.cuts_at = ""
            raise ConnectionResetError
        try:
            if path == self.fails_at:
                self.fails_at = ""
                raise RuntimeError("out of order")
            return self._answer(path, body)
        except (AssertionError, TypeError, KeyError, RuntimeError, ValueError) as error:
            return 500, {"error": {"message": f"{type(error).__name__}: {error}"}}

    def _answer(self, path: str, body: Any) -> Answer | None:
        if path == "/server_info?config_format=json":
            config = {"backend": self.backend} if self.backend else None
            return 200, {"vllm_config": {"weight_transfer_config": config}, "vllm_env": {}, "system_env": {}}
        if path == "/get_world_size":
            return 200, {"world_size": 1}
        if path not in ("/init_weight_transfer_engine", "/start_weight_update", "/update_weights",
                        "/finish_weight_update", "/shutdown_weight_transfer_engine"):  # fmt: skip
            return None
        assert self.backend is not None, "Weight transfer not configured."
        getattr(self, path[1:])(body)
        return 200, {"message": "done"}

    def init_weight_transfer_engine(self, body: Any) -> None:
        assert set(body) == {"init_info"}
        init = VLLMNcclInit(**body["init_info"])
        assert not init.packed
        self.num_groups += 1
        unique_id = base64.b64decode(init.nccl_unique_id_b64 or "")
        self.group = joined(unique_id, rank=init.rank_offset, world_size=init.world_size)

    def shutdown_weight_transfer_engine(self, body: Any) -> None:
        assert not self.is_active
        self.group = None

    def start_weight_update(self, body: Any) -> None:
        assert body is None and not self.is_active, "start_weight_update called while a weight update is already active"
        self.is_active, self._pending = True, []

    def update_weights(self, body: Any) -> None:
        assert self.is_active, "start_weight_update must be called before update_weights."
        assert set(body) == {"update_info"}
        try:
            self._receive(body["update_info"])
        except BaseException:
            self.is_active = False
            raise

    def _receive(self, info: dict[str, Any]) -> None:
        update = VLLMUpdate(**info)
        assert self.group is not None, "NCCL weight transfer not initialized."
        self._pending += zip(update.names, receive(self.group, update.dtype_names, update.shapes), strict=True)

    def finish_weight_update(self, body: Any) -> None:
        assert self.is_active, "finish_weight_update called without a matching start_weight_update."
        self.is_active = False
        self.load(self._pending)
        self._pending = []
