"""Settings of the learner's tests: no warm-up of the learning rate, unless a test asks for them."""

from typing import Any

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
