"""How a learner learns, in its own terms. Knows nothing of where the settings were written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from midthought.algo.advantages import AdvantageEstimator
from midthought.algo.aggregation import LossAggregation
from midthought.algo.correction import CorrectionLevel
from midthought.algo.kl import KLKind


@dataclass(frozen=True, kw_only=True)
class LearnerSettings:
    """How a learner learns. Steps are optimizer steps."""

    learning_rate: float = 1e-5
    critic_learning_rate: float = 1e-5
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    """On matrices only: norms and biases never decay."""
    max_grad_norm: float = 1.0
    """For the policy and the critic each on its own."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: int = 0
    total_steps: int | None = None
    """Step of the policy at which a linear or cosine schedule reaches `min_learning_rate_ratio`."""
    critic_total_steps: int | None = None
    """The same for the critic, which also learns while the policy waits (critic warm-up). None: `total_steps`."""
    min_learning_rate_ratio: float = 0.0

    adv_estimator: str = AdvantageEstimator.GAE
    """A name of `midthought.algo.advantages`, or of the user's own."""
    gamma: float = 1.0
    lam: float = 1.0
    whiten_advantages: bool = True
    norm_adv_by_std: bool = True
    """GRPO: divide by the group's deviation."""

    policy_loss: str = "ppo"
    """A name of `midthought.algo.losses`, or of the user's own."""
    loss_agg: str = LossAggregation.TOKEN_MEAN
    """How the policy loss, the entropy and the KL term are averaged; the value loss is a mean over tokens."""
    loss_norm_tokens: int | None = None
    """The constant of `seq-mean-token-sum-norm`."""
    rollout_correction: str | None = None
    """What becomes of recomputed over sampled probability as a weight (`RolloutCorrection`); None: it is left out."""
    rollout_correction_level: str = CorrectionLevel.TOKEN
    rollout_correction_max: float = 2.0
    rollout_correction_min: float = 0.0
    clip_ratio_low: float = 0.2
    clip_ratio_high: float = 0.2
    dual_clip: float | None = None
    cliprange_value: float | None = 0.2
    value_loss_coef: float = 0.5
    entropy_coef: float = 0.01
    kl_coef: float = 0.0
    """Of the KL penalty in the rewards; 0 leaves it out."""
    kl_kind: KLKind = KLKind.K1
    target_kl: float | None = None
    """Steers `kl_coef` towards this KL per token; None keeps it fixed."""
    kl_horizon: int = 10_000
    kl_loss_coef: float = 0.0
    """Of the KL term in the loss; 0 leaves it out."""
    kl_loss_kind: KLKind = KLKind.K3

    ppo_epochs: int = 1
    mini_batch_size: int = 64
    """Episodes per optimizer step."""
    micro_batch_tokens: int = 4096
    """Tokens per forward and backward pass, padding counted: like all below but the seed, a matter of memory and speed."""
    accumulation_steps: int | None = None
    """Forward and backward passes per optimizer step, whatever their tokens; None: by `micro_batch_tokens`."""
    packing: bool = True
    """Rows one after the other without padding, where the model's attention can be told of them (`attention.can_pack`)."""
    logits_mib: int = 64
    """Logits that exist at once, in MiB of float32; where a pass has more, it works block by block (`logprobs`)."""
    gradient_checkpointing: bool = False
    """Keep only each layer's input, and compute the layer again in the backward pass."""
    compile: bool = False
    """Compile every decoder layer (`torch.compile`)."""
    master_weights: bool = True
    """Of weights in half precision keep copies in float32: these learn, and gradients add up in float32, too."""
    offload_reference: bool = False
    """A reference with weights of its own waits in main memory while it does not score."""
    seed: int = 0
    """The order of mini-batches is drawn from (seed, optimizer step)."""
