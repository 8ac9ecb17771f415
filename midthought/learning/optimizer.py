"""AdamW for the policy and the critic: learning-rate schedule, clipping, float32 copies of half-precision weights, 8-bit moments,
copies and moments in main memory, state by name. Does not depend on a batch or a loss."""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Self

import torch
from torch import Tensor, nn

from midthought.config import RecipeConfig, TrainingConfig
from midthought.config.references import optional
from midthought.errors import CheckpointError
from midthought.learning.ranks import part_like, whole

HALF = (torch.bfloat16, torch.float16)
GRADIENT_NORMS = {"policy": "grad_norm", "critic": "critic_grad_norm"}
"""Metric name of each module's gradient norm."""
MASTER = "master"
"""Field of the state that holds the copy of a weight that AdamW updates."""
MOMENTS = {"adamw": "exp_avg", "adamw_8bit": "state1"}
"""Field of the first moment, which has the shape of its parameter, by `training.optimizer`."""
ADAM_BETA1, ADAM_EPSILON = 0.9, 1e-8
"""AdamW's decay of the first moment, and what is added to the root of the second, as in verl and TRL."""
NUM_MATRICES = 8


@dataclass(frozen=True, kw_only=True)
class TrainingSchedule:
    """The optimizer steps at which a linear or cosine learning-rate schedule ends, and the largest length of an episode."""

    total_steps: int | None = None
    """Steps of the policy. None: the run has no known end, which only the schedule `constant` allows."""
    critic_total_steps: int | None = None
    """Steps of the critic, which also learns during the critic warm-up. None: `total_steps`."""
    max_tokens: int | None = None
    """The constant of the average `seq-mean-token-sum-norm`, which needs it."""

    @classmethod
    def from_config(cls, config: RecipeConfig, num_iters: int, done: tuple[int, int, int] = (0, 0, 0)) -> Self:
        """Returns the schedule that ends with iteration `num_iters`. `done`: iterations, optimizer steps and policy steps so far.
        Dropped groups make fewer steps than planned."""
        training, (iteration, num_steps, num_policy_steps) = config.training, done
        steps = training.ppo_epochs * -(-training.batch_size // training.mini_batch_size)
        num_left = max(num_iters - iteration, 0)
        total = num_policy_steps + max(min(num_left, num_iters - training.num_critic_warmup_iters), 0) * steps
        critic_total = num_steps + num_left * steps
        return cls(total_steps=total, critic_total_steps=critic_total, max_tokens=config.inference.max_tokens)


NO_END = TrainingSchedule()


def learning_rate_factor(step: int, training: TrainingConfig, total_steps: int | None) -> float:
    """Returns the factor of the peak learning rate at a module's own optimizer step `step` (from 0): linear warm-up
    `(step + 1) / warmup_steps`, then constant, or a linear or cosine decay to 0 at `total_steps`, which it needs (ValueError).
    """
    if step < training.warmup_steps:
        return (step + 1) / training.warmup_steps
    if training.lr_schedule == "constant":
        return 1.0
    if total_steps is None:
        raise ValueError(f"lr_schedule={training.lr_schedule!r} needs total_steps; set it, or use 'constant'")
    done = min(1.0, (step - training.warmup_steps) / max(1, total_steps - training.warmup_steps))
    return 1.0 - done if training.lr_schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))


class Optimizer:
    """Takes one step for all modules; clips the gradients of each module separately.

    If weights are in half precision, AdamW updates float32 copies of them: `gather` moves the
    gradients to the copies after every backward pass and adds them up there; a step rounds the copies into the weights.
    Source: Micikevicius et al. 2018 (arXiv 1710.03740), section 3.1.

    With `offload=optimizer`, every weight has such a copy in main memory, AdamW runs on the CPU, and `gather` moves the
    gradients there. Source: Ren et al. 2021 (ZeRO-Offload, arXiv 2101.06840), section 4. With `optimizer=adamw_8bit`,
    moments are stored in 8 bits; raises MissingExtraError if bitsandbytes is not installed.
    """

    def __init__(
        self, modules: Mapping[str, nn.Module], training: TrainingConfig, schedule: TrainingSchedule = NO_END
    ) -> None:
        """`modules`: `policy`, `critic`, or both. Parameters that require no gradient do not learn."""
        self._modules = modules
        self.training = training
        self.schedule = schedule
        self._kind = training.optimizer
        self._masters: dict[nn.Parameter, Tensor] = {}
        for _, parameter in self._named():
            is_wider = parameter.dtype in HALF
            if parameter.requires_grad and (is_wider or training.offload == "optimizer"):
                copied = parameter.detach().to(torch.float32 if is_wider else parameter.dtype, copy=True)
                self._masters[parameter] = copied.cpu() if training.offload == "optimizer" else copied
        self._adam = self._create()
        policy = modules["policy"].parameters() if "policy" in modules else ()
        self._movement = Movement([each for each in policy if each.requires_grad])

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """AdamW's parameter groups."""
        return self._adam.param_groups

    def zero_grad(self) -> None:
        for module in self._modules.values():
            module.zero_grad(set_to_none=True)
        for master in self._masters.values():
            master.grad = None

    def gather(self) -> None:
        """Adds the gradients of half-precision weights to their float32 copies' gradients. Call it after a backward pass."""
        for parameter, master in self._masters.items():
            if parameter.grad is not None:
                gradient = parameter.grad.to(master.device, master.dtype)
                master.grad = gradient if master.grad is None else master.grad.add_(gradient)
                parameter.grad = None

    def step(self, numbers: Mapping[str, int]) -> dict[str, float]:
        """Takes a step of the modules in `numbers` (module -> its own step number, from 0); none if a gradient is not finite.

        Other modules do not change. Returns `grad_norm` (of the policy, before clipping), `critic_grad_norm`,
        `learning_rate` (the policy's), `weight_change` and `step_size` (the policy's, `Movement`), each if that module steps,
        and `num_skipped_steps`.
        """
        modules = {name: module for name, module in self._modules.items() if name in numbers}
        for waiting in (module for name, module in self._modules.items() if name not in numbers):
            for learning in self._learning(waiting):
                learning.grad = None
        rates = {name: self._peak(name) * self.learning_rate_factor(name, numbers[name]) for name in modules}
        for group in self._adam.param_groups:
            group |= self._options(decays=group["decays"])
            if group["module"] in rates:
                group["lr"] = rates[group["module"]]
        norms = {name: self._clip(module) for name, module in modules.items()}
        finite = all(math.isfinite(norm) for norm in norms.values())
        if "policy" in rates:
            self._movement.begin()
        if finite:
            self._adam.step()
            self._round()
        metrics = {GRADIENT_NORMS[name]: norm for name, norm in norms.items()}
        if "policy" in rates:
            metrics["learning_rate"] = rate = rates["policy"]
            metrics |= self._movement.end(self._peak("policy"), rate * self.training.weight_decay if finite else 0.0)
        return {**metrics, "num_skipped_steps": float(not finite)}

    def learning_rate_factor(self, module: str, step: int) -> float:
        """Returns the factor of the module's peak learning rate at its own step."""
        total = self.schedule.critic_total_steps if module == "critic" else None
        return learning_rate_factor(step, self.training, self.schedule.total_steps if total is None else total)

    def state_dict(self) -> dict[str, Tensor]:
        """Returns whole moments and float32 copies as `module.parameter/field`. Weights are not included."""
        return {key: whole(tensor) for key, tensor in self.tensors().items()}

    def tensors(self) -> dict[str, Tensor]:
        """Returns the same tensors without gathering: for sharded models, this rank's part."""
        found: dict[str, Tensor] = {}
        for name, parameter in self._named():
            for field, value in self._adam.state.get(self._masters.get(parameter, parameter), {}).items():
                if not field.startswith("qmap"):  # the same table for all, restored with the state
                    found[f"{name}/{field}"] = torch.as_tensor(value)
            if parameter in self._masters:
                found[f"{name}/{MASTER}"] = self._masters[parameter]
        return found

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restores the result of `state_dict` or `tensors`. Restore the weights first: missing copies are created from them.

        Raises CheckpointError if the state belongs to other parameters or to another optimizer.
        """
        fields_of: dict[str, dict[str, Tensor]] = defaultdict(dict)
        for key, tensor in state.items():
            name, _, field = key.rpartition("/")
            fields_of[name][field] = tensor
        parameters = dict(self._named())
        for name, fields in fields_of.items():
            self._require_fitting(name, fields, parameters.get(name))
        self._adam.state.clear()
        for name, parameter in parameters.items():
            fields = fields_of.get(name, {})
            learning = self._masters.get(parameter, parameter)
            if parameter in self._masters:
                learning.copy_(part_like(fields.get(MASTER, parameter.detach()), parameter))
            moments = {field: tensor for field, tensor in fields.items() if field != MASTER}
            if moments:
                self._adam.state[learning] = self._restored(moments, learning)

    def _require_fitting(self, name: str, fields: Mapping[str, Tensor], parameter: nn.Parameter | None) -> None:
        """Raises CheckpointError if the fields do not belong to this parameter and this optimizer."""
        moment = MOMENTS[self._kind]
        shapes = {tensor.shape for field, tensor in fields.items() if field in (MASTER, *MOMENTS.values())}
        if parameter is None or shapes != {parameter.shape}:
            raise CheckpointError(
                f"the optimizer's state is of other models: {name!r} has no place; resume with the same settings"
            )
        if moment not in fields and not set(fields) <= {MASTER}:
            raise CheckpointError(
                f"the optimizer's state has no {moment!r} of {name!r}: it is not of training.optimizer={self._kind}; "
                "resume with the optimizer that wrote it"
            )

    def _restored(self, moments: Mapping[str, Tensor], learning: Tensor) -> dict[str, Any]:
        """Returns AdamW's state of a tensor that learns; for 8 bits with the tables that map them to numbers."""
        device, is_8bit = learning.device, self._kind == "adamw_8bit"
        state: dict[str, Any] = {
            field: tensor.to(device, copy=True) if field == "step" or is_8bit else part_like(tensor, learning)
            for field, tensor in moments.items()
        }
        if is_8bit:
            state["step"] = int(state["step"])
        if "absmax1" in state:
            tables = self._adam.name2qmap
            state |= {"qmap1": tables["dynamic"].to(device), "qmap2": tables["udynamic"].to(device)}
        return state

    def _create(self) -> Any:
        if self._kind == "adamw":
            return torch.optim.AdamW(self._groups(), fused=True)
        logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # it warns about 4-bit kernels, not used here
        return optional("bitsandbytes.optim", "adamw-8bit").AdamW8bit(self._groups())

    def _groups(self) -> list[dict[str, Any]]:
        """Returns AdamW's parameter groups: of each module, the weights that decay (two dimensions or more), and the others."""
        groups = []
        for name, module in self._modules.items():
            learning = self._learning(module)
            for decays in (True, False):
                chosen = [tensor for tensor in learning if (tensor.dim() > 1) == decays]
                group = {"params": chosen, "lr": self._peak(name), "module": name, "decays": decays}
                groups += [group | self._options(decays=decays)] if chosen else []
        return groups

    def _options(self, *, decays: bool) -> dict[str, Any]:
        """Returns AdamW's options of a group, as set for the next step."""
        training = self.training
        return {
            "betas": (ADAM_BETA1, training.adam_beta2),
            "eps": ADAM_EPSILON,
            "weight_decay": training.weight_decay if decays else 0.0,
        }

    def _peak(self, module: str) -> float:
        """Returns the module's learning rate before the schedule's factor."""
        return self.training.peak_learning_rate if module == "policy" else self.training.critic_learning_rate

    def _learning(self, module: nn.Module) -> list[Tensor]:
        """Returns the tensors of a module that learn: its parameters, or their float32 copies."""
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


class Movement:
    """Compares some trained matrices with what they were before a step. Costs a copy of them, so large ones are left out."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        matrices = [each for each in parameters if each.dim() > 1] or list(parameters)
        middle = median(each.numel() for each in matrices) if matrices else 0
        small = [each for each in matrices if each.numel() <= middle]
        self._chosen = small[:: max(1, len(small) // NUM_MATRICES)][:NUM_MATRICES]
        self._before: list[Tensor] = []

    def begin(self) -> None:
        """Call it before the step."""
        self._before = [each.detach().clone() for each in self._chosen]

    @torch.no_grad()
    def end(self, peak: float, decay: float) -> dict[str, float]:
        """Returns the root mean square of the change relative to that of the weights (`weight_change`), and relative to the peak
        learning rate `peak` (`step_size`: 0.1 to 1 for AdamW). `decay`: the share of the weights that weight decay removed,
        which is no part of the change."""
        kept = [1.0 - decay if each.dim() > 1 else 1.0 for each in self._before]
        pairs = zip(self._chosen, self._before, kept, strict=True)
        moved = _size([now.detach().double() - share * before.double() for now, before, share in pairs])
        size = _size(self._before)
        self._before = []
        return {"weight_change": moved / max(size, 1e-12), "step_size": moved / peak if peak > 0 else 0.0}


def _size(tensors: Sequence[Tensor]) -> float:
    """Returns the root mean square of all elements, also of sharded tensors; every rank must call it."""
    squares = sum(float(whole(torch.linalg.vector_norm(each.double()))) ** 2 for each in tensors)
    return math.sqrt(squares / max(1, sum(each.numel() for each in tensors)))
