"""Creates a trainer's learner: in this process, or on ranks of a Ray cluster."""

from __future__ import annotations

from typing import Any

from midthought.cluster.ray.ray_cluster import Role
from midthought.config import RayConfig, RecipeConfig
from midthought.errors import SettingsError
from midthought.learning.actor_critic import ActorCriticLearner, AnyLearner
from midthought.learning.distributed.remote_learner import RemoteLearner
from midthought.learning.learner import Learner
from midthought.learning.lr_schedule import TrainingSchedule
from midthought.learning.model import Models
from midthought.plan.choice_table import word

ALONE_OF_CRITIC = {"compile": False, "optimizer": "adamw", "offload_optimizer": False}
ALONE = {**ALONE_OF_CRITIC, "offload_reference": False}
"""Settings of `training`, and their values on ranks: another value needs a learner in this process."""


def choose_learner(
    policy: Any, config: RecipeConfig, ray: RayConfig, num_iters: int, teacher: Any | None = None
) -> AnyLearner:
    """Creates a learner for `Models.from_config`, in this process or on `ray.num_learners` ranks. With `ray.num_critics`,
    the critic has its own ranks. Close it after use.

    Raises SettingsError if the settings request something that ranks do not support.
    """
    models = Models.from_config(policy, config, teacher)
    if ray.num_critics:
        return _apart(models, config, ray, num_iters)
    if ray.num_learners == 1:
        return _learner(models, config, num_iters)
    return _ranked(models, config, ray, num_iters)


def _learner(models: Models, config: RecipeConfig, num_iters: int) -> Learner:
    training = config.frozen().training
    schedule = TrainingSchedule.from_config(training, num_iters)
    return Learner(models.policy, models.critic, models.reference, training, schedule, teacher=models.teacher)


def _apart(models: Models, config: RecipeConfig, ray: RayConfig, num_iters: int) -> ActorCriticLearner:
    """Creates a learner whose critic has its own ranks."""
    if models.critic is None or models.critic.is_shared:
        lacks = (
            f"training.adv_estimator={config.training.adv_estimator!r} has no critic"
            if models.critic is None
            else "model.critic='shared' learns in the policy's own layers"
        )
        raise SettingsError(
            f"ray.num_critics={ray.num_critics}, but {lacks}; set ray.num_critics to 0, or take "
            "training.adv_estimator=gae with model.critic=separate"
        )
    of_policy = models._replace(critic=None)
    if ray.num_learners == 1:
        learner: Learner | RemoteLearner = _learner(of_policy, config, num_iters)
    else:
        learner = _ranked(of_policy, config, ray, num_iters)
    return ActorCriticLearner(
        learner, _ranked(Models(None, models.critic, None), config, ray, num_iters, role="critic")
    )


def _ranked(
    models: Models, config: RecipeConfig, ray: RayConfig, num_iters: int, *, role: Role = "learner"
) -> RemoteLearner:
    for name, value in ALONE.items() if role == "learner" else ALONE_OF_CRITIC.items():
        if getattr(config.training, name) != value:
            raise SettingsError(
                f"ray.num_{role}s={getattr(ray, f'num_{role}s')} with training.{name}: ranks do not do that (each holds "
                f"only a part of the models); set training.{name} to {word(value)}, or leave ray.num_{role}s as it was"
            )
    from midthought.cluster.ray.learners import RayWorkerGroup

    team = RayWorkerGroup(ray, role=role, is_deterministic=config.inference.deterministic)
    training = config.frozen().training
    return RemoteLearner(models, training, TrainingSchedule.from_config(training, num_iters), team)
