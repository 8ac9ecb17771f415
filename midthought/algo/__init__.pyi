from .advantages import (
    AdvantageEstimator as AdvantageEstimator,
)
from .advantages import (
    compute_advantage as compute_advantage,
)
from .advantages import (
    compute_gae_advantage_return as compute_gae_advantage_return,
)
from .advantages import (
    compute_grpo_advantage as compute_grpo_advantage,
)
from .kl import KLController as KLController
from .kl import apply_kl_penalty as apply_kl_penalty
from .kl import kl_divergence as kl_divergence
from .losses import compute_policy_loss as compute_policy_loss
from .losses import compute_value_loss as compute_value_loss
