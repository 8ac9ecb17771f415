"""Settings that only verl needs: machines, memory, and the options of our agent loop; values in verl's units that are computed
from our settings, and checks for settings that verl does not support."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from midthought.config import InferenceConfig, RecipeConfig, Section, TrainingConfig
from midthought.errors import SettingsError, near_names
from midthought.tools.parsers import DEFAULT_CALL_FORMAT

AGENT_NAME = "midthought"
"""Name of our agent loop in `agent_loop.yaml` and in the rows of the data."""
ESTIMATORS = {
    "gae": "gae",
    "grpo": "grpo",
    "dr_grpo": "grpo",
    "rloo": "rloo",
    "reinforce_plus_plus": "reinforce_plus_plus",
    "reinforce_plus_plus_baseline": "reinforce_plus_plus_baseline",
}
LOSSES = {"ppo": "vanilla", "gspo": "gspo", "cispo": "cispo"}
CORRECTIONS = {"truncated": "token", "sequence_truncated": "sequence"}
KL_KINDS = {"k1": "kl", "k2": "mse", "k3": "low_var_kl", "abs": "abs"}

_PROMPT_MARGIN_TOKENS = 128
"""Our prompt may be this much longer than verl's filter counts, because we split control tokens that appear in its text
(such as `<think>`) into ordinary tokens."""


class VerlConfig(Section):
    """Settings of verl besides the recipe: machines, memory, and verl's own keys."""

    rollout: Literal["vllm", "sglang"] = "vllm"
    """Engine that verl samples with."""
    num_nodes: int = Field(1, ge=1)
    """Number of machines."""
    gpus_per_node: int = Field(8, ge=1)
    """GPUs per machine."""
    tensor_parallel: int = Field(1, ge=1)
    """GPUs per sampling engine. Use as few as the model fits on: more engines sample faster."""
    gpu_memory_utilization: float = Field(0.5, gt=0, lt=1)
    """Share of a GPU's memory that the sampling engine takes while it samples."""
    max_prompt_length: int = Field(1024, ge=1)
    """Maximum tokens of a prompt, including system message and chat template; verl drops rows with longer prompts."""
    max_tokens_per_gpu: int | None = Field(None, ge=1)
    """Maximum tokens of a micro-batch on one GPU; rows are packed up to it. Null: two of the longest sequences."""
    rows_per_gpu: int | None = Field(None, ge=1)
    """Rows of a micro-batch on one GPU, padded, instead of packing by tokens."""
    offload: bool = False
    """Keep weights and optimizer states in CPU memory while they are not used."""
    num_agent_workers: int = Field(8, ge=1)
    """Processes that run episodes (including tools) in parallel."""
    num_validation_rows: int = Field(64, ge=1)
    """Maximum number of tasks in the validation file."""
    loggers: list[str] = Field(default_factory=lambda: ["console", "tensorboard"])
    """verl's loggers: console, tensorboard, wandb, …"""
    call_ends_with: str = "}"
    """Servers stop after each token that contains one of these characters, so that sampling stops at the end of a call.
    Empty: they write whole segments of `inference.max_segment_length`, and tokens after a call are cut. That is better for
    texts with many such characters (LaTeX)."""
    overrides: dict[str, Any] = Field(default_factory=dict)
    """Keys of verl's own configuration, such as `{"trainer.save_freq": 50}`; they override everything else."""


_INFERENCE = InferenceConfig()


class LoopOptions(Section):
    """Options of our agent loop in `agent_loop.yaml`. Options that are also settings have the settings' defaults."""

    call_format: str = DEFAULT_CALL_FORMAT
    """Name of the call format: in_thought, react, hermes, json, function_calling, or one that you registered. `auto`: the model's
    own format if its chat template has one; it then describes the tools, so your prompts should not."""
    max_segment_length: int = Field(_INFERENCE.max_segment_length, ge=1)
    """Maximum tokens sampled in one request."""
    max_tool_calls_per_cot: int = Field(_INFERENCE.max_tool_calls_per_cot, ge=0)
    """Further calls return an error message."""
    max_result_tokens: int = Field(_INFERENCE.max_result_tokens, ge=8)
    """Longer tool results are truncated."""
    max_turns: int = Field(_INFERENCE.max_turns, ge=1)
    """Maximum number of answers of the policy in one episode."""
    tool_timeout_seconds: float = Field(_INFERENCE.tool_timeout_seconds, gt=0)
    """Deadline of one tool call."""
    call_ends_with: str = VerlConfig().call_ends_with
    """See `VerlConfig.call_ends_with`."""
    supply: str | None = None
    """`module:name` of a function `(renderer, tools, options)` that returns a `midthought.cluster.verl.job.EpisodeSetup`.
    Null: the tools of verl's tool configuration, no replies, and the reward of your own reward function."""
    supply_options: dict[str, Any] = Field(default_factory=dict)
    """The `options` argument of that function; JSON values."""

    @classmethod
    def from_config(cls, inference: InferenceConfig, verl: VerlConfig, **more: Any) -> LoopOptions:
        """Reads the options from a recipe's settings; `more`: further options by name."""
        return cls(**_limits(inference), call_ends_with=verl.call_ends_with, **more)

    def inference(self, **more: Any) -> InferenceConfig:
        """Returns the settings of an episode with these limits; `more`: further settings by name."""
        return InferenceConfig(**_limits(self), **more)


def _limits(section: InferenceConfig | LoopOptions) -> dict[str, Any]:
    """Returns the values of the options that are also settings."""
    return {name: getattr(section, name) for name in LoopOptions.model_fields if name in InferenceConfig.model_fields}


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
        (training.correction in ("masked", "sequence_masked"),
         f"training.rollout_correction={training.correction!r}: set it by verl's own keys, verl.overrides.algorithm."
         "rollout_correction…"),
        (training.optimizer != "adamw",
         f"training.optimizer={training.optimizer!r}: set it by verl's own keys, verl.overrides.…optim.optimizer_impl"),
        (training.offload != "none", f"training.offload={training.offload!r}: set it to none and use verl.offload"),
        (training.mask_truncated_episodes,
         "training.mask_truncated_episodes=true works only with our own trainer; set it to false"),
        (model.float32_head, "model.float32_head=true works only with our own trainer; set it to false"),
        (model.tensor_parallel_size > 1,
         f"model.tensor_parallel_size={model.tensor_parallel_size}: set it to 1 and use verl.tensor_parallel"),
        (inference.gpu_memory_utilization != "auto",
         f"inference.gpu_memory_utilization={inference.gpu_memory_utilization}: set it to auto and use "
         "verl.gpu_memory_utilization"),
        (inference.deterministic,
         "inference.deterministic=true: set it to false and use verl's own key, verl.overrides.actor_rollout_ref.rollout."
         "full_determinism"),
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
