"""A learner in a process of its own: alone, or as one rank of distributed training with its shard of the models (FSDP2,
`fully_shard`).

All ranks receive the same calls in the same order, and compute their share of every batch; the first rank returns the result.
Each decoder layer is gathered before it computes and resharded afterwards, and so are the parameters outside of layers. Gradients
are summed over the ranks, not averaged. Source: Zhao et al. 2023 (arXiv 2304.11277); TorchTitan (Liang et al. 2024, arXiv
2410.06511), section 2.1. Does not depend on a cluster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from midthought.config import TrainingConfig
from midthought.learning.batch import TokenBatch
from midthought.learning.learner import Learner
from midthought.learning.model import Models
from midthought.learning.optimizer import TrainingSchedule
from midthought.learning.passes import decoder_layers
from midthought.learning.ranks import DistributedGroup, ProcessGroup, part_like, whole


class LearnerWorker:
    """Call `be_alone` first, or `join` on all ranks: it waits for the others.

    Args:
        models: modules in main memory; their tensors may be unfilled before `load`.
        training, schedule: the settings of the learner.
        device: device of this rank. Sums use NCCL on a GPU, gloo on other devices.
    """

    def __init__(
        self, models: Models, training: TrainingConfig, schedule: TrainingSchedule, device: str = "cpu"
    ) -> None:
        self._models = models
        self._training, self._schedule = training, schedule
        self._device = torch.device(device)
        self._moments: dict[str, Tensor] = {}
        self._is_first, self._process_group = True, ProcessGroup()

    def join(self, store: dist.Store, number: int, num_ranks: int, timeout_seconds: float) -> None:
        """Joins as rank `number` of `num_ranks` through `store`, and keeps only this rank's shard of the models.

        `timeout_seconds`: maximum time that a rank waits for the others in a sum.
        """
        backend = "nccl" if self._device.type == "cuda" else "gloo"
        timeout = timedelta(seconds=timeout_seconds)
        dist.init_process_group(backend, store=store, rank=number, world_size=num_ranks, timeout=timeout)
        self._is_first, self._process_group = number == 0, DistributedGroup(self._device)
        shard_models(self._models, self._device)
        self._tensors = self._models.tensors()

    def be_alone(self) -> None:
        """Makes this process the only one, with whole models."""
        for model in self._models:
            if model is not None:
                model.to(self._device)
        self._tensors = self._models.tensors()

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Copies this rank's part of these whole tensors (`Models.tensors`)."""
        for name, tensor in tensors.items():
            self._tensors[name].copy_(part_like(tensor, self._tensors[name]))

    def build_learner(self) -> None:
        """Creates the learner. Call it after every weight is loaded."""
        policy, critic, reference, teacher = self._models
        self.learner = Learner(
            policy, critic, reference, self._training, self._schedule, self._process_group, teacher=teacher
        )

    def tensors(self, names: Sequence[str]) -> dict[str, Tensor]:
        """Returns these weights, whole, in main memory, on the first rank; an empty dict on the others."""
        return self._gathered({name: self._tensors[name].detach() for name in names})

    # -- learning ----------------------------------------------------------------------------------------------

    def set_training(self, training: TrainingConfig, schedule: TrainingSchedule) -> None:
        self.learner.set_training(training, schedule)

    def score(self, batch: TokenBatch) -> tuple[TokenBatch, dict[str, float]]:
        return self.learner.score(batch)

    def update(self, batch: TokenBatch, critic_only: bool) -> tuple[dict[str, float], tuple[int, int]]:
        """Returns the metrics and the numbers of optimizer steps taken: in total, and by the policy."""
        metrics = self.learner.update(batch, critic_only=critic_only)
        return metrics, (self.learner.num_steps, self.learner.num_policy_steps)

    def pass_values(self) -> dict[str, Tensor]:
        return self.learner.pass_values()

    def sft_step(self, batch: TokenBatch, autocast: torch.dtype | None) -> tuple[dict[str, float], tuple[int, int]]:
        """Returns the same. `autocast`: the type in which passes are computed; None: the weights' type."""
        with torch.autocast(self._device.type, dtype=autocast, enabled=autocast is not None):
            metrics = self.learner.sft_step(batch)
        return metrics, (self.learner.num_steps, self.learner.num_policy_steps)

    def sft_loss(self, batch: TokenBatch, autocast: torch.dtype | None) -> float:
        with torch.autocast(self._device.type, dtype=autocast, enabled=autocast is not None):
            return self.learner.sft_loss(batch)

    # -- state -------------------------------------------------------------------------------------------------

    def moment_sizes(self) -> dict[str, int]:
        """Returns the size in bytes of each of the optimizer's tensors, by name."""
        tensors = self.learner.optimizer.tensors()
        return {name: tensor.numel() * tensor.element_size() for name, tensor in tensors.items()}

    def moments(self, names: Sequence[str]) -> dict[str, Tensor]:
        """Returns these optimizer tensors in the same way as `tensors` returns weights."""
        found = self.learner.optimizer.tensors()
        return self._gathered({name: found[name] for name in names})

    def load_moments(self, tensors: Mapping[str, Tensor]) -> None:
        """Keeps this rank's part of the tensors for `restore_steps`."""
        for name, tensor in tensors.items():
            like = self._tensors.get(name.rpartition("/")[0])
            fits = like is not None and like.shape == tensor.shape
            self._moments[name] = part_like(tensor, like) if like is not None and fits else tensor

    def restore_steps(self, num_steps: int, num_policy_steps: int) -> None:
        """Restores the optimizer from loaded weights and moments. Raises CheckpointError if the moments are of other models."""
        moments, self._moments = self._moments, {}
        self.learner.older.clear()
        self.learner.optimizer.load_state_dict(moments)
        self.learner.num_steps, self.learner.num_policy_steps = num_steps, num_policy_steps

    def _gathered(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        found = {}
        for name, tensor in tensors.items():
            gathered = whole(tensor)
            if self._is_first:
                found[name] = gathered.to("cpu", copy=True)
        return found


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
