"""AdamW on the policy and the critic: schedule, clipping, float32 copies of weights in half precision, its state by name.

Knows no batch and no loss.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from midthought.config import TrainingConfig
from midthought.errors import CheckpointError
from midthought.learning.distributed.dtensor import part_like, whole
from midthought.learning.lr_schedule import NO_END, TrainingSchedule, learning_rate_factor

BETAS = (0.9, 0.95)
HALF = (torch.bfloat16, torch.float16)
GRADIENT_NORMS = {"policy": "grad_norm", "critic": "critic_grad_norm"}
"""Figure by module."""
MASTER = "master"
"""In the state: the float32 copy of a weight."""


class Optimizer:
    """One step for all modules; gradients are clipped for each on its own.

    Where weights are in half precision and `master_weights` is set, float32 copies learn in their place: gradients move to
    the copies after every backward pass (`gather`), and add up there; after a step the weights are the copies, rounded.
    Source: Micikevicius et al. 2018 (arXiv 1710.03740), section 3.1.
    """

    def __init__(
        self,
        modules: Mapping[str, nn.Module],
        training: TrainingConfig,
        schedule: TrainingSchedule = NO_END,
    ) -> None:
        """`modules`: `policy`, `critic`, or both. What requires no gradient does not learn."""
        self._modules = modules
        self.training = training
        self.schedule = schedule
        self._masters: dict[nn.Parameter, Tensor] = {}
        for _, parameter in self._named():
            if training.master_weights and parameter.requires_grad and parameter.dtype in HALF:
                self._masters[parameter] = parameter.detach().float()
        self._adam = torch.optim.AdamW(self._groups(), betas=BETAS, weight_decay=0.0, fused=True)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """AdamW's."""
        return self._adam.param_groups

    def zero_grad(self) -> None:
        for module in self._modules.values():
            module.zero_grad(set_to_none=True)
        for master in self._masters.values():
            master.grad = None

    def gather(self) -> None:
        """After a backward pass: what half-precision weights have as gradients is added to that of their copies."""
        for parameter, master in self._masters.items():
            if parameter.grad is not None:
                gradient = parameter.grad.float()
                master.grad = gradient if master.grad is None else master.grad.add_(gradient)
                parameter.grad = None

    def step(self, numbers: Mapping[str, int]) -> dict[str, float]:
        """One step of the modules in `numbers` (module -> its own step number, from 0); none if a gradient is not finite.

        Modules that are not in it are left as they are. Returns `grad_norm` (of the policy, before clipping),
        `critic_grad_norm`, `learning_rate` (the policy's), each if that module steps, and `num_skipped_steps`.
        """
        modules = {name: module for name, module in self._modules.items() if name in numbers}
        for waiting in (module for name, module in self._modules.items() if name not in numbers):
            for learning in self._learning(waiting):
                learning.grad = None
        rates = {name: self._peak(name) * self.learning_rate_factor(name, numbers[name]) for name in modules}
        for group in self._adam.param_groups:
            if group["module"] in rates:
                group["lr"] = rates[group["module"]]
        norms = {name: self._clip(module) for name, module in modules.items()}
        finite = all(math.isfinite(norm) for norm in norms.values())
        if finite:
            self._adam.step()
            self._round()
        figures = {GRADIENT_NORMS[name]: norm for name, norm in norms.items()}
        if "policy" in rates:
            figures["learning_rate"] = rates["policy"]
        return {**figures, "num_skipped_steps": float(not finite)}

    def learning_rate_factor(self, module: str, step: int) -> float:
        """Factor of the module's peak learning rate at its own step."""
        total = self.schedule.critic_total_steps if module == "critic" else None
        return learning_rate_factor(step, self.training, self.schedule.total_steps if total is None else total)

    def state_dict(self) -> dict[str, Tensor]:
        """Moments and float32 copies as `module.parameter/field`, whole. Weights are not part of it."""
        return {key: whole(tensor) for key, tensor in self.tensors().items()}

    def tensors(self) -> dict[str, Tensor]:
        """The same as they lie here: of sharded models, this rank's part."""
        found: dict[str, Tensor] = {}
        for name, parameter in self._named():
            for field, tensor in self._adam.state.get(self._masters.get(parameter, parameter), {}).items():
                found[f"{name}/{field}"] = tensor
            if parameter in self._masters:
                found[f"{name}/{MASTER}"] = self._masters[parameter]
        return found

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from `state_dict` or `tensors`, after the weights were put back; float32 copies that are missing are made
        anew.

        Raises CheckpointError where it belongs to other parameters.
        """
        fields_of: dict[str, dict[str, Tensor]] = defaultdict(dict)
        for key, tensor in state.items():
            name, _, field = key.rpartition("/")
            fields_of[name][field] = tensor
        parameters = dict(self._named())
        for name, fields in fields_of.items():
            shapes = {tensor.shape for field, tensor in fields.items() if field != "step"}
            if name not in parameters or shapes != {parameters[name].shape}:
                raise CheckpointError(
                    f"the optimizer's state is of other models: {name!r} has no place; resume with the same settings"
                )
        self._adam.state.clear()
        for name, parameter in parameters.items():
            fields = fields_of.get(name, {})
            if parameter in self._masters:
                self._masters[parameter].copy_(part_like(fields.get(MASTER, parameter.detach()), parameter))
            moments = {field: tensor for field, tensor in fields.items() if field != MASTER}
            if moments:
                self._adam.state[self._masters.get(parameter, parameter)] = {
                    field: tensor.to(parameter.device, copy=True) if field == "step" else part_like(tensor, parameter)
                    for field, tensor in moments.items()
                }

    def _groups(self) -> list[dict[str, Any]]:
        modules = self._modules.items()
        groups = [
            {"params": self._learning(module), "lr": self._peak(name), "module": name} for name, module in modules
        ]
        return [group for group in groups if group["params"]]

    def _peak(self, module: str) -> float:
        """The module's learning rate before the schedule's factor."""
        return self.training.peak_learning_rate if module == "policy" else self.training.critic_learning_rate

    def _learning(self, module: nn.Module) -> list[Tensor]:
        """What learns in a module: its parameters, or their float32 copies."""
        return [self._masters.get(parameter, parameter) for parameter in module.parameters() if parameter.requires_grad]

    def _clip(self, module: nn.Module) -> float:
        return float(whole(nn.utils.clip_grad_norm_(self._learning(module), self.training.max_grad_norm)))

    @torch.no_grad()
    def _round(self) -> None:
        for parameter, master in self._masters.items():
            parameter.copy_(master)

    def _named(self) -> Iterator[tuple[str, nn.Parameter]]:
        for prefix, module in self._modules.items():
            for name, parameter in module.named_parameters():
                yield f"{prefix}.{name}", parameter
