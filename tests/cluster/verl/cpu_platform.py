"""A CPU as a platform of verl, and its SFT trainer on it: `python cpu_platform.py OVERRIDE…`, one process.

Only for tests. verl's own entry point names the process group's backend `cpu:gloo,cpu:gloo`, which torch refuses, so the group
is made here; the engine is the one registered for GPUs (VERL_ENGINE_DEVICE).
"""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from verl.plugin.platform import PlatformRegistry
from verl.plugin.platform.platform_base import PlatformBase

NAMES = ("max_memory_allocated", "max_memory_reserved", "memory_allocated", "memory_reserved")


def _device() -> types.ModuleType:
    """`torch.cpu` with what verl asks of `torch.cuda` besides."""
    module = types.ModuleType("cpu_device")
    for name in dir(torch.cpu):
        setattr(module, name, getattr(torch.cpu, name))
    for name in NAMES:
        setattr(module, name, lambda *_: 0)
    for name in ("empty_cache", "ipc_collect", "reset_peak_memory_stats"):
        setattr(module, name, lambda *_: None)
    more: dict[str, Any] = {"mem_get_info": lambda *_: (1, 1), "get_device_name": lambda *_: "cpu"}
    more |= {"get_rng_state": torch.get_rng_state, "set_rng_state": torch.set_rng_state}
    for name, value in more.items():
        setattr(module, name, value)
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
        return "CPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def _nothing(self, *_: Any) -> None:
        """A CPU has nothing to do here."""

    set_device = synchronize = manual_seed = manual_seed_all = set_allocator_settings = empty_cache = _nothing
    profiler_start = profiler_stop = cudart = _nothing


def main(words: list[str]) -> None:
    os.environ |= {"VERL_PLATFORM": "cpu", "VERL_ENGINE_DEVICE": "cuda"}
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    from verl.trainer.sft_trainer import SFTTrainer

    from midthought.cluster.verl.installed import compose
    from midthought.cluster.verl.sft_bundle import SFT_CONFIG

    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    SFTTrainer(compose(words, SFT_CONFIG)).fit()


if __name__ == "__main__":
    main(sys.argv[1:])
