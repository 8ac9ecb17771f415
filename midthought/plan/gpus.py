"""GPUs by name: memory, bandwidth, speed and link. Sources: NVIDIA's data sheets of each, dense figures without sparsity."""

from __future__ import annotations

from dataclasses import dataclass

GIB = 2**30


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """What a plan needs to know of a GPU."""

    memory_gib: float
    """What PyTorch reports of it, about: less than the name says."""
    bandwidth_gbs: float
    """Of its memory, GB/s."""
    tflops: float
    """bfloat16, dense, 10^12 operations a second."""
    link_gbs: float
    """To its neighbours in the node, GB/s in one direction: half of what NVLink's data sheets say of both."""

    @property
    def memory_bytes(self) -> int:
        return round(self.memory_gib * GIB)


GPUS = {
    "a100-40": Gpu(memory_gib=39.4, bandwidth_gbs=1555, tflops=312, link_gbs=300),
    "a100": Gpu(memory_gib=79.2, bandwidth_gbs=2039, tflops=312, link_gbs=300),
    "h100": Gpu(memory_gib=79.2, bandwidth_gbs=3350, tflops=989, link_gbs=450),
    "h100-pcie": Gpu(memory_gib=79.2, bandwidth_gbs=2000, tflops=756, link_gbs=64),
    "h200": Gpu(memory_gib=139.8, bandwidth_gbs=4800, tflops=989, link_gbs=450),
    "b200": Gpu(memory_gib=178.0, bandwidth_gbs=8000, tflops=2250, link_gbs=900),
    "l40s": Gpu(memory_gib=44.4, bandwidth_gbs=864, tflops=362, link_gbs=32),
    "l4": Gpu(memory_gib=22.0, bandwidth_gbs=300, tflops=121, link_gbs=32),
    "rtx4090": Gpu(memory_gib=23.5, bandwidth_gbs=1008, tflops=165, link_gbs=32),
}
"""By the names that `gpu=` takes; SXM where it is not said."""
