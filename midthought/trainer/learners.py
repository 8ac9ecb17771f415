"""Creates a trainer's learner: in this process, in one of its own, or on ranks of a Ray cluster. Loads the teacher of
distillation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from midthought.config import RecipeConfig
from midthought.errors import SettingsError
from midthought.learning.learner import Learner
from midthought.learning.model import Models
from midthought.learning.optimizer import TrainingSchedule
from midthought.learning.remote_learner import AnyLearner, RemoteLearner
from midthought.models.pretrained import load_model, load_tokenizer, policy_folder, use_float32_head
from midthought.plan.choices import word
from midthought.trainer.checkpoint import vocabulary_digest

ALONE = {"optimizer": "adamw", "offload": "none"}
"""Settings of `training`, and their values on ranks: another value needs a learner in this process."""


def make_learner(
    policy: Any, tokenizer: Any, config: RecipeConfig, num_iters: int, *, apart: bool = False
) -> AnyLearner:
    """Creates a learner for `Models.from_config`: in this process, `apart` in one of its own, or on `ray.num_learners` ranks.
    Close it after use."""
    ray, teacher = config.ray, load_teacher(config, policy, tokenizer)
    models = Models.from_config(policy, config, teacher)
    training = config.frozen().training
    schedule = TrainingSchedule.from_config(config, num_iters)
    if apart:
        from midthought.cluster.child import ChildGroup

        device = next(iter(models.policy.parameters())).device
        place = f"cuda:{((device.index or 0) + 1) % torch.cuda.device_count()}" if device.type == "cuda" else "cpu"
        for model in models[1:]:  # they only wait here for a new process
            if model is not None and model is not models.policy:
                model.to("cpu")
        return RemoteLearner(
            models, training, schedule, ChildGroup(torch.get_num_threads(), place, ray.silence_timeout_seconds)
        )
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


def load_teacher(config: RecipeConfig, policy: Any, tokenizer: Any) -> Any | None:
    """Loads `training.teacher` on the policy's device; None without one."""
    source = config.training.teacher
    if not source and config.training.adv_estimator == "zero":
        raise SettingsError(
            "training.adv_estimator='zero' without a teacher: all advantages are 0, so there is nothing to learn; set "
            "training.teacher to a model folder or a run folder, or another training.adv_estimator"
        )
    if not source:
        return None
    folder = policy_folder(Path(source))
    if vocabulary_digest(load_tokenizer(folder)) != vocabulary_digest(tokenizer):
        raise SettingsError(
            f"training.teacher={source!r} has another tokenizer than the policy, so its probabilities are of other tokens; "
            "give a teacher of the same family, or train the policy from a model with the teacher's tokenizer"
        )
    model = config.model
    teacher = load_model(folder, model.weights_dtype, model.attn_implementation)
    if model.float32_head:
        use_float32_head(teacher)
    return teacher.requires_grad_(False).eval().to(next(iter(policy.parameters())).device)
