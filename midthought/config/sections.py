"""The library's sections. The docstring under a field is its documentation (docs/settings.md)."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self, TypeVar

from pydantic import Field, ValidationInfo, field_validator, model_validator

from midthought.config.section import Harmless, Section
from midthought.errors import SettingsError, near_names

Auto = Literal["auto"]
"""The run chooses a value for its hardware before it starts (`midthought.plan.choices`), and records it."""
Value = TypeVar("Value")


def settled(value: Value | Auto, otherwise: Value | None = None) -> Value:
    """The value of a setting that may be `auto`; `otherwise` if no run has replaced it. Raises SettingsError if that is None."""
    if value != "auto":
        return value
    if otherwise is None:
        raise SettingsError(
            "a setting is still 'auto': no run has chosen its value (midthought.plan.choices); set a value"
        )
    return otherwise


class ModelConfig(Section):
    """The policy, and its critic."""

    local_path: str = ""
    """Folder or hub name of a Hugging Face causal LM. Empty: a small, randomly initialized Qwen3 with its own tokenizer."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Data type of the weights. Log-probabilities are accurate to 1e-4 only in float32. `auto`: bfloat16 for a model from
    `local_path` on a GPU, else float32."""
    attn_implementation: Harmless[Literal["auto", "eager", "sdpa", "flash_attention_2", "flex_attention"]] = "auto"
    """Attention of a model from `local_path`, as transformers names it; packed rows (`training.packing`) always use `sdpa`'s
    kernels. `auto`: on a GPU `sdpa` if the model's memory can be planned, else transformers' default."""
    device: Harmless[str] = "auto"
    """Device of training and of the `local` engine: `cpu`, `cuda`, `cuda:1` …. `auto`: the first GPU for a model from
    `local_path`, if there is one; the CPU for the small randomly initialized model, because it is faster there."""
    critic: Literal["auto", "separate", "shared"] = "auto"
    """`separate`: a copy of the base model with a value head; `shared`: a value head on the policy's own trunk. `auto`: shared
    for a model from `local_path` on a GPU; otherwise, and with `ray.num_critics` or verl, separate."""
    lora_rank: Annotated[int, Field(ge=0)] | Auto = "auto"
    """Rank of LoRA adapters on every linear layer (extra `lora`); 0: full fine-tuning, without adapters. `auto`: 32 for a
    model from `local_path` on a GPU if peft is installed; otherwise, and with verl, 0."""
    lora_alpha: int = Field(16, ge=1)
    """LoRA alpha: the scale of the adapters is `lora_alpha / lora_rank`."""
    hidden_size: int = Field(128, ge=16)
    """Hidden size of the small randomly initialized model. It and the next three are unused with `local_path`."""
    num_layers: int = Field(4, ge=1)
    """Number of layers of the small model."""
    num_heads: int = Field(2, ge=2)
    """Number of attention heads of the small model, of 64 dimensions each, and of its key/value heads."""
    vocab_size: int = Field(1024, ge=300)
    """Vocabulary size of the small model: byte-level BPE, trained on the recipe's training episodes."""

    @property
    def device_of_made(self) -> str:
        """Device of the small randomly initialized model."""
        return "cpu" if self.device == "auto" else self.device

    @property
    def weights_dtype(self) -> Literal["float32", "bfloat16"]:
        """`dtype`; float32, as on a CPU, if it is still `auto`."""
        return settled(self.dtype, "float32")

    @property
    def critic_kind(self) -> Literal["separate", "shared"]:
        """`critic`; separate, as on a CPU, if it is still `auto`."""
        return settled(self.critic, "separate")

    @property
    def adapter_rank(self) -> int:
        """`lora_rank`; 0, as on a CPU, if it is still `auto`."""
        return settled(self.lora_rank, 0)


class InferenceConfig(Section):
    """The rollout loop and its engine."""

    backend: str = "auto"
    """Engine: `local` (in this process), `vllm` or `sglang` (servers: docs/servers.md), or one that you registered. Training
    works with the first three. `auto`: with a model from `local_path` on a GPU, vLLM in this process (`in_process`) if a
    suitable version is installed and fits; otherwise, with `ray.use_ray` or `deterministic`, `local`."""
    in_process: bool = False
    """With `vllm`: run vLLM on this machine without a server. Weights go through shared memory, and on a GPU it releases its
    memory while the learner works."""
    gpu_memory_utilization: Harmless[Annotated[float, Field(gt=0, lt=1)] | Auto] = "auto"
    """Share of the GPU's memory for vLLM's weights and KV cache. `auto`: what the learner does not need (`midthought plan`)."""
    base_url: Harmless[list[str]] = Field(default_factory=list)
    """URLs of running model servers, `http://HOST:PORT` each; all serve the same model. Empty: the run starts one server."""
    served_model_name: Harmless[str | None] = None
    """Name under which the servers serve the model; null: `model.local_path`."""
    api_key_env: Harmless[str | None] = None
    """Environment variable that holds the API key of the servers."""
    server_python: Harmless[str | None] = None
    """Python interpreter of an environment with vLLM or SGLang, for a server that the run starts; null: this interpreter."""
    server_flags: list[str] = Field(default_factory=list)
    """Further command-line arguments for a server that the run starts, e.g. `[--gpu-memory-utilization, "0.4"]`."""
    weights_path: Harmless[str | None] = None
    """Folder to which weights are written for the servers. They must see it under the same path. Null: a temporary folder."""
    sync_tolerance: Harmless[float | None] = Field(None, gt=0)
    """Largest allowed mean difference between a server's log-probabilities and the policy's after a weight update; a larger
    one stops the run. Null: 0.01 in float32, 0.1 in bfloat16."""
    server_wait_seconds: Harmless[float] = Field(300.0, gt=0)
    """Time to wait for servers that cannot be reached, counted while no server returns a token. Then the episodes fail and
    the run stops. (A connected server has 300 s for the first token of a request.)"""
    max_tokens: int = Field(256, ge=1)
    """Maximum number of tokens after the prompt in one episode, tool results included."""
    max_seq_len: Harmless[Annotated[int, Field(ge=2)] | Auto] = "auto"
    """Maximum number of tokens of a sequence, with its prompt, for which engines and servers reserve memory. `auto`: the longest
    prompt and `max_tokens`; in an environment, whose prompts are unknown before, the model's maximum, and with a server or
    in-process vLLM at most 4,096 tokens and `max_tokens`."""
    max_segment_length: int = Field(256, ge=1)
    """Maximum number of tokens sampled in one request; generation stops earlier at the end of a call."""
    max_tool_calls_per_cot: int = Field(5, ge=0)
    """Maximum number of calls; the result of any further call is an error message that says so."""
    max_result_tokens: int = Field(192, ge=8)
    """Maximum length of a tool result; a longer one is truncated."""
    max_turns: int = Field(5, ge=1)
    """Maximum number of turns (answers of the policy) in one episode; a call or reply after the last turn ends it."""
    keep_thoughts: bool = True
    """True: after a reply, the next turn continues from exactly the sampled tokens. False: earlier thoughts are dropped, as
    many chat templates do; the conversation without them starts a new segment of the episode."""
    tool_timeout_seconds: float = Field(10.0, gt=0)
    """Time limit of one tool call."""
    temperature: float = Field(1.0, ge=0)
    """Sampling temperature of training rollouts. It is recorded with every sampled token; the learner computes
    log-probabilities, entropy and KL at the same temperature."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus sampling. Must be 1.0 in training: tokens outside the nucleus would have probability 0."""
    max_num_seqs: Harmless[Annotated[int, Field(ge=1)] | Auto] = 128
    """Maximum number of episodes in the local engine's KV cache, or of concurrent requests to each server. `auto`: 128, or
    fewer if they do not fit in the GPU's memory."""
    cuda_graphs: Harmless[bool] = True
    """On a GPU, the local engine captures decoding steps as CUDA graphs and replays them; not with `deterministic`."""
    merge_adapters: Harmless[bool] = True
    """The local engine samples from copies of the layers with LoRA adapters merged in, if the copies take at most a quarter of
    the device's free memory. If false, or without that memory, adapters are computed separately, which is slower."""
    partial_rollouts: bool = False
    """End an iteration as soon as `training.batch_size` episodes (whole groups) are done. Running episodes are interrupted and
    continue in the next iteration with the new weights. `training.rollout_correction=none` then means `truncated`."""
    partial_over_sampling: float = Field(1.5, ge=1, le=2)
    """With `partial_rollouts`: episodes in flight at the start of an iteration, as a multiple of `training.batch_size`."""
    partial_max_carry_overs: int = Field(2, ge=1)
    """With `partial_rollouts`: maximum number of iterations into which an episode is carried over; the last one waits for it."""
    deterministic: bool = False
    """Fix the composition of every batch, so that a run is bit-for-bit repeatable. Slower with slow tools. Partial rollouts
    are then interrupted only when every episode has sampled `max_segment_length` more tokens or has ended."""

    @property
    def engine(self) -> str:
        """`backend`; local, as on a CPU, if it is still `auto`."""
        return settled(self.backend, "local")


class RewardConfig(Section):
    """Weights of the reward's named parts. Each part is computed from the trajectory and the ground truth."""

    correct: float = 1.0
    """Reward of a correct answer."""
    thought: float = 0.1
    """Reward of a well-formed thought: opened once, closed once, followed by an answer."""
    call_cost: float = Field(0.1, ge=0)
    """Penalty per tool call, whether it was needed or not."""


class EnvironmentConfig(Section):
    """The environment: limits of every episode, and the size of the built-in game."""

    max_steps: int | None = Field(10, ge=1)
    """Maximum number of steps; then an episode ends as `truncated`. Null: no limit."""
    step_timeout_seconds: float = Field(60.0, gt=0)
    """Time limit of one call of `reset`, `step` or `reward_fn`; when it is exceeded, the episode ends as failed."""
    grid_size: int = Field(3, ge=2)
    """Rooms along each side of the square grid of `SimpleGameEnvironment`."""
    num_items: int = Field(1, ge=1, le=4)
    """Items to collect in `SimpleGameEnvironment`."""


class TrainingConfig(Section):
    """PPO and related algorithms: docs/algorithms.md has the formula and the source of each."""

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
    """Inputs of every estimator besides rewards: `values` (a critic), `groups` (group_size of 2 or more), `turns`,
    `baselines` (a greedy episode per group). `@advantage_estimator` adds to it."""
    policy_losses: ClassVar[set[str]] = {"ppo", "gspo", "cispo"}
    """Names of the policy losses. `@policy_loss` adds to it."""

    seed: int = Field(0, ge=0, lt=2**63)
    """Seed of all random numbers: data split, questions, initial weights, sampling."""
    num_train_iters: Harmless[int | None] = Field(None, ge=0)
    """Number of iterations, each a rollout of `batch_size` episodes and the update on them. Null: follows from `num_epochs`."""
    num_epochs: Harmless[int] = Field(3, ge=0)
    """Number of passes over the tasks; in an environment, whose tasks are unlimited, `num_train_iters_per_epoch` iterations
    each."""
    num_train_iters_per_epoch: Harmless[int] = Field(100, ge=1)
    """Iterations per epoch in an environment."""
    batch_size: int = Field(32, ge=1)
    """Episodes per iteration."""
    mini_batch_size: int = Field(32, ge=1)
    """Episodes per optimizer step."""
    micro_batch_tokens: Harmless[Annotated[int, Field(ge=64)] | Auto] = 4096
    """Tokens per micro-batch (one forward and backward pass); changes memory and speed, not the result. `auto`: 4096, or fewer
    if they do not fit in the GPU's memory."""
    accumulation_steps: Harmless[int | None] = Field(None, ge=1)
    """Micro-batches per optimizer step of PPO; changes memory and speed, not the result. Null: by `micro_batch_tokens`."""
    packing: Harmless[bool] = True
    """Pack the rows of a micro-batch without padding; attention stays within each row. If false, or if the model's attention
    does not support it (the log says so), rows of similar length are padded; changes speed, not the result."""
    logits_mib: Harmless[Annotated[int, Field(ge=1)] | Auto] = 64
    """Memory limit for logits, in MiB. If policy tokens × vocabulary need more, log-probabilities are computed block by block,
    and again in the backward pass; changes memory and speed, not the result. `auto`: 64 on a CPU; on a GPU up to 512, at most
    1/160 of its memory, or fewer if they do not fit."""
    gradient_checkpointing: Harmless[bool | Literal["auto", "offload"]] = "auto"
    """Store only the input of each layer and recompute the layer in the backward pass: less memory, about a third more time.
    `offload`: store these inputs in CPU memory. `auto`: true for a model from `local_path` on a GPU."""
    compile: Harmless[bool] = False
    """Compile the decoder layers (`torch.compile`; needs a C++ compiler). The first steps take about a minute longer."""
    master_weights: bool = True
    """With `model.dtype=bfloat16`: update float32 master weights, because steps are often too small for bfloat16. Costs 10 more
    bytes per weight: a copy of 4, and 4 instead of 2 for both moments and the gradient."""
    optimizer: Literal["adamw", "adamw_8bit"] = "adamw"
    """`adamw_8bit`: AdamW with moments of one byte each instead of four (bitsandbytes, extra `adamw-8bit`): 6 bytes less per
    trained weight. Steps are slightly less exact."""
    offload_optimizer: Harmless[bool] = False
    """Keep the optimizer's copy of the weights, its gradients and moments in CPU memory, and take its steps on the CPU: up to
    12 bytes less per trained weight on the GPU. Costs two copies of the weights over the bus per step."""
    offload_reference: Harmless[bool] = False
    """Keep the reference model in CPU memory except while it scores. No effect with `model.lora_rank`, which needs no copy."""
    ppo_epochs: int = Field(1, ge=1)
    """Passes over the episodes of an iteration."""
    group_size: int | None = Field(None, ge=1)
    """Episodes per task in an iteration. Null: 8 if the estimator compares within groups, else 1."""
    adv_estimator: str = "gae"
    """Advantage estimator: `gae` (with a critic), `grpo`, `dr_grpo`, `rloo`, `reinforce_plus_plus`,
    `reinforce_plus_plus_baseline`, `remax`, `grpo_turns`, or one that you registered (`@advantage_estimator`)."""
    gamma: float = Field(1.0, gt=0, le=1)
    """Discount per policy token (`gae`, `reinforce_plus_plus`)."""
    lam: float = Field(1.0, ge=0, le=1)
    """GAE's lambda, per policy token."""
    whiten_advantages: bool = True
    """Scale the advantages to mean 0 and standard deviation 1 over the batch (`gae` and both `reinforce_plus_plus`)."""
    norm_adv_by_std: bool = True
    """Divide by the standard deviation of the group (`grpo`, `grpo_turns`)."""
    max_dynamic_batches: int = Field(1, ge=1)
    """DAPO's dynamic sampling: roll out up to this many batches until `batch_size` episodes are in groups with different
    rewards. 1: one batch only. Estimators that compare within groups always drop zero-variance groups."""
    learning_rate: Annotated[float, Field(gt=0)] | Auto = 1e-5
    """Peak learning rate of the policy (AdamW). `auto`: 2e-6 for weights, 2e-5 for adapters (`model.lora_rank`)."""
    critic_learning_rate: float = Field(1e-5, gt=0)
    """Peak learning rate of the critic (AdamW)."""
    warmup_steps: int = Field(2, ge=0)
    """Optimizer steps over which the learning rate rises from 0."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Learning-rate schedule after the warm-up, until the last step."""
    min_learning_rate_ratio: float = Field(0.0, ge=0, le=1)
    """Final learning rate of a linear or cosine schedule, as a share of the peak."""
    critic_warmup_iters: int = Field(0, ge=0)
    """Number of first iterations that train only the critic. They do not count in the policy's learning-rate schedule."""
    policy_loss: str = "ppo"
    """`ppo` (ratio per token, clipped), `gspo` (ratio per sequence, clipped), `cispo` (clipped weight on the
    log-probability), or one that you registered (`@policy_loss`)."""
    loss_agg: Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"] = (
        "token-mean"
    )
    """Averaging of token losses over an optimizer step: all tokens weigh the same (`token-mean`), or all episodes do, by the
    mean of their tokens, their sum, or their sum divided by a constant (Dr. GRPO)."""
    loss_norm_tokens: int | None = Field(None, ge=1)
    """The constant of `seq-mean-token-sum-norm`. Null: `inference.max_tokens`."""
    clip_ratio: float = Field(0.2, gt=0)
    """Clip range of the probability ratio."""
    clip_ratio_low: float | None = Field(None, gt=0)
    """Lower clip range. Null: `clip_ratio`."""
    clip_ratio_high: float | None = Field(None, gt=0)
    """Upper clip range (DAPO's clip-higher: 0.28). Null: `clip_ratio`."""
    dual_clip: float | None = Field(None, gt=1)
    """`ppo`: the loss of a token with a negative advantage A is at most this times |A|. Null: no such limit."""
    cliprange_value: float = Field(0.2, gt=0)
    """Clip range of the change of the value function."""
    value_loss_coef: float = Field(0.5, ge=0)
    """Weight of the value loss if policy and critic share a trunk; a separate critic has its own optimizer."""
    entropy_coef: float = Field(0.01, ge=0)
    """Weight of the entropy bonus."""
    kl_coef: float = Field(0.01, ge=0)
    """Coefficient of the KL penalty in the reward of every policy token. Reference model: the policy before PPO."""
    kl_kind: Literal["k1", "k2", "k3", "abs"] = "k1"
    """KL estimator of the penalty: `k1` log ratio, `k2` half its square, `k3` Schulman's k3, `abs` the absolute log ratio."""
    target_kl: float | None = Field(None, gt=0)
    """Adapt `kl_coef` to this KL divergence, in nats per policy token. Null: `kl_coef` is constant."""
    kl_horizon: int = Field(10_000, ge=1)
    """Episodes over which `target_kl` changes `kl_coef` by at most 20 %."""
    kl_loss_coef: float = Field(0.0, ge=0)
    """Weight of the KL divergence as a term of the loss (as in GRPO)."""
    kl_loss_kind: Literal["k1", "k2", "k3", "abs"] = "k3"
    """KL estimator in the loss. The gradient of k1 is zero on average; the gradient of k2 is that of the divergence."""
    rollout_correction: Literal["none", "truncated", "masked"] = "none"
    """Weight the policy loss by the ratio of recomputed to sampled probability, for engines whose numerics differ from the
    learner's: `truncated` limits the weight to the maximum, `masked` drops tokens whose weight is outside the limits."""
    rollout_correction_level: Literal["token", "sequence"] = "token"
    """One weight per token, or one per episode."""
    rollout_correction_max: float = Field(2.0, gt=0, allow_inf_nan=True)
    """Largest weight; `.inf`: no limit."""
    rollout_correction_min: float = Field(0.0, ge=0)
    """Smallest weight that `masked` keeps."""
    overlong_buffer_tokens: int = Field(0, ge=0)
    """DAPO's overlong reward shaping: over this many tokens before `inference.max_tokens`, a penalty grows linearly with the
    length of the episode. 0: none."""
    overlong_penalty: float = Field(1.0, gt=0)
    """Penalty of an episode of `inference.max_tokens` tokens."""
    max_grad_norm: float = Field(1.0, gt=0, allow_inf_nan=True)
    """Gradients are clipped to this norm; `.inf`: no clipping."""
    logprob_difference_warn: Harmless[float] = Field(0.05, gt=0)
    """Warn if the mean difference between sampled and recomputed log-probabilities of the current policy's tokens is larger
    than this (nats; metric `logprob_difference_mean`)."""
    logprob_difference_stop: Harmless[float | None] = Field(0.5, gt=0)
    """Stop the run before the update if that difference is larger than this. Null: never."""
    no_signal_iters: Harmless[int | None] = Field(10, ge=1)
    """Stop a run without a training signal (all rewards equal) in its first iterations, this many, or in as many in a row later
    if the rewards are also lower than before. A shorter run only warns. Null: never."""
    validate_every: Harmless[int] = Field(10, ge=0)
    """Iterations between validations on held-out questions; 0: no validation."""
    num_validation_questions: int = Field(100, ge=1)
    """Number of questions per validation."""

    @property
    def needs(self) -> frozenset[str]:
        """Inputs of the estimator besides rewards (`estimator_needs`)."""
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
        """Whether there is `gradient_checkpointing`; false if it is still `auto`."""
        return bool(settled(self.gradient_checkpointing, False))

    @property
    def offloads_activations(self) -> bool:
        """Whether the layers' inputs are stored in CPU memory."""
        return self.gradient_checkpointing == "offload"

    @property
    def episodes_per_task(self) -> int:
        """`group_size`, or the default of the estimator."""
        return self.group_size or (8 if "groups" in self.estimator_needs.get(self.adv_estimator, ()) else 1)

    @property
    def num_groups(self) -> int:
        """Groups per iteration."""
        return self.batch_size // self.episodes_per_task

    def num_iters(self, num_tasks: int | None, num_epochs: int | None = None) -> int:
        """Iterations of `num_epochs` passes (None: as set) over this many tasks (None: an environment, unlimited tasks)."""
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
            raise ValueError(f"{near_names(name, known)} Your own is available once its module is imported.")
        return name

    @model_validator(mode="after")
    def _agree(self) -> Self:
        estimator = self.adv_estimator
        if "groups" in self.estimator_needs[estimator] and self.episodes_per_task < 2:
            raise ValueError(
                f"group_size={self.group_size} with adv_estimator={estimator!r}: a group of one has no variance; "
                "set group_size to 2 or more"
            )
        if "groups" not in self.estimator_needs[estimator] and self.max_dynamic_batches > 1:
            raise ValueError(
                f"max_dynamic_batches={self.max_dynamic_batches} with adv_estimator={estimator!r}: it does not compare "
                "within groups, so no group is dropped; set max_dynamic_batches to 1"
            )
        if self.batch_size % self.episodes_per_task:
            raise ValueError(f"batch_size={self.batch_size} is not a multiple of group_size={self.episodes_per_task}")
        if self.dual_clip is not None and self.policy_loss in ("gspo", "cispo"):
            raise ValueError(
                f"dual_clip={self.dual_clip} applies to policy_loss='ppo', not {self.policy_loss!r}; set it to null"
            )
        if self.target_kl is not None and self.kl_coef == 0:
            raise ValueError(
                f"target_kl={self.target_kl} cannot adapt kl_coef=0; set kl_coef above 0, or target_kl to null"
            )
        if self.rollout_correction_min and self.rollout_correction != "masked":
            raise ValueError(
                f"rollout_correction_min={self.rollout_correction_min} applies to rollout_correction='masked', "
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
    """Run rollouts on Ray actors. False: in this process, or on its model servers."""
    num_actors: Harmless[int] = Field(1, ge=1)
    """Number of rollout actors, each with its own engine."""
    address: Harmless[str] = ""
    """Address of a running cluster: `HOST:PORT`, or `auto` on one of its nodes. Empty: the run starts a cluster here."""
    cpus_per_actor: Harmless[float] = Field(1.0, gt=0)
    """CPUs per actor, and, rounded down, its threads. With `inference.deterministic` it has as many threads as this process."""
    gpus_per_actor: Harmless[float] = Field(0.0, ge=0)
    """GPUs per actor; if not 0, its engine runs on the first of them."""
    num_learners: Harmless[int] = Field(1, ge=1)
    """Ray processes that train together, each with a shard of all models (FSDP2). 1: this process trains."""
    num_critics: Harmless[int] = Field(0, ge=0)
    """Ray processes that train a separate critic at the same time as the learners train the policy, with the same resources
    each. 0: the learners of the policy also train the critic."""
    cpus_per_learner: Harmless[float] = Field(1.0, gt=0)
    """CPUs per learner; threads as with `cpus_per_actor`."""
    gpus_per_learner: Harmless[float] = Field(0.0, ge=0)
    """GPUs per learner; if not 0, it runs on the first of them."""
    colocate: Harmless[bool] = False
    """Place actor i and learner i in one placement-group bundle. They share its GPU if each requests a fraction of one
    (`gpus_per_actor`, `gpus_per_learner`). False: each process has its own bundle."""
    placement: Harmless[Literal["spread", "pack"]] = "spread"
    """Distribute actors and learners over as many nodes as possible (`spread`) or as few as possible (`pack`)."""
    start_timeout_seconds: Harmless[float] = Field(120.0, gt=0)
    """Time limit for the cluster to allocate the actors, and for an actor to start."""
    silence_timeout_seconds: Harmless[float] = Field(300.0, gt=0)
    """An actor without a heartbeat for this long is stopped; another one runs its episodes again."""


class CheckpointConfig(Section):
    """Checkpoints and logs of a run."""

    save_interval: Harmless[int] = Field(10, ge=1)
    """PPO iterations between checkpoints; the warm-up saves every `save_interval` × 10 steps."""
    keep_last_n: Harmless[int] = Field(2, ge=1)
    """Number of newest checkpoints to keep, besides the best."""
    keep_best: Harmless[bool] = True
    """Also keep the checkpoint with the best validation."""
    wandb_project: Harmless[str] = ""
    """Also log to this Weights & Biases project (extra `wandb`). Empty: TensorBoard only."""
