"""Names of estimators and policy losses, and presets of `training.algorithm`: the settings of published algorithms, each with
its source (docs/algorithms.md).

A preset sets `KEYS` and nothing else. It does not set the learning rate, batches, groups, lengths and the critic's warm-up, which
depend on the model and the hardware.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from pydantic import field_validator

from midthought.config.section import Section
from midthought.errors import near_names


@dataclass(frozen=True, slots=True)
class Algorithm:
    """A preset."""

    source: str
    """arXiv number, and the source of values that the paper does not state."""
    values: Mapping[str, Any]
    """Settings of the section `training` that differ from their defaults, or that define the algorithm."""


KEYS = (
    "adv_estimator", "policy_loss", "loss_agg", "clip_ratio", "clip_ratio_high", "dual_clip", "gamma", "lam",
    "max_dynamic_batches", "entropy_coef", "kl_coef", "target_kl", "kl_loss_coef", "kl_loss_kind",
    "rollout_correction", "overlong_buffer_tokens", "mask_truncated_episodes",
)  # fmt: skip
"""Settings of every preset. One that a preset does not give has its default, so that nothing of the former preset is left."""
ESTIMATOR = "grpo"
"""Estimator of presets that give none."""

_BY_EPISODE = {"loss_agg": "seq-mean-token-mean"}
_BY_CONSTANT = {"adv_estimator": "dr_grpo", "loss_agg": "seq-mean-token-sum-norm"}
_WITH_CRITIC = {"adv_estimator": "gae", "lam": 0.95}
_SUPERVISED = {"policy_loss": "nll"}
_WHOLE_EPISODE = {"loss_agg": "seq-mean-token-sum"}

ALGORITHMS: Mapping[str, Algorithm] = {
    "ppo": Algorithm("1707.06347; KL and lambda of InstructGPT, 2203.02155", {**_WITH_CRITIC, "kl_coef": 0.02}),
    "grpo": Algorithm(
        "2402.03300, section 4.2, without its KL term (kl_loss_coef=0.04), as in verl and TRL",
        {"adv_estimator": "grpo", **_BY_EPISODE},
    ),
    "dr_grpo": Algorithm("2503.20783, section 3.2", _BY_CONSTANT),
    "dapo": Algorithm(
        "2503.14476, section 4.1; at most 10 batches as in verl's recipe",
        {
            "adv_estimator": "grpo",
            "loss_agg": "token-mean",
            "clip_ratio": 0.2,
            "clip_ratio_high": 0.28,
            "max_dynamic_batches": 10,
            "overlong_buffer_tokens": 0.2,
            "mask_truncated_episodes": True,
        },
    ),
    "rloo": Algorithm("2402.14740, appendix C", {"adv_estimator": "rloo", **_WHOLE_EPISODE, "kl_coef": 0.03}),
    "reinforce_plus_plus": Algorithm(
        "2501.03262; KL of verl's example", {"adv_estimator": "reinforce_plus_plus", "kl_coef": 0.001}
    ),
    "reinforce_plus_plus_baseline": Algorithm(
        "2501.03262; KL of verl's example",
        {"adv_estimator": "reinforce_plus_plus_baseline", "kl_loss_coef": 0.001, "kl_loss_kind": "k2"},
    ),
    "gspo": Algorithm(
        "2507.18071, section 5.1", {"policy_loss": "gspo", **_BY_EPISODE, "clip_ratio": 3e-4, "clip_ratio_high": 4e-4}
    ),
    "cispo": Algorithm(
        "2506.13585; largest weight 5 of ScaleRL, 2510.13786",
        {"policy_loss": "cispo", "clip_ratio": 1.0, "clip_ratio_high": 4.0},
    ),
    "sapo": Algorithm("2511.20347", {"policy_loss": "sapo", **_BY_EPISODE}),
    "gmpo": Algorithm("2507.20673", {"policy_loss": "gmpo", **_BY_EPISODE}),
    "dppo_tv": Algorithm(
        "2602.04879; estimator and averages of verl's recipe", {"policy_loss": "dppo_tv", **_BY_CONSTANT}
    ),
    "dppo_kl": Algorithm(
        "2602.04879; estimator and averages of verl's recipe", {"policy_loss": "dppo_kl", **_BY_CONSTANT}
    ),
    "rft": Algorithm(
        "2304.06767, algorithm 1 (RAFT; equal rewards are all kept)", {**_SUPERVISED, "adv_estimator": "keep_best"}
    ),
    "distillation": Algorithm(
        "2306.13649, on-policy with the reverse KL, at the sampled tokens", {"adv_estimator": "zero"}
    ),
}


def algorithm_values(section: type[Section], name: object) -> dict[str, Any]:
    """Returns the settings of a preset, all of `KEYS`; none for null and for unknown names."""
    if not isinstance(name, str) or name not in ALGORITHMS:
        return {}
    defaults = {key: section.model_fields[key].get_default(call_default_factory=True) for key in KEYS}
    return {**defaults, "adv_estimator": ESTIMATOR, **ALGORITHMS[name].values}


class AlgorithmSection(Section):
    """A section with the setting `algorithm`, and the names of estimators and policy losses. Values that are given together with
    `algorithm`, or later, win over the preset."""

    estimator_needs: ClassVar[dict[str, frozenset[str]]] = {
        "gae": frozenset({"values"}),
        "grpo": frozenset({"groups"}),
        "dr_grpo": frozenset({"groups"}),
        "rloo": frozenset({"groups"}),
        "reinforce_plus_plus": frozenset(),
        "reinforce_plus_plus_baseline": frozenset({"groups"}),
        "grpo_turns": frozenset({"groups", "turns"}),
        "grpo_calls": frozenset({"groups", "calls"}),
        "keep_best": frozenset({"groups"}),
        "zero": frozenset(),
    }
    """Inputs of every estimator besides rewards: `values` (a critic), `groups` (group_size of 2 or more), `turns`,
    `calls`. `@advantage_estimator` adds to it."""
    selecting: ClassVar[set[str]] = {"keep_best"}
    """Estimators that select the episodes to train on before they are scored."""
    policy_losses: ClassVar[list[str]] = [
        "ppo", "gspo", "cispo", "sapo", "gmpo", "dppo_tv", "dppo_kl", "nll",
    ]  # fmt: skip
    """Names of the policy losses. `@policy_loss` adds to it."""
    sampling_corrected: ClassVar[set[str]] = {"dppo_tv", "dppo_kl", "nll"}
    """Policy losses that exclude `rollout_correction`: they use the sampled log-probabilities, or need no importance weights."""
    supervised: ClassVar[set[str]] = {"nll"}
    """Of these, the losses that use no log-probabilities of sampling, so they also train on demonstrations."""

    algorithm: str | None = None
    """Preset of the settings of a published algorithm: `ppo`, `grpo`, `dr_grpo`, `dapo`, `rloo`, `reinforce_plus_plus`,
    `reinforce_plus_plus_baseline`, `gspo`, `cispo`, `sapo`, `gmpo`,
    `dppo_tv`, `dppo_kl`, `rft`, `distillation`
    (values: docs/algorithms.md). It sets estimator, loss, averages, bounds, KL, entropy and the like; settings that are given
    with it, or later, win. Null: no preset."""

    def __init__(self, **values: Any) -> None:
        super().__init__(**{**algorithm_values(type(self), values.get("algorithm")), **values})

    def __setattr__(self, name: str, value: Any) -> None:
        preset = self.changed(algorithm=value) if name == "algorithm" else self  # raises before anything is assigned
        super().__setattr__(name, value)
        if name == "algorithm":
            self.__dict__.update(preset.__dict__)
            self.model_fields_set.update(KEYS)

    def changed(self, **values: Any) -> Self:
        """Returns a validated copy with these values; a new `algorithm` also sets its preset's values."""
        return super().changed(**{**algorithm_values(type(self), values.get("algorithm")), **values})

    @field_validator("algorithm", mode="before")
    @classmethod
    def _is_known(cls, name: Any) -> Any:
        if name is not None and (not isinstance(name, str) or name not in ALGORITHMS):
            raise ValueError(near_names(str(name), ALGORITHMS))
        return name
