"""The section `training`: algorithm, optimizer, batches, and the checks that its settings agree. As in `sections`, the
docstring under a field is its documentation."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from midthought.config.algorithms import AlgorithmSection
from midthought.config.section import Auto, FormerName, Harmless, settled
from midthought.errors import near_names

ITERS_PER_EPOCH = 100
"""Iterations per epoch in an environment, unless `Trainer.fit` gets another number."""
Correction = Literal["none", "truncated", "masked", "sequence_truncated", "sequence_masked"]
"""Weights of tokens by the ratio of recomputed to sampled probability (`algo.shaping.rollout_weights`)."""


class TrainingConfig(AlgorithmSection):
    """PPO and related algorithms: docs/algorithms.md has the formula and the source of each."""

    former_names: ClassVar = {"use_kl_in_reward": FormerName("kl_coef, 0 for no penalty", "kl_coef", off=0.0, on=0.01)}

    seed: int = Field(0, ge=0, lt=2**63)
    """Seed of all random numbers: data split, questions, initial weights, sampling."""
    num_train_iters: Harmless[int | None] = Field(None, ge=0)
    """Number of iterations, each a rollout of `batch_size` episodes and the update on them. Null: follows from `num_epochs`."""
    num_epochs: Harmless[int] = Field(3, ge=0)
    """Number of passes over the tasks; in an environment, whose tasks are unlimited, 100 iterations each."""
    batch_size: int = Field(64, ge=1)
    """Episodes per iteration."""
    max_staleness: int = Field(0, ge=0)
    """Largest number of updates between the weights that sampled a token and those that are trained on it. Above 0, groups that
    are not finished when a batch is complete continue with the new weights and are trained on later (docs/algorithms.md), and
    `rollout_correction=auto` is `truncated`. 0: each batch is sampled and trained on with the same weights."""
    kept_weights_gib: Harmless[float] = Field(4.0, ge=0)
    """With `max_staleness`: memory for copies of earlier weights, with which tokens that they sampled are checked. If
    `max_staleness` copies do not fit, the run says so, and only tokens of the newest weights are checked."""
    mini_batch_size: int = Field(64, ge=1)
    """Largest number of episodes per optimizer step. The episodes of an iteration are divided evenly among its steps."""
    micro_batch_tokens: Harmless[Annotated[int, Field(ge=64)] | Auto] = "auto"
    """Tokens per micro-batch (one forward and backward pass); changes memory and speed, not the result. `auto`: 4096
    on a CPU, 16384 on a GPU, and as many as a whole group has if its samples share the prompt (`packing`); fewer if they do
    not fit."""
    packing: Harmless[bool | Literal["shared"]] = "shared"
    """Pack the rows of a micro-batch without padding; attention stays within each row. `shared`: also compute a prompt that the
    rows of a group share once in each micro-batch, if that saves a tenth of the tokens; with `inference.deterministic` as true.
    If false, or if the model's attention does not support it (the log says so), rows of similar length are padded; changes
    speed, not the result."""
    logits_mib: Harmless[Annotated[int, Field(ge=1)] | Auto] = "auto"
    """Memory limit for logits, in MiB. If policy tokens × vocabulary need more, log-probabilities are computed block by block,
    and again in the backward pass; changes memory and speed, not the result. `auto`: 64 on a CPU; on a GPU 512,
    or 64 if they do not fit."""
    gradient_checkpointing: Harmless[bool | Literal["auto", "offload"]] = "auto"
    """Store only the input of each layer and recompute the layer in the backward pass: less memory, about a third more time.
    `offload`: store these inputs in CPU memory. `auto`: false if all activations fit, for a given model on a GPU
    with a tenth of its memory to spare; else true, or `offload` if only it fits."""
    optimizer: Literal["adamw", "adamw_8bit"] = "adamw"
    """`adamw_8bit`: AdamW with moments of one byte each instead of four (bitsandbytes, extra `adamw-8bit`): 6 bytes less per
    trained weight. Steps are slightly less exact."""
    adam_beta2: float = Field(0.999, ge=0, lt=1)
    """Decay of AdamW's second moment, the mean of the squared gradients; for the policy and the critic. Of the first: 0.9."""
    weight_decay: float = Field(0.01, ge=0)
    """AdamW's decay of weight matrices and embeddings, as a share of the learning rate; biases and norms do not decay."""
    offload: Harmless[Literal["none", "reference", "optimizer"]] = "none"
    """`reference`: keep the reference and the teacher in CPU memory except while they score; no effect on the reference with
    `model.lora_rank`, which needs no copy. `optimizer`: also keep the optimizer's copy of the weights, its gradients and moments
    there, and take its steps on the CPU: up to 12 bytes less per trained weight on the GPU. Costs two copies of the weights
    over the bus per step."""
    ppo_epochs: int = Field(1, ge=1)
    """Passes over the episodes of an iteration."""
    group_size: int | None = Field(None, ge=1)
    """Episodes per task in an iteration. Null: 8 if the estimator compares within groups, else 1."""
    adv_estimator: str = "gae"
    """Advantage estimator: `gae` (with a critic), `grpo`, `dr_grpo`, `rloo`, `reinforce_plus_plus`,
    `reinforce_plus_plus_baseline`, `grpo_turns`, `grpo_calls`, `keep_best` (selected episodes only, with
    `policy_loss=nll`), `zero` (the teacher's term alone), or one that you registered (`@advantage_estimator`)."""
    teacher: str = ""
    """On-policy distillation: a model folder, a checkpoint or a run folder (its last policy) with the same tokenizer.
    `log π_teacher - log π` at each sampled token is added to its advantage. Empty: no teacher."""
    gamma: float = Field(1.0, ge=0, le=1)
    """Discount per policy token (`gae`, `reinforce_plus_plus`), per turn (`grpo_turns`), or per call step (`grpo_calls`)."""
    lam: float = Field(1.0, ge=0, le=1)
    """GAE's lambda, per policy token."""
    max_dynamic_batches: int = Field(1, ge=1)
    """DAPO's dynamic sampling: roll out up to this many batches until `batch_size` episodes are in groups with different
    rewards. 1: one batch only, as with estimators without groups. Those with groups always drop zero-variance groups."""
    learning_rate: Annotated[float, Field(gt=0, le=1)] | Auto = "auto"
    """Peak learning rate of the policy (AdamW). `auto`: 1e-6 for weights, 1e-5 for adapters (`model.lora_rank`), 2e-4 for the
    small randomly initialized model."""
    critic_learning_rate: float = Field(1e-5, gt=0, le=1)
    """Peak learning rate of the critic (AdamW)."""
    warmup_steps: int = Field(2, ge=0)
    """Optimizer steps over which the learning rate rises from 0."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Learning-rate schedule after the warm-up, until the last step."""
    critic_warmup_iters: int = Field(0, ge=0)
    """Number of first iterations that train only the critic. They do not count in the policy's learning-rate schedule."""
    policy_loss: str = "ppo"
    """`ppo`, `gspo`, `cispo`, `sapo`, `gmpo`, `dppo_tv`, `dppo_kl`,
    `nll` (docs/algorithms.md), or one that you registered (`@policy_loss`)."""
    loss_agg: Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"] = (
        "token-mean"
    )
    """Averaging of token losses over an optimizer step: all tokens weigh the same (`token-mean`), or all episodes do, by the
    mean of their tokens, their sum, or their sum divided by `inference.max_tokens` (Dr. GRPO)."""
    clip_ratio: float = Field(0.2, gt=0)
    """Clip range of the probability ratio; the lower one, if there is a `clip_ratio_high`."""
    clip_ratio_high: float | None = Field(None, gt=0)
    """Upper clip range (DAPO's clip-higher: 0.28). Null: `clip_ratio`."""
    dual_clip: float | None = Field(None, gt=1)
    """`ppo`: the loss of a token with a negative advantage A is at most this times |A|. Null: no such limit."""
    cliprange_value: float = Field(0.2, gt=0)
    """Clip range of the change of the value function."""
    entropy_coef: float = Field(0.0, ge=0)
    """Weight of the entropy bonus."""
    kl_coef: float = Field(0.0, ge=0)
    """Coefficient of the KL penalty in the reward of every policy token. Reference model: the policy before PPO."""
    target_kl: float | None = Field(None, gt=0)
    """Adapt `kl_coef` to this KL divergence, in nats per policy token. Null: `kl_coef` is constant."""
    kl_loss_coef: float = Field(0.0, ge=0)
    """Weight of the KL divergence as a term of the loss (as in GRPO)."""
    kl_loss_kind: Literal["k1", "k2", "k3", "abs"] = "k3"
    """KL estimator in the loss. The gradient of k1 is zero on average; the gradient of k2 is that of the divergence."""
    rollout_correction: Correction | Auto = "auto"
    """Weight the policy loss by the ratio of recomputed to sampled probability, for engines whose numerics differ from the
    learner's: `truncated` limits the weight of a token to the maximum, `masked` drops tokens whose weight is outside the limits;
    `sequence_truncated` and `sequence_masked` do so with one weight per episode. `auto`: `truncated` if another engine than
    `local` samples, unless the policy loss uses the sampled log-probabilities itself; else `none`."""
    overlong_buffer_tokens: float = Field(0, ge=0)
    """DAPO's overlong reward shaping: over this many tokens before `inference.max_tokens`, a penalty grows linearly with the
    length of the episode. Below 1: a share of `inference.max_tokens` (DAPO: 0.2). 0: none."""
    mask_truncated_episodes: bool = False
    """DAPO's overlong filtering: episodes that ended at the limit of tokens, turns or steps have no loss. They still count in the
    statistics of their group."""
    max_grad_norm: float = Field(1.0, gt=0, allow_inf_nan=True)
    """Gradients are clipped to this norm; `.inf`: no clipping."""
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
    def clip_high(self) -> float:
        """The upper clip range."""
        return self.clip_ratio_high or self.clip_ratio

    @property
    def peak_learning_rate(self) -> float:
        """`learning_rate`. Raises SettingsError if it is still `auto`."""
        return settled(self.learning_rate)

    @property
    def correction(self) -> Correction:
        """`rollout_correction`; `none` if it is still `auto`."""
        return settled(self.rollout_correction, "none")

    @property
    def max_micro_batch_tokens(self) -> int:
        """`micro_batch_tokens`; 4096 if it is still `auto`."""
        return settled(self.micro_batch_tokens, 4096)

    @property
    def max_logits_mib(self) -> int:
        """`logits_mib`; 64 if it is still `auto`."""
        return settled(self.logits_mib, 64)

    @property
    def episodes_per_task(self) -> int:
        """`group_size`, or the default of the estimator."""
        has_groups = "groups" in self.estimator_needs.get(self.adv_estimator, ())
        return self.group_size or (8 if has_groups else 1)

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
            return num_epochs * ITERS_PER_EPOCH
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
        check_agreement(self)
        return self

    @property
    def needs_reference(self) -> bool:
        """Whether the learner compares with a frozen reference."""
        return bool(self.kl_coef or self.kl_loss_coef)


_BUILT_IN = frozenset(TrainingConfig.policy_losses)


def check_agreement(config: TrainingConfig) -> None:
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
    if config.dual_clip is not None and loss in _BUILT_IN - {"ppo"}:
        raise ValueError(
            f"dual_clip={config.dual_clip} with policy_loss={loss!r}, which does not use it; set it to null"
        )
    if loss in config.sampling_corrected and config.correction != "none":
        raise ValueError(
            f"rollout_correction={config.rollout_correction!r} with policy_loss={loss!r}, which already uses the "
            "sampled log-probabilities or has no importance weights; set rollout_correction to 'none'"
        )
    if config.target_kl is not None and config.kl_coef == 0:
        raise ValueError(
            f"target_kl={config.target_kl} cannot adapt kl_coef=0; set kl_coef above 0, or target_kl to null"
        )
