"""The rules about combinations of settings of `training`. `config` is a `TrainingConfig`, whose module imports this one."""

from __future__ import annotations

from typing import Any

from midthought.config.algorithms import AlgorithmSection

_BUILT_IN = frozenset(AlgorithmSection.policy_losses)


def check_agreement(config: Any) -> None:
    """Raises ValueError for the first settings that contradict each other, with the values and a remedy."""
    estimator, loss, size = config.adv_estimator, config.policy_loss, config.episodes_per_task
    if "groups" in config.needs and size < 2:
        raise ValueError(
            f"group_size={config.group_size} with adv_estimator={estimator!r}: a group of one has no variance; "
            "set group_size to 2 or more"
        )
    if config.batch_size % size:
        raise ValueError(
            f"batch_size={config.batch_size} is not a multiple of group_size={size}; set batch_size, for example to "
            f"{-(-config.batch_size // size) * size}, or group_size (episodes per task)"
        )
    if estimator in config.selecting and (config.kl_coef or config.teacher):
        name, otherwise = (
            ("kl_coef", "0 (kl_loss_coef adds a KL term to the loss)") if config.kl_coef else ("teacher", "''")
        )
        raise ValueError(
            f"{name}={getattr(config, name)!r} with adv_estimator={estimator!r}, which selects episodes by their rewards "
            f"alone; set {name} to {otherwise}"
        )
    options = config.policy_losses[loss]
    wrong = [name for name in config.policy_loss_options if name not in options]
    if config.dual_clip is not None and loss in _BUILT_IN - {"ppo"}:
        wrong.append("dual_clip")
    if wrong:
        known = f"it has {', '.join(options)}" if options else "it has none"
        where = "dual_clip" if wrong == ["dual_clip"] else "policy_loss_options"
        raise ValueError(f"{where}: policy_loss={loss!r} has no option {wrong[0]!r}; {known}")
    if loss in config.sampling_corrected and config.correction != "none":
        raise ValueError(
            f"rollout_correction={config.rollout_correction!r} with policy_loss={loss!r}, which already uses the "
            "sampled log-probabilities or has no importance weights; set rollout_correction to 'none'"
        )
    if config.target_kl is not None and config.kl_coef == 0:
        raise ValueError(
            f"target_kl={config.target_kl} cannot adapt kl_coef=0; set kl_coef above 0, or target_kl to null"
        )
