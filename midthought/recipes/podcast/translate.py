"""The warm-up's settings in the learner's terms."""

from __future__ import annotations

from midthought.learning.settings import LearnerSettings
from midthought.learning.translate import pass_settings
from midthought.recipes.podcast.settings import PodcastConfig


def sft_settings(config: PodcastConfig, num_steps: int) -> LearnerSettings:
    """A supervised learner whose learning rate falls to 0 at `num_steps`."""
    warmup, training = config.warmup, config.training
    return LearnerSettings(
        learning_rate=warmup.learning_rate,
        warmup_steps=warmup.warmup_steps,
        schedule="linear",
        total_steps=num_steps,
        max_grad_norm=training.max_grad_norm,
        seed=training.seed,
        **pass_settings(training),
    )
