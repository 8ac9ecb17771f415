"""Where a trainer learns: in this process, or on ranks of a Ray cluster."""

from __future__ import annotations

from typing import Any

from midthought.config import RayConfig, RecipeConfig
from midthought.errors import SettingsError
from midthought.learning.ranked import AnyLearner, RankedLearner
from midthought.learning.translate import learner_models, make_learner, ppo_settings


def choose_learner(policy: Any, config: RecipeConfig, ray: RayConfig, num_iters: int) -> AnyLearner:
    """A learner as `make_learner` makes it, in this process or (`ray.num_learners`) on that many ranks. Close it after use.

    Raises SettingsError where the settings ask for what ranks do not do.
    """
    if ray.num_learners == 1:
        return make_learner(policy, config, num_iters)
    for name in ("compile", "offload_reference"):
        if getattr(config.training, name):
            raise SettingsError(
                f"ray.num_learners={ray.num_learners} with training.{name}: learner ranks do not do that (each holds "
                f"only a part of the reference); set training.{name} to false, or ray.num_learners to 1"
            )
    from midthought.cluster.ray.learners import RayTeam

    team = RayTeam(ray, is_deterministic=config.inference.deterministic)
    return RankedLearner(
        learner_models(policy, config), ppo_settings(config.training, config.inference, num_iters), team
    )
