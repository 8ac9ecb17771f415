"""The library's sections. The docstring under a field is its documentation (docs/settings.md)."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self, TypeVar

from pydantic import Field, ValidationInfo, field_validator, model_validator

from midthought.config.section import Harmless, Section
from midthought.errors import SettingsError, near_names

Auto = Literal["auto"]
"""A run replaces it with a value for its hardware before it begins (`midthought.plan.choices`), and records that value."""
Value = TypeVar("Value")


def settled(value: Value | Auto, otherwise: Value | None = None) -> Value:
    """The value of a setting that may be `auto`; `otherwise` if no run has replaced it. Raises SettingsError if that is None."""
    if value != "auto":
        return value
    if otherwise is None:
        raise SettingsError(
            "a setting is 'auto' where no run has chosen its value (midthought.plan.choices); set a value"
        )
    return otherwise


class ModelConfig(Section):
    """The policy, and its critic."""

    local_path: str = ""
    """Folder or hub name of any Hugging Face causal LM. Empty: the run makes a small Qwen3 with its own tokenizer."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of the weights. Log-probabilities are exact to 1e-4 in float32 only. `auto`: bfloat16 for a given model on a GPU,
    else float32."""
    device: Harmless[str] = "auto"
    """Where the model is trained, and sampled from by the `local` engine: `cpu`, `cuda`, `cuda:1` …; `auto`: a loaded model on
    the first GPU where there is one, a made one on the CPU, where small ones are quicker."""
    critic: Literal["auto", "separate", "shared"] = "auto"
    """`separate`: a copy of the same base with a value head; `shared`: a value head on the policy's own trunk. `auto`: shared
    for a given model on a GPU, else separate, and separate with `ray.num_critics` or verl."""
    lora_rank: Annotated[int, Field(ge=0)] | Auto = "auto"
    """Learn adapters of this rank on every linear layer instead of the weights (extra `lora`); 0: the weights themselves.
    `auto`: 32 for a model that a GPU loads from `local_path`, if peft is installed; else 0, and 0 with verl."""
    lora_alpha: int = Field(16, ge=1)
    """The adapters' scale is this over their rank."""
    hidden_size: int = Field(128, ge=16)
    """Width of the small model that the run makes (unused with `local_path`)."""
    num_layers: int = Field(4, ge=1)
    """Its number of layers."""
    num_heads: int = Field(2, ge=2)
    """Its number of attention heads, of 64 dimensions each; the key/value heads are as many."""
    vocab_size: int = Field(1024, ge=300)
    """Its vocabulary: byte-level BPE, trained on the recipe's training episodes."""

    @property
    def device_of_made(self) -> str:
        """Where a made model computes."""
        return "cpu" if self.device == "auto" else self.device

    @property
    def weights_dtype(self) -> Literal["float32", "bfloat16"]:
        """`dtype`, on a CPU if it is `auto`."""
        return settled(self.dtype, "float32")

    @property
    def critic_kind(self) -> Literal["separate", "shared"]:
        """`critic`, on a CPU if it is `auto`."""
        return settled(self.critic, "separate")

    @property
    def adapter_rank(self) -> int:
        """`lora_rank`, on a CPU if it is `auto`."""
        return settled(self.lora_rank, 0)


class InferenceConfig(Section):
    """The rollout loop and its engine."""

    backend: str = "local"
    """Engine: `local` (this process), `vllm` or `sglang` (servers: docs/servers.md), or a name of your own.
    Training samples from the first three."""
    base_url: Harmless[list[str]] = Field(default_factory=list)
    """Servers that run already, `http://HOST:PORT` each, all of one model. Empty: one is started here."""
    served_model_name: Harmless[str | None] = None
    """The name that they serve the model under; null: `model.local_path`."""
    api_key_env: Harmless[str | None] = None
    """The environment variable that holds their key."""
    server_python: Harmless[str | None] = None
    """Interpreter of an environment that has vLLM or SGLang, for a server that is started here; null: this one."""
    server_flags: list[str] = Field(default_factory=list)
    """Further words of its command line, e.g. `[--gpu-memory-utilization, "0.4"]`."""
    weights_path: Harmless[str | None] = None
    """Folder where weights are written for the servers, which must see it under the same path; null: a temporary one."""
    sync_tolerance: Harmless[float | None] = Field(None, gt=0)
    """Largest mean difference between a server's log-probabilities and the policy's after an update; a larger one ends the
    run. Null: 0.01 in float32, 0.1 in bfloat16."""
    server_wait_seconds: Harmless[float] = Field(300.0, gt=0)
    """How long servers that cannot be reached are waited for, all together, while none of them gives a token. Then the episodes
    fail and the run stops. (A server that is connected and says nothing has 300 s for the first token of a request.)"""
    max_tokens: int = Field(256, ge=1)
    """Most tokens after the prompt in one episode, tool results included."""
    max_segment_length: int = Field(256, ge=1)
    """Most tokens sampled in one go; generation stops earlier where a call ends."""
    max_tool_calls_per_cot: int = Field(5, ge=0)
    """Calls beyond this number are answered with an error that says so."""
    max_result_tokens: int = Field(192, ge=8)
    """A longer tool result is cut."""
    max_turns: int = Field(5, ge=1)
    """Answers of the policy in one episode; a call or reply that comes after the last one ends it."""
    keep_thoughts: bool = True
    """After a reply, go on from exactly what was sampled. False: drop earlier thoughts, as many chat templates serve it; the
    conversation without them begins a new segment of the episode."""
    tool_timeout_seconds: float = Field(10.0, gt=0)
    """Deadline of one tool call."""
    temperature: float = Field(1.0, ge=0)
    """Temperature of training rollouts. It is recorded with every sampled token, and the learner computes log-probabilities,
    entropy and KL under it."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Must stay 1.0 in training: see `TrainingConfig`."""
    max_num_seqs: Harmless[Annotated[int, Field(ge=1)] | Auto] = 128
    """Episodes that the local engine holds in its cache at once; requests on their way to each server. `auto`: 128, or fewer
    if a GPU's memory does not hold so many."""
    cuda_graphs: Harmless[bool] = True
    """On a GPU the local engine records passes of decoding as CUDA graphs and replays them; not with `deterministic`."""
    merge_adapters: Harmless[bool] = True
    """The local engine samples from merged copies of layers with LoRA adapters, if these take at most a quarter of the device's
    free memory. False, or without that memory: the adapters are computed beside the weights, which is slower."""
    partial_rollouts: bool = False
    """End an iteration as soon as `training.batch_size` episodes are done, whole groups; what is still running is interrupted
    and goes on in the next one, sampled by the new weights. `training.rollout_correction=none` then counts as `truncated`."""
    partial_over_sampling: float = Field(1.5, ge=1, le=2)
    """With `partial_rollouts`: episodes on their way when an iteration begins, as a multiple of `training.batch_size`."""
    partial_max_carry_overs: int = Field(2, ge=1)
    """With `partial_rollouts`: iterations that an episode may be carried over into; in the last one it is awaited."""
    deterministic: bool = False
    """Fix the composition of every batch, so that a run can be repeated to the bit. Slower where tools are slow. Partial
    rollouts are then interrupted only where every episode has sampled `max_segment_length` more tokens, or ended."""


class RewardConfig(Section):
    """Weights of the reward's named parts. All are judged from the record's events and the ground truth."""

    correct: float = 1.0
    """Paid where the answer is right."""
    thought: float = 0.1
    """Paid for a well-formed thought: opened once, closed once, an answer after it."""
    call_cost: float = Field(0.1, ge=0)
    """Taken for every call, whether it was needed or not."""


class EnvironmentConfig(Section):
    """The environment: the bounds of every episode, and the size of the built-in game."""

    max_steps: int | None = Field(10, ge=1)
    """Steps after which an episode ends as `truncated`; null: no limit."""
    step_timeout_seconds: float = Field(60.0, gt=0)
    """Deadline of one `reset`, one `step` and one call of `reward_fn`; a later one ends the episode as failed."""
    grid_size: int = Field(3, ge=2)
    """Rooms along each side of the square of `SimpleGameEnvironment`."""
    num_items: int = Field(1, ge=1, le=4)
    """Items that lie about in it."""


class TrainingConfig(Section):
    """PPO and its relatives: docs/algorithms.md has the formula and the source of each."""

    estimator_needs: ClassVar[dict[str, frozenset[str]]] = {
        "gae": frozenset({"values"}),
        "grpo": frozenset({"groups"}),
        "dr_grpo": frozenset({"groups"}),
        "rloo": frozenset({"groups"}),
        "reinforce_plus_plus": frozenset(),
        "reinforce_plus_plus_baseline": frozenset({"groups"}),
        "remax": frozenset({"baselines"}),
        "grpo_turns": frozenset({"groups", "turns"}),
    }
    """What every estimator needs besides rewards: `values` (a critic), `groups` (group_size of 2 or more), `turns`,
    `baselines` (a greedy episode per group). `@advantage_estimator` adds to it."""
    policy_losses: ClassVar[set[str]] = {"ppo", "gspo", "cispo"}
    """The losses that there are. `@policy_loss` adds to it."""

    seed: int = Field(0, ge=0, lt=2**63)
    """Seed of everything drawn at random: the split, the questions, the weights, the sampling."""
    num_train_iters: Harmless[int | None] = Field(None, ge=0)
    """Iterations: rollouts of `batch_size` episodes, then the update on them. None: as many as `num_epochs` makes."""
    num_epochs: Harmless[int] = Field(3, ge=0)
    """Passes over the tasks; where there is no end of tasks (an environment), of `num_train_iters_per_epoch` each."""
    num_train_iters_per_epoch: Harmless[int] = Field(100, ge=1)
    """Iterations of an epoch in an environment."""
    batch_size: int = Field(32, ge=1)
    """Episodes per iteration."""
    mini_batch_size: int = Field(32, ge=1)
    """Episodes per optimizer step."""
    micro_batch_tokens: Harmless[Annotated[int, Field(ge=64)] | Auto] = 4096
    """Tokens per forward and backward pass; changes memory and speed, not the result. `auto`: 4096, or fewer if a GPU's memory
    does not hold so many."""
    accumulation_steps: Harmless[int | None] = Field(None, ge=1)
    """Micro-batches per optimizer step of PPO; changes memory and speed, not the result. None: by `micro_batch_tokens`."""
    packing: Harmless[bool] = True
    """Lay the rows of a micro-batch one after the other, without padding, each attended by itself. Where a model's attention
    cannot (the log says so), and with false, rows of like length are padded to the longest; speed changes, not the result."""
    logits_mib: Harmless[int] = Field(64, ge=1)
    """Logits that may exist at once, in MiB. Where policy tokens × vocabulary need more, log-probabilities are worked out block
    by block, and once more in the backward pass; changes memory and speed, not the result."""
    gradient_checkpointing: Harmless[bool | Auto] = "auto"
    """Remember only what enters each layer and compute the layer again in the backward pass: less memory, a third more time.
    `auto`: for a given model on a GPU."""
    compile: Harmless[bool] = False
    """Compile the decoder layers (`torch.compile`; needs a C++ compiler): the first steps take a minute longer."""
    master_weights: bool = True
    """With `model.dtype=bfloat16`: learn in float32 copies of the weights, as steps are often too small for bfloat16. Takes
    10 bytes a weight more: a copy of 4, and both moments and the gradient of 4 in place of 2."""
    offload_reference: Harmless[bool] = False
    """Keep the reference model in main memory while it does not score. With `model.lora_rank` there is none to keep."""
    ppo_epochs: int = Field(1, ge=1)
    """Passes over an iteration's episodes."""
    group_size: int | None = Field(None, ge=1)
    """Episodes per task in an iteration. None: 8 where the estimator compares within groups, else 1."""
    adv_estimator: str = "gae"
    """How advantages are estimated: `gae` (with a critic), `grpo`, `dr_grpo`, `rloo`, `reinforce_plus_plus`,
    `reinforce_plus_plus_baseline`, `remax`, `grpo_turns`, or a name of your own (`@advantage_estimator`)."""
    gamma: float = Field(1.0, gt=0, le=1)
    """Discount per policy token (`gae`, `reinforce_plus_plus`)."""
    lam: float = Field(1.0, ge=0, le=1)
    """GAE's lambda, per policy token."""
    whiten_advantages: bool = True
    """Give the advantages mean 0 and deviation 1 over the batch (`gae` and both `reinforce_plus_plus`)."""
    norm_adv_by_std: bool = True
    """Divide by the deviation of the group (`grpo`, `grpo_turns`)."""
    max_dynamic_batches: int = Field(1, ge=1)
    """DAPO's dynamic sampling: roll out up to this many batches until `batch_size` episodes stand in groups whose rewards
    differ. 1: only the one batch. Estimators that compare within groups leave groups without spread out in any case."""
    learning_rate: Annotated[float, Field(gt=0)] | Auto = 1e-5
    """Of the policy (AdamW). `auto`: 2e-6 for weights, 2e-5 for adapters (`model.lora_rank`)."""
    critic_learning_rate: float = Field(1e-5, gt=0)
    """Of the critic (AdamW)."""
    warmup_steps: int = Field(2, ge=0)
    """Optimizer steps over which the learning rate rises from 0."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """What the learning rate does after that, until the last step."""
    min_learning_rate_ratio: float = Field(0.0, ge=0, le=1)
    """Where a linear or cosine schedule ends, as a share of the learning rate."""
    critic_warmup_iters: int = Field(0, ge=0)
    """First iterations in which only the critic learns. They do not count in the policy's learning-rate schedule."""
    policy_loss: str = "ppo"
    """`ppo` (ratio per token, clipped), `gspo` (ratio per sequence, clipped), `cispo` (clipped weight on the
    log-probability), or a name of your own (`@policy_loss`)."""
    loss_agg: Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"] = (
        "token-mean"
    )
    """How policy tokens are averaged over an optimizer step: each alike, or each episode alike by its tokens' mean, sum, or
    sum divided by a constant (Dr. GRPO)."""
    loss_norm_tokens: int | None = Field(None, ge=1)
    """The constant of `seq-mean-token-sum-norm`. None: `inference.max_tokens`."""
    clip_ratio: float = Field(0.2, gt=0)
    """Clip range of the probability ratio."""
    clip_ratio_low: float | None = Field(None, gt=0)
    """Lower clip range where it differs."""
    clip_ratio_high: float | None = Field(None, gt=0)
    """Upper clip range where it differs (DAPO's clip-higher: 0.28)."""
    dual_clip: float | None = Field(None, gt=1)
    """`ppo`: the loss of a token with a negative advantage A is at most this times |A|. None: no such bound."""
    cliprange_value: float = Field(0.2, gt=0)
    """Clip range of the value function's change."""
    value_loss_coef: float = Field(0.5, ge=0)
    """Weight of the value loss where the trunk is shared; a separate critic has an optimizer of its own."""
    entropy_coef: float = Field(0.01, ge=0)
    """Weight of the entropy bonus."""
    kl_coef: float = Field(0.01, ge=0)
    """Weight of the KL divergence to the reference model (the policy before PPO), taken from the reward of every policy token."""
    kl_kind: Literal["k1", "k2", "k3", "abs"] = "k1"
    """Its estimator: log ratio, half its square, Schulman's k3, its absolute value."""
    target_kl: float | None = Field(None, gt=0)
    """Steer `kl_coef` towards this divergence, in nats per policy token. None: `kl_coef` stays as it is."""
    kl_horizon: int = Field(10_000, ge=1)
    """Episodes over which `target_kl` moves `kl_coef` by at most a fifth."""
    kl_loss_coef: float = Field(0.0, ge=0)
    """Weight of the same divergence as a term of the loss (GRPO's way)."""
    kl_loss_kind: Literal["k1", "k2", "k3", "abs"] = "k3"
    """Its estimator in the loss. The gradient of k1 is zero on average; that of k2 is the divergence's own."""
    rollout_correction: Literal["none", "truncated", "masked"] = "none"
    """Weight the policy loss by recomputed over sampled probability, for engines that sample by other numerics than the
    learner's: `truncated` cuts the weight at the maximum, `masked` drops what is outside the bounds."""
    rollout_correction_level: Literal["token", "sequence"] = "token"
    """A weight for every token, or one for the whole episode."""
    rollout_correction_max: float = Field(2.0, gt=0, allow_inf_nan=True)
    """Largest weight; `.inf`: no bound."""
    rollout_correction_min: float = Field(0.0, ge=0)
    """Smallest weight that `masked` keeps."""
    overlong_buffer_tokens: int = Field(0, ge=0)
    """DAPO's overlong shaping: episodes within so many tokens of `inference.max_tokens` lose reward, the more the
    longer. 0: none."""
    overlong_penalty: float = Field(1.0, gt=0)
    """What an episode of `inference.max_tokens` tokens loses by it."""
    max_grad_norm: float = Field(1.0, gt=0, allow_inf_nan=True)
    """Gradients are clipped to this norm; `.inf`: not at all."""
    logprob_difference_warn: Harmless[float] = Field(0.05, gt=0)
    """Warn if sampled and recomputed log-probabilities of the current policy's tokens differ by more than this on average
    (nats; metric `logprob_difference_mean`)."""
    logprob_difference_stop: Harmless[float | None] = Field(0.5, gt=0)
    """Stop the run before the update if they differ by more than this. Null: never."""
    no_signal_iters: Harmless[int | None] = Field(10, ge=1)
    """Stop a run whose first iterations, this many, all give nothing to learn from (equal rewards); or whose rewards are all
    equal for as many iterations in a row and lower than before. A shorter run only warns. Null: never."""
    validate_every: Harmless[int] = Field(10, ge=0)
    """Iterations between validations on held-out questions; 0: never."""
    num_validation_questions: int = Field(100, ge=1)
    """Questions of each validation."""

    @property
    def needs(self) -> frozenset[str]:
        """What the estimator needs besides rewards (`estimator_needs`)."""
        return self.estimator_needs[self.adv_estimator]

    @property
    def has_critic(self) -> bool:
        """Whether the estimator needs a critic."""
        return "values" in self.needs

    @property
    def num_critic_warmup_iters(self) -> int:
        """`critic_warmup_iters`; 0 for an estimator without a critic."""
        return self.critic_warmup_iters if self.has_critic else 0

    @property
    def num_steps_per_iter(self) -> int:
        """Optimizer steps of an iteration."""
        return self.ppo_epochs * -(-self.batch_size // self.mini_batch_size)

    @property
    def clip_low(self) -> float:
        """The lower clip range."""
        return self.clip_ratio_low or self.clip_ratio

    @property
    def clip_high(self) -> float:
        """The upper clip range."""
        return self.clip_ratio_high or self.clip_ratio

    @property
    def peak_learning_rate(self) -> float:
        """`learning_rate`. Raises SettingsError if it is still `auto`."""
        return settled(self.learning_rate)

    @property
    def max_micro_batch_tokens(self) -> int:
        """`micro_batch_tokens`. Raises SettingsError if it is still `auto`."""
        return settled(self.micro_batch_tokens)

    @property
    def recomputes_layers(self) -> bool:
        """`gradient_checkpointing`; false if it is still `auto`."""
        return settled(self.gradient_checkpointing, False)

    @property
    def episodes_per_task(self) -> int:
        """`group_size`, or what follows from the estimator."""
        return self.group_size or (8 if "groups" in self.estimator_needs.get(self.adv_estimator, ()) else 1)

    @property
    def num_groups(self) -> int:
        """Groups per iteration."""
        return self.batch_size // self.episodes_per_task

    def num_iters(self, num_tasks: int | None, num_epochs: int | None = None) -> int:
        """Iterations of `num_epochs` passes over so many tasks (None: no end of them); None: what the settings say."""
        if num_epochs is None and self.num_train_iters is not None:
            return self.num_train_iters
        num_epochs = self.num_epochs if num_epochs is None else num_epochs
        if num_tasks is None:
            return num_epochs * self.num_train_iters_per_epoch
        return -(-num_epochs * num_tasks * self.episodes_per_task // self.batch_size)

    @field_validator("adv_estimator", "policy_loss")
    @classmethod
    def _is_registered(cls, name: str, info: ValidationInfo) -> str:
        known = cls.estimator_needs if info.field_name == "adv_estimator" else cls.policy_losses
        if name not in known:
            raise ValueError(f"{near_names(name, known)} Your own is known once its module is imported.")
        return name

    @model_validator(mode="after")
    def _agree(self) -> Self:
        estimator = self.adv_estimator
        if "groups" in self.estimator_needs[estimator] and self.episodes_per_task < 2:
            raise ValueError(
                f"group_size={self.group_size} with adv_estimator={estimator!r}: a group of one has no spread; "
                "set group_size to 2 or more"
            )
        if "groups" not in self.estimator_needs[estimator] and self.max_dynamic_batches > 1:
            raise ValueError(
                f"max_dynamic_batches={self.max_dynamic_batches} with adv_estimator={estimator!r}: it does not compare "
                "within groups, so no group is left out; set max_dynamic_batches to 1"
            )
        if self.batch_size % self.episodes_per_task:
            raise ValueError(f"batch_size={self.batch_size} is not a multiple of group_size={self.episodes_per_task}")
        if self.dual_clip is not None and self.policy_loss in ("gspo", "cispo"):
            raise ValueError(
                f"dual_clip={self.dual_clip} is of policy_loss='ppo', not {self.policy_loss!r}; set it to null"
            )
        if self.target_kl is not None and self.kl_coef == 0:
            raise ValueError(
                f"target_kl={self.target_kl} cannot steer kl_coef=0; set kl_coef above 0, or target_kl to null"
            )
        if self.rollout_correction_min and self.rollout_correction != "masked":
            raise ValueError(
                f"rollout_correction_min={self.rollout_correction_min} is of rollout_correction='masked', "
                f"not {self.rollout_correction!r}; set it to 0"
            )
        if self.rollout_correction_min >= self.rollout_correction_max:
            raise ValueError(
                f"rollout_correction_min={self.rollout_correction_min} is not below "
                f"rollout_correction_max={self.rollout_correction_max}"
            )
        return self


class RayConfig(Section):
    """Training on several processes or machines."""

    use_ray: Harmless[bool] = False
    """Roll out on Ray actors. False: in this process, or by its servers."""
    num_actors: Harmless[int] = Field(1, ge=1)
    """Actors that roll out, each with an engine of its own."""
    address: Harmless[str] = ""
    """A cluster that runs already: `HOST:PORT`, or `auto` on one of its nodes. Empty: one is started here, for the run."""
    cpus_per_actor: Harmless[float] = Field(1.0, gt=0)
    """CPUs that an actor takes of the cluster. Rounded down, its threads; with `inference.deterministic` this process's."""
    gpus_per_actor: Harmless[float] = Field(0.0, ge=0)
    """GPUs that it takes; with any, its engine computes on the first of them."""
    num_learners: Harmless[int] = Field(1, ge=1)
    """Ray processes that learn together, each with its part of all models (FSDP2). 1: this process learns."""
    num_critics: Harmless[int] = Field(0, ge=0)
    """Ray processes that learn a separate critic, beside those that learn the policy and at the same time, each as large as a
    learner. 0: whoever learns the policy learns the critic, too."""
    cpus_per_learner: Harmless[float] = Field(1.0, gt=0)
    """CPUs that each of them takes of the cluster; rounded as those of an actor."""
    gpus_per_learner: Harmless[float] = Field(0.0, ge=0)
    """GPUs that each takes; with any, it computes on the first of them."""
    colocate: Harmless[bool] = False
    """Actor and learner of the same number share a place, and its GPU where each asks for a part of one
    (`gpus_per_actor`, `gpus_per_learner`). False: each process has a place of its own."""
    placement: Harmless[Literal["spread", "pack"]] = "spread"
    """Put the actors, and the learners, on as many nodes as there are, or on as few as hold them."""
    start_timeout_seconds: Harmless[float] = Field(120.0, gt=0)
    """How long the cluster may take to make room for the actors, and an actor to start."""
    silence_timeout_seconds: Harmless[float] = Field(300.0, gt=0)
    """An actor that gives no sign of life for so long is ended; another one runs its episodes again."""


class CheckpointConfig(Section):
    """What is kept of a run on disk."""

    save_interval: Harmless[int] = Field(10, ge=1)
    """PPO iterations between checkpoints; the warm-up saves every `save_interval` × 10 steps."""
    keep_last_n: Harmless[int] = Field(2, ge=1)
    """Newest checkpoints kept, besides the best."""
    keep_best: Harmless[bool] = True
    """Keep the checkpoint with the best validation as well."""
    wandb_project: Harmless[str] = ""
    """Log to this Weights & Biases project, too (extra `wandb`). Empty: TensorBoard only."""
