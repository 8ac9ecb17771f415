"""The bandwidth-bound floor of decoding: every step reads all weights and all keys and values once. No system beats it."""

from __future__ import annotations

import time

import torch

from benchmarks.reciter import Reciter
from benchmarks.work import Shape

NUM_COPIED_BYTES = 2**30
NUM_COPIES = 10


def decoding_floor(reciter: Reciter, shape: Shape) -> float:
    """Seconds that the memory's bandwidth alone asks for to decode without tools; prefill and arithmetic left out."""
    num_bytes = decoded_bytes(reciter, shape)
    return num_bytes / bandwidth(reciter.model.device)


def decoded_bytes(reciter: Reciter, shape: Shape) -> int:
    """Bytes read in all steps: weights but the embeddings (of which a step reads single rows), and the cache so far."""
    model, size = reciter.model, reciter.size
    itemsize = model.dtype.itemsize
    num_weights = sum(weight.numel() for weight in model.parameters()) - model.get_input_embeddings().weight.numel()
    num_per_token = 2 * size.num_layers * size.num_kv_heads * size.head_dim
    num_steps = shape.num_sampled - 1
    num_cached = sum(shape.num_prompt + step for step in range(1, num_steps + 1)) * shape.num_episodes
    return itemsize * (num_steps * num_weights + num_cached * num_per_token)


def bandwidth(device: torch.device, num_bytes: int = NUM_COPIED_BYTES) -> float:
    """Bytes a second, read or written, of the best of some copies."""
    source = torch.ones(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = []
    for _ in range(NUM_COPIES):
        _wait(device)
        began = time.perf_counter()
        target.copy_(source)
        _wait(device)
        seconds.append(time.perf_counter() - began)
    return 2 * num_bytes / min(seconds)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
