"""Settings of the learner's tests, without a warm-up of the learning rate unless a test asks for it; and what they compare."""

from typing import Any

import torch

from midthought.config import TrainingConfig, create_default_config
from midthought.learning.model import Critic

CRITICS: dict[str | None, Any] = {"separate": Critic.separate, "shared": Critic.shared, None: lambda policy: None}
"""What makes a critic of a policy."""


def training(**changes: Any) -> TrainingConfig:
    """The changes are not validated: tests use micro-batches and blocks that are smaller than the settings allow."""
    common = {"learning_rate": 1e-5, "critic_learning_rate": 1e-5, "warmup_steps": 0, "mini_batch_size": 64}
    return create_default_config(preset="tiny", training=common).training.model_copy(update=changes)


def changed(settings: TrainingConfig, **changes: Any) -> TrainingConfig:
    """A copy with changes, which are not validated either."""
    return settings.model_copy(update=changes)


def weights_of(model: Any) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def gradients_of(learner: Any) -> torch.Tensor:
    """The gradients of the tensors that the optimizer updates: the parameters, or their copies."""
    updated = [tensor for group in learner.optimizer.param_groups for tensor in group["params"]]
    return torch.cat([tensor.grad.flatten() for tensor in updated if tensor.grad is not None])


def prepared(learner: Any, batch: Any) -> Any:
    """The batch with what an update needs."""
    return learner.credit(learner.score(batch)[0])[0]
