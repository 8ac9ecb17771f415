"""Whether the settings of `training` agree with each other: one function per topic, each of which raises ValueError.

`config` is a `TrainingConfig`, whose module imports this one.
"""

from __future__ import annotations

from typing import Any

from midthought.config.algorithms import AlgorithmSection

BUILT_IN_LOSSES = frozenset(AlgorithmSection.policy_losses)
"""Losses without those that a user registers."""


def check_agreement(config: Any) -> None:
    """Raises ValueError for the first settings that contradict each other, with the values and a remedy."""
    for check in (_check_estimator, _check_teacher, _check_options, _check_terms, _check_correction):
        check(config)


def _check_estimator(config: Any) -> None:
    estimator = config.adv_estimator
    if "groups" in config.estimator_needs[estimator] and config.episodes_per_task < 2:
        raise ValueError(
            f"group_size={config.group_size} with adv_estimator={estimator!r}: a group of one has no variance; "
            "set group_size to 2 or more"
        )
    if "groups" not in config.estimator_needs[estimator] and config.max_dynamic_batches > 1:
        raise ValueError(
            f"max_dynamic_batches={config.max_dynamic_batches} with adv_estimator={estimator!r}: it does not compare "
            "within groups, so no group is dropped; set max_dynamic_batches to 1"
        )
    if estimator in config.selecting and config.kl_coef:
        raise ValueError(
            f"kl_coef={config.kl_coef} with adv_estimator={estimator!r}: it selects episodes by their rewards alone; set "
            "kl_coef to 0 (kl_loss_coef adds a KL term to the loss)"
        )
    if config.batch_size % config.episodes_per_task:
        size = config.episodes_per_task
        raise ValueError(
            f"batch_size={config.batch_size} is not a multiple of group_size={size}; set batch_size, for example to "
            f"{-(-config.batch_size // size) * size}, or group_size (episodes per task)"
        )


def _check_teacher(config: Any) -> None:
    """Raises ValueError if the term of the teacher would not be used."""
    if config.teacher and config.adv_estimator in config.selecting:
        raise ValueError(
            f"teacher={config.teacher!r} with adv_estimator={config.adv_estimator!r}, which selects episodes; set adv_estimator "
            "to 'zero' (the teacher alone) or 'grpo', or leave the teacher out"
        )


def _check_options(config: Any) -> None:
    """Raises ValueError for an option that the policy loss does not have, or a correction that it excludes."""
    options = config.policy_losses[config.policy_loss]
    for name in config.policy_loss_options:
        if name not in options:
            known = f"it has {', '.join(options)}" if options else "it has none"
            raise ValueError(f"policy_loss_options: policy_loss={config.policy_loss!r} has no option {name!r}; {known}")
    if config.policy_loss in config.sampling_corrected and config.correction != "none":
        raise ValueError(
            f"rollout_correction={config.rollout_correction!r} with policy_loss={config.policy_loss!r}, which already uses the "
            "sampled log-probabilities or has no importance weights; set rollout_correction to 'none'"
        )


def _check_terms(config: Any) -> None:
    if config.dual_clip is not None and config.policy_loss in BUILT_IN_LOSSES - {"ppo"}:
        raise ValueError(
            f"dual_clip={config.dual_clip} applies to policy_loss='ppo', not {config.policy_loss!r}; set it to null"
        )
    if config.target_kl is not None and config.kl_coef == 0:
        raise ValueError(
            f"target_kl={config.target_kl} cannot adapt kl_coef=0; set kl_coef above 0, or target_kl to null"
        )


def _check_correction(config: Any) -> None:
    if config.rollout_correction_min and config.rollout_correction != "masked":
        raise ValueError(
            f"rollout_correction_min={config.rollout_correction_min} applies to rollout_correction='masked', "
            f"not {config.rollout_correction!r}; set it to 0"
        )
    if config.rollout_correction_min >= config.rollout_correction_max:
        raise ValueError(
            f"rollout_correction_min={config.rollout_correction_min} is not below "
            f"rollout_correction_max={config.rollout_correction_max}"
        )
