"""Peak memory of saving a checkpoint or the exported model, in bytes: main memory, and the device of the weights."""

from __future__ import annotations

from midthought.plan.activations import FLOAT
from midthought.plan.memory import Memory

SHARD_BYTES = 2 * 2**30
"""Size of a shard of a merged model on disk (`peft_folders.MAX_SHARD_BYTES`)."""
BYTES_OF_CHECK = 3
"""Bytes per number, besides its absolute value, while a tensor is checked for values that are not finite: three truth values."""


def main_memory_bytes(memory: Memory) -> int:
    """Returns the peak main memory of the process that writes from a GPU.

    Weights, the critic's weights and the optimizer's states are copied and written one after the other. With LoRA a checkpoint
    holds the adapters; the merged model is written in shards of whole layers, each map merged by itself.
    """
    settings, shape, width = memory.settings, memory.shape, memory.width
    optimizer = 0 if settings.offload_optimizer else settings.num_shards * memory.whole.optimizer
    if not settings.lora_rank:
        return max(width * shape.parameters, _critic_bytes(memory), optimizer)
    shard = min(SHARD_BYTES + width * shape.layer_parameters, width * shape.parameters)
    return max(FLOAT * memory.adapter_parameters, _critic_bytes(memory), optimizer, shard + memory.merge_temporary)


def device_bytes(memory: Memory) -> int:
    """Returns the peak on the device of the weights, beside what is held.

    One tensor at a time is checked for values that are not finite. On a CPU, only a critic and layers with adapters are copied.
    """
    settings, shape, width = memory.settings, memory.shape, memory.width
    check = memory.shared((width + BYTES_OF_CHECK) * max(shape.embedding_parameters, shape.largest_map))
    if settings.device == "gpu":
        return check
    shard = min(SHARD_BYTES, width * shape.all_layers_parameters) + memory.merge_temporary
    return max(check, _critic_bytes(memory), shard if settings.lora_rank else 0)


def _critic_bytes(memory: Memory) -> int:
    return memory.width * memory.shape.trunk_parameters if memory.settings.critic == "separate" else 0
