"""The teacher of on-policy distillation: a frozen model with the policy's tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from midthought.config import RecipeConfig
from midthought.errors import SettingsError
from midthought.models.float32_head import use_float32_head
from midthought.models.pretrained import load_model, load_tokenizer, policy_folder
from midthought.trainer.initial_policy import vocabulary_digest


def load_teacher(config: RecipeConfig, policy: Any, tokenizer: Any) -> Any | None:
    """Loads `training.teacher` on the policy's device; None without one.

    Raises ModelPathError if the path holds no model, SettingsError if the model has another tokenizer than the policy, or if
    there is neither a teacher nor an estimator to learn from.
    """
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
