"""The servers' side of weight transfer without files, on the CPU: it checks every message as the real servers do.

CUDA IPC is replaced by shared memory, NCCL by gloo. Real sources: vLLM 0.32 `entrypoints/rl/online/api_router.py`,
`distributed/weight_transfer/{ipc_engine,nccl_common,nccl_engine}.py`, `v1/worker/gpu_worker.py`; SGLang
`srt/entrypoints/http_server.py`, `srt/managers/io_struct.py`, `srt/utils/patch_torch.py`, and its weight updater.
"""

from __future__ import annotations

import base64
import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed

from midthought.engines.weight_sync.broadcast_groups import TorchGroup
from midthought.engines.weight_sync.shared_tensors import Handle

DEVICE_ID = "GPU-of-the-test"
Answer = tuple[int, Any]
Logits = Callable[[list[int]], list[float]]


def rebuild_shared_tensor(
    cls: type, size: Any, stride: Any, offset: int, storage_cls: Any, dtype: Any, device: Any, *handle: Any
) -> Tensor:
    """Opens a tensor by its handle, whose first arguments are the arguments of torch's `rebuild_cuda_tensor`."""
    assert cls is Tensor and device in (0, DEVICE_ID), device
    storage = storage_cls._new_shared_filename_cpu(*handle)
    return torch.empty(0, dtype=dtype).set_(storage, offset, size, stride)


class SharedHandles:
    """Handles of tensors on the CPU. As `midthought.engines.weight_sync.shared_tensors.CudaHandles`."""

    def device_id(self, tensor: Tensor) -> str:
        return DEVICE_ID

    def handle(self, tensor: Tensor) -> Handle:
        storage = tensor.untyped_storage()
        place = (tensor.size(), tensor.stride(), tensor.storage_offset())
        return rebuild_shared_tensor, (
            *(Tensor, *place, torch.UntypedStorage, tensor.dtype, 0),
            *storage._share_filename_cpu_(),
        )

    def before_sending(self, tensor: Tensor) -> None:
        pass

    def after_reading(self) -> None:
        pass


class GlooGroup(TorchGroup):
    """The counterpart of `NcclGroup`: its unique id, of NCCL's length, names the store."""

    def __init__(self, num_ranks: int, device: torch.device) -> None:
        super().__init__(num_ranks, device, name="vllm", backend="gloo")
        self.unique_id = f"{self.address} {self.port}".encode().ljust(128, b"\0")


def joined(address: str, port: int, *, rank: int, world_size: int, group_name: str, backend: str) -> Any:
    """Joins with the keys of SGLang's `init_custom_process_group`, which torch's own helper makes (`join_and_receive`).

    Torch registers a group's name once per process, so the helper itself cannot serve several servers of one process.
    """
    assert backend == "gloo"
    timeout = timedelta(seconds=20)
    store: Any = distributed.TCPStore(address, port, world_size, is_master=False, timeout=timeout)
    for prefix in (group_name, f"{group_name}/", "cpu/"):
        store = distributed.PrefixStore(prefix, store)
    return distributed.ProcessGroupGloo(store, rank, world_size, timeout=timeout)


def join_and_receive(address: str, port: int, name: str, found: Any) -> None:
    """A process that joins like SGLang's worker (`srt/utils/common.py`, its weight updater) and receives one tensor."""
    from torch.distributed import distributed_c10d

    timeout = timedelta(seconds=60)
    store, _, _ = next(distributed_c10d.rendezvous(f"tcp://{address}:{port}", 1, 2, timeout=timeout))
    backend, prefixed = distributed.Backend("gloo"), distributed.PrefixStore(name, store)
    group, _ = distributed_c10d._new_process_group_helper(2, 1, [], backend, prefixed, group_name=name, timeout=timeout)
    distributed_c10d._world.pg_group_ranks[group] = {0: 0, 1: 1}
    tensor = torch.empty(3)
    distributed.broadcast(tensor, src=0, group=group, async_op=True).wait()
    found.put(tensor.tolist())


def receive(group: Any, dtypes: list[str], shapes: list[list[int]]) -> list[Tensor]:
    tensors = [torch.empty(shape, dtype=getattr(torch, dtype)) for dtype, shape in zip(dtypes, shapes, strict=True)]
    for tensor in tensors:
        group.broadcast(tensor, 0).wait()
    return tensors


@dataclass(kw_only=True)
class VLLMIpcInit:
    packed: bool = False


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


@dataclass(kw_only=True)
class VLLMIpcUpdate(VLLMUpdate):
    ipc_handles_pickled: str | None = None
    ipc_handles: list[Any] | None = None
    tensor_sizes: list[int] | None = None


class Receiver:
    """A server's model, which gets tensors under their names in a checkpoint."""

    def __init__(self, model: Any, logits_of: Callable[[Any], Logits]) -> None:
        self.model, self.logits_of = model, logits_of
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
        except (AssertionError, TypeError, KeyError, RuntimeError, ValueError, pickle.UnpicklingError) as error:
            return 500, {"error": {"message": f"{type(error).__name__}: {error}"}}

    def _answer(self, path: str, body: Any) -> Answer | None:
        raise NotImplementedError


class VLLMReceiver(Receiver):
    """vLLM's routes for one backend; `backend=None` is a server without `--weight-transfer-config`."""

    def __init__(self, model: Any, logits_of: Callable[[Any], Logits], backend: str | None) -> None:
        super().__init__(model, logits_of)
        self.backend = backend
        self.is_active = False
        self.init: Any = None
        self.group: Any = None
        self._pending: list[tuple[str, Tensor]] = []

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
        (info,) = [body["init_info"]]
        assert set(body) == {"init_info"}
        self.init = {"ipc": VLLMIpcInit, "nccl": VLLMNcclInit}[self.backend or ""](**info)
        assert not self.init.packed
        if self.backend == "nccl":
            address, port = base64.b64decode(self.init.nccl_unique_id_b64).rstrip(b"\0").decode().split()
            self.num_groups += 1
            self.group = joined(
                address, int(port), rank=self.init.rank_offset, world_size=self.init.world_size,
                group_name="vllm", backend="gloo",
            )  # fmt: skip

    def shutdown_weight_transfer_engine(self, body: Any) -> None:
        assert not self.is_active
        if self.group is not None:
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
        if self.backend == "nccl":
            update = VLLMUpdate(**info)
            assert self.group is not None, "NCCL weight transfer not initialized."
            self._pending += zip(update.names, receive(self.group, update.dtype_names, update.shapes), strict=True)
            return
        ipc = VLLMIpcUpdate(**info)
        handles = pickle.loads(base64.b64decode(ipc.ipc_handles_pickled or ""))  # noqa: S301
        assert isinstance(handles, list) and len(handles) == len(ipc.names)
        for name, shape, dtype, handle in zip(ipc.names, ipc.shapes, ipc.dtype_names, handles, strict=True):
            arguments = list(handle[DEVICE_ID])
            arguments[6] = 0
            tensor = rebuild_shared_tensor(*arguments)
            assert list(tensor.shape) == shape and tensor.dtype == getattr(torch, dtype)
            self._pending.append((name, tensor))

    def finish_weight_update(self, body: Any) -> None:
        assert self.is_active, "finish_weight_update called without a matching start_weight_update."
        self.is_active = False
        self.load(self._pending)  # layerwise reloading reads the memory of the trainer until here
        self._pending = []


class SafeUnpickler(pickle.Unpickler):
    """Allows what SGLang's class of this name allows and this needs, and the function of this module."""

    def find_class(self, module: str, name: str) -> Any:
        if not f"{module}.".startswith(("torch.", "builtins.", "collections.")) and module != __name__:
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed")
        return super().find_class(module, name)


SGLANG_FIELDS: dict[str, dict[str, type | tuple[type, ...]]] = {
    "/init_weights_update_group": {
        "master_address": str, "master_port": int, "rank_offset": int, "world_size": int, "group_name": str, "backend": str,
    },
    "/destroy_weights_update_group": {"group_name": str},
    "/update_weights_from_distributed": {
        "names": list, "dtypes": list, "shapes": list, "group_name": str, "flush_cache": bool, "abort_all_requests": bool,
        "load_format": (str, type(None)),
    },
    "/update_weights_from_tensor": {
        "serialized_named_tensors": list, "load_format": (str, type(None)), "flush_cache": bool, "abort_all_requests": bool,
    },
}  # fmt: skip
"""Fields of `srt/managers/io_struct.py` that this may send, with their types."""


class SGLangReceiver(Receiver):
    """SGLang's routes on one GPU."""

    def __init__(self, model: Any, logits_of: Callable[[Any], Logits], *, tp_size: int = 1) -> None:
        super().__init__(model, logits_of)
        self.tp_size = tp_size
        self.groups: dict[str, Any] = {}

    def _answer(self, path: str, body: Any) -> Answer | None:
        if path == "/get_server_info":
            return 200, {"tp_size": self.tp_size, "pp_size": 1, "dp_size": 1}
        if path not in SGLANG_FIELDS:
            return None
        types = SGLANG_FIELDS[path]
        assert set(body) <= set(types), set(body) - set(types)
        assert all(isinstance(value, types[name]) for name, value in body.items()), body
        try:
            getattr(self, path[1:])(**body)
        except Exception as error:
            return 400, {"success": False, "message": f"Failed: {type(error).__name__}: {error}"}
        return 200, {"success": True, "message": "Succeeded."}

    def init_weights_update_group(
        self, *, master_address: str, master_port: int, rank_offset: int, world_size: int, group_name: str, backend: str
    ) -> None:
        self.num_groups += 1
        self.groups[group_name] = joined(
            master_address, master_port, rank=rank_offset, world_size=world_size, group_name=group_name, backend=backend
        )

    def destroy_weights_update_group(self, *, group_name: str) -> None:
        del self.groups[group_name]

    def update_weights_from_distributed(
        self, *, names: list[str], dtypes: list[str], shapes: list[list[int]], group_name: str, **others: Any
    ) -> None:
        assert others == {"flush_cache": False, "abort_all_requests": False, "load_format": None}
        self.load(list(zip(names, receive(self.groups[group_name], dtypes, shapes), strict=True)))

    def update_weights_from_tensor(self, *, serialized_named_tensors: list[str], **others: Any) -> None:
        assert others == {"flush_cache": False, "abort_all_requests": False, "load_format": None}
        assert len(serialized_named_tensors) == self.tp_size
        data = base64.b64decode(serialized_named_tensors[0], validate=True)
        self.load(SafeUnpickler(io.BytesIO(data)).load())
