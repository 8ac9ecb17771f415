"""Sharded models: FSDP2 (`fully_shard`) on the ranks of a process group.

Each decoder layer is gathered before it computes and resharded afterwards, and so are the parameters outside of layers.
Gradients are summed over the ranks, not averaged. Source: Zhao et al. 2023 (arXiv 2304.11277); TorchTitan (Liang et al.
2024, arXiv 2410.06511), section 2.1. Does not depend on a batch or a loss.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from midthought.learning.layers import decoder_layers
from midthought.learning.model import Models


def shard_models(models: Models, device: torch.device) -> None:
    """Shards the models in place: parameters become DTensors on the device, with this rank's part of each.

    All ranks of the process group must call it, with models of the same shape. A shared critic has no trunk, and a LoRA
    policy that is its own reference is sharded once. Raises ValueError for a model without `decoder_layers`.
    """
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    policy, critic, reference, teacher = models
    trunk = critic.trunk if critic is not None else None
    others = [reference] if reference is not policy else []
    for model in [policy, trunk, *others, teacher]:
        if model is not None:
            for layer in decoder_layers(model):
                _shard(layer, mesh)
            _shard(model, mesh)
    if critic is not None:
        _shard(critic.head.linear, mesh)


def _shard(module: nn.Module, mesh: Any) -> None:
    """Also reshards the outermost module after its forward pass: if a pass without gradients left it whole, the next pass
    gave wrong gradients (torch 2.13). Half precision is summed in float32."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    halves = any(p.requires_grad and p.dtype in (torch.bfloat16, torch.float16) for p in module.parameters())
    precision = MixedPrecisionPolicy(reduce_dtype=torch.float32 if halves else None)
    sharded: Any = fully_shard(module, mesh=mesh, reshard_after_forward=True, mp_policy=precision)
    sharded.set_gradient_divide_factor(1.0)
    sharded.set_force_sum_reduction_for_comms(True)  # gloo has no sum with a factor
