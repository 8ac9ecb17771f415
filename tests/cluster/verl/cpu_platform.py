"""A CPU as a platform of verl: VERL_USE_EXTERNAL_MODULES names this module, VERL_PLATFORM=cpu chooses it.

Only for tests. Also needed: VERL_ENGINE_DEVICE=cuda, because verl registers its FSDP engine for GPUs only.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AutoModelForTokenClassification
from verl.plugin.platform import PlatformRegistry
from verl.plugin.platform.platform_base import PlatformBase


def _device() -> types.ModuleType:
    """`torch.cpu` with what verl asks of `torch.cuda` besides."""
    module = types.ModuleType("cpu_device")
    more: dict[str, Any] = {name: getattr(torch.cpu, name) for name in dir(torch.cpu)}
    counts = ("max_memory_allocated", "max_memory_reserved", "memory_allocated", "memory_reserved")
    more |= dict.fromkeys(counts, lambda *_: 0)
    more |= dict.fromkeys(("empty_cache", "ipc_collect", "reset_peak_memory_stats"), lambda *_: None)
    more |= {"mem_get_info": lambda *_: (1, 1), "get_device_name": lambda *_: "cpu"}
    vars(module).update(more, get_rng_state=torch.get_rng_state, set_rng_state=torch.set_rng_state)
    return module


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):
    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _device()

    def is_available(self) -> bool:
        return True

    def current_device(self) -> Any:
        return "cpu"

    def device_count(self) -> int:
        return 1

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CPU"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def ray_resource_name(self) -> str:
        return "GPU"  # verl counts GPUs: declare one that does not exist (ray_kwargs.ray_init.num_gpus)

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def _nothing(self, *_: Any) -> None:
        """A CPU has nothing to do here."""

    set_device = synchronize = manual_seed = manual_seed_all = set_allocator_settings = empty_cache = _nothing
    profiler_start = profiler_stop = cudart = _nothing


def _init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> None:
    """verl names the backend "cpu:gloo,DEVICE:BACKEND". If the device is a CPU, torch refuses the second entry."""
    _torch_init_process_group("gloo" if backend == "cpu:gloo,cpu:gloo" else backend, *args, **kwargs)


_torch_init_process_group = torch.distributed.init_process_group
torch.distributed.init_process_group = _init_process_group


def _token_classifier(*args: Any, **kwargs: Any) -> Any:
    """verl loads a critic with flash attention, whatever its configuration says."""
    return _from_pretrained(*args, **kwargs | {"attn_implementation": "eager"})


_from_pretrained = AutoModelForTokenClassification.from_pretrained
AutoModelForTokenClassification.from_pretrained = _token_classifier


# verl offloads the reference model into pinned memory, which needs an accelerator.
torch.Tensor.pin_memory = lambda tensor, *_: tensor
