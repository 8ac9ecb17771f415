"""Values in verl's units that are computed from our settings, and checks for settings that verl does not support."""

from __future__ import annotations

from dataclasses import dataclass

from midthought.cluster.verl.settings import VerlConfig
from midthought.config import InferenceConfig, RecipeConfig, TrainingConfig
from midthought.errors import SettingsError, near_names

ESTIMATORS = {
    "gae": "gae",
    "grpo": "grpo",
    "dr_grpo": "grpo",
    "rloo": "rloo",
    "reinforce_plus_plus": "reinforce_plus_plus",
    "reinforce_plus_plus_baseline": "reinforce_plus_plus_baseline",
}
LOSSES = {"ppo": "vanilla", "gspo": "gspo", "cispo": "cispo"}
KL_KINDS = {"k1": "kl", "k2": "mse", "k3": "low_var_kl", "abs": "abs"}

_PROMPT_MARGIN_TOKENS = 128
"""Our prompt may be this much longer than verl's filter counts, because we split control tokens that appear in its text
(such as `<think>`) into ordinary tokens."""


@dataclass(frozen=True)
class DerivedValues:
    """The inputs, and the values computed from them."""

    config: RecipeConfig
    verl: VerlConfig
    recipe: str
    num_tasks: int
    """Number of tasks in the training file."""

    @property
    def training(self) -> TrainingConfig:
        return self.config.training

    @property
    def inference(self) -> InferenceConfig:
        return self.config.inference

    def prompts(self, num_episodes: int) -> int:
        """Converts a number of episodes into prompts, verl's unit."""
        return num_episodes // self.training.episodes_per_task

    @property
    def prompt_length(self) -> int:
        """Maximum prompt length while sampling, in tokens."""
        return self.verl.max_prompt_length + _PROMPT_MARGIN_TOKENS

    @property
    def max_tokens_per_gpu(self) -> int:
        longest = self.prompt_length + self.inference.max_tokens
        return self.verl.max_tokens_per_gpu or 2 * longest


def require_supported(derived: DerivedValues) -> None:
    """Raises `SettingsError` for the first setting that verl does not support."""
    model, training, inference = derived.config.model, derived.training, derived.inference
    group, num_prompts = training.episodes_per_task, derived.prompts(training.batch_size)
    if training.adv_estimator not in ESTIMATORS:
        raise SettingsError(
            f"training.adv_estimator={training.adv_estimator!r}: verl does not have it. "
            f"{near_names(training.adv_estimator, ESTIMATORS)}"
        )
    if training.policy_loss not in LOSSES:
        raise SettingsError(
            f"training.policy_loss={training.policy_loss!r}: verl does not have it. {near_names(training.policy_loss, LOSSES)}"
        )
    wrong = (
        (not model.local_path, "model.local_path is empty: verl trains an existing model; set its path"),
        (training.has_critic and model.critic_kind == "shared",
         "model.critic='shared': verl's critic is a separate model; set model.critic=separate"),
        (not inference.keep_thoughts, "inference.keep_thoughts=false makes several segments; verl supports one, set it to true"),
        (bool(training.max_staleness),
         f"training.max_staleness={training.max_staleness} works only with our own trainer; set it to 0 and see verl's "
         "trainer.v1.trainer_mode"),
        (bool(training.teacher), "training.teacher works only with our own trainer; set it to ''"),
        (training.lr_schedule == "linear", "training.lr_schedule='linear': verl has constant and cosine"),
        (training.rollout_correction == "masked",
         "training.rollout_correction='masked': set it by verl's own keys, verl.overrides.algorithm.rollout_correction…"),
        (training.optimizer != "adamw",
         f"training.optimizer={training.optimizer!r}: set it by verl's own keys, verl.overrides.…optim.optimizer_impl"),
        (training.offload_optimizer, "training.offload_optimizer: set it to false and use verl.offload"),
        (training.overlong_buffer_tokens > 0,
         "training.overlong_buffer_tokens: verl shapes overlong rewards by its reward manager dapo; set it to 0"),
        (training.mini_batch_size % group != 0,
         f"training.mini_batch_size={training.mini_batch_size} is not a multiple of group_size={group}, which verl needs"),
        (num_prompts % derived.prompts(training.mini_batch_size) != 0 if training.mini_batch_size >= group else False,
         f"training.batch_size={training.batch_size} is not a multiple of mini_batch_size={training.mini_batch_size}"),
        (derived.num_tasks < num_prompts,
         f"{derived.num_tasks} training tasks do not fill one batch of {num_prompts} prompts; lower training.batch_size"),
    )  # fmt: skip
    for is_wrong, words in wrong:
        if is_wrong:
            raise SettingsError(words)
