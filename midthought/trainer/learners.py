"""Creates a trainer's learner: in this process, or on ranks of a Ray cluster."""

from __future__ import annotations

from typing import Any

from midthought.config import RayConfig, RecipeConfig
from midthought.errors import SettingsError
from midthought.learning.distributed.remote_learner import AnyLearner, RemoteLearner
from midthought.learning.learner import Learner
from midthought.learning.lr_schedule import TrainingSchedule
from midthought.learning.model import Models
from midthought.plan.choices import word

ALONE = {"optimizer": "adamw", "offload_optimizer": False, "offload_reference": False}
"""Settings of `training`, and their values on ranks: another value needs a learner in this process."""


def choose_learner(
    policy: Any, config: RecipeConfig, ray: RayConfig, num_iters: int, teacher: Any | None = None
) -> AnyLearner:
    """Creates a learner for `Models.from_config`, in this process or on `ray.num_learners` ranks. Close it after use.

    Raises SettingsError if the settings request something that ranks do not support.
    """
    models = Models.from_config(policy, config, teacher)
    training = config.frozen().training
    schedule = TrainingSchedule.from_config(training, num_iters)
    if ray.num_learners == 1:
        return Learner(models.policy, models.critic, models.reference, training, schedule, teacher=models.teacher)
    for name, value in ALONE.items():
        if getattr(config.training, name) != value:
            raise SettingsError(
                f"ray.num_learners={ray.num_learners} with training.{name}: ranks do not do that (each holds only a part of "
                f"the models); set training.{name} to {word(value)}, or leave ray.num_learners as it was"
            )
    from midthought.cluster.ray.learners import RayWorkerGroup

    return RemoteLearner(
        models, training, schedule, RayWorkerGroup(ray, is_deterministic=config.inference.deterministic)
    )
