"""The library's sections, without `training`. The docstring under a field is its documentation (docs/settings.md)."""

from __future__ import annotations

from datetime import date
from pathlib import PurePath
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from midthought.config.section import Auto, FormerName, Harmless, Section, settled

PathText = Annotated[str, BeforeValidator(lambda given: str(given) if isinstance(given, PurePath) else given)]
"""A path as text; a `Path` is accepted, too."""


class ModelConfig(Section):
    """The policy, and its critic."""

    former_names: ClassVar = {
        "model_name": FormerName("local_path", "local_path"),
        "trust_remote_code": FormerName("nothing, it is always off"),
    }
    local_path: PathText = ""
    """Folder or hub name of a Hugging Face causal LM, or a GGUF file. Empty: a small, randomly initialized Qwen3 with its own
    tokenizer."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Data type of the weights. Log-probabilities are accurate to 1e-4 only in float32. `auto`: bfloat16 for a model from
    `local_path` on a GPU, else float32; the other one if only it fits."""
    float32_head: bool = False
    """With `dtype=bfloat16`: compute the output layer in float32, in the learner and the local engine (MiniMax-M1, ScaleRL), so
    that sampled and recomputed log-probabilities agree better. Costs a float32 copy of its weights during each pass."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of the model's chat template, such as `{"enable_thinking": false}`, wherever a prompt is rendered."""
    chat_template_date: date | Auto = "auto"
    """The date for a chat template that writes today's (Llama 3.2, gpt-oss). `auto`: the day of the run's first start."""
    attn_implementation: Harmless[Literal["auto", "eager", "sdpa", "flash_attention_2", "flex_attention"]] = "auto"
    """Attention of a model from `local_path`, as transformers names it; packed rows (`training.packing`) always use `sdpa`'s
    kernels. `auto`: on a GPU `sdpa` if the model's memory can be planned, else transformers' default."""
    device: Harmless[str] = "auto"
    """Device of training and of the `local` engine: `cpu`, `cuda`, `cuda:1` …. `auto`: the first GPU for a model from
    `local_path`, if there is one; the CPU for the small randomly initialized model, because it is faster there."""
    critic: Literal["auto", "separate", "shared"] = "auto"
    """`separate`: a copy of the base model with a value head; `shared`: a value head on the policy's own trunk. `auto`: shared
    for a model from `local_path` on a GPU, or if a separate one does not fit; with verl, or else separate."""
    tensor_parallel_size: Harmless[int] = Field(1, ge=1)
    """GPUs among which a vLLM or SGLang server that the run starts splits the model. Other engines use one GPU each; the learner
    uses `ray.num_learners`."""
    lora_rank: Annotated[int, Field(ge=0)] | Auto = "auto"
    """Rank of LoRA adapters on every linear layer (extra `lora`); 0: full fine-tuning, without adapters. `auto`: if peft is
    installed, 32 for a model from `local_path` on a GPU, or if nothing milder makes it fit; of a folder of adapters, which are
    merged, their rank; otherwise, and with verl, 0."""
    lora_alpha: int = Field(32, ge=1)
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
    def template_arguments(self) -> dict[str, Any]:
        """Arguments of the chat template: `chat_template_kwargs`, and the date that it writes (`ChatTemplate`)."""
        return {**self.chat_template_kwargs, "strftime_now": self.chat_template_date}

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

    former_names: ClassVar = {"multi_turn": FormerName("max_turns, 1 for a single turn", "max_turns", off=1, on=5)}
    backend: str = "auto"
    """Engine: `local` (in this process), `vllm` or `sglang` (servers: docs/servers.md), or one that you registered. Training
    works with the first three. `auto`: with a model from `local_path` on a GPU, vLLM in this process (`in_process`) if a
    suitable version is installed and fits; otherwise, with `ray.use_ray` or `deterministic`, `local`."""
    in_process: bool = False
    """With `vllm`: run vLLM on this machine without a server. Weights go through shared memory, and on a GPU it releases its
    memory while the learner works."""
    gpu_memory_utilization: Harmless[Annotated[float, Field(gt=0, lt=1)] | Auto] = "auto"
    """Share of the GPU's memory for vLLM's weights and KV cache. `auto`: what the learner does not need;
    for a server that the run starts, the server's default."""
    base_url: Harmless[list[str]] = Field(default_factory=list)
    """URLs of running model servers, `http://HOST:PORT` or `unix:/PATH` each; all serve the same model. Empty: the run starts one
    server, which only this user can reach."""
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
    max_tokens: int = Field(2048, ge=1)
    """Maximum number of tokens after the prompt in one episode, tool results included."""
    max_seq_len: Harmless[Annotated[int, Field(ge=2)] | Auto] = "auto"
    """Maximum number of tokens of a sequence, with its prompt, for which engines and servers reserve memory. `auto`: the longest
    prompt and `max_tokens`; in an environment, whose prompts are unknown before, the model's maximum, and with a server or
    in-process vLLM at most 4,096 tokens and `max_tokens`."""
    max_segment_length: int = Field(1024, ge=1)
    """Maximum number of tokens sampled in one request; generation stops earlier at the end of a call."""
    max_tool_calls_per_cot: int = Field(5, ge=0)
    """Maximum number of calls; the result of any further call is an error message that says so."""
    max_result_tokens: int = Field(512, ge=8)
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
    fewer if they do not fit in memory."""
    merge_adapters: Harmless[bool] = True
    """The local engine samples from copies of the layers with LoRA adapters merged in, if the copies take at most a quarter of
    the device's free memory. If false, or without that memory, adapters are computed separately, which is slower."""
    in_flight: Annotated[float, Field(ge=1)] | Auto = "auto"
    """With `training.max_staleness`: largest number of open episodes (started and not yet trained on), as a multiple of
    `training.batch_size`. `auto`: `max_staleness + 1`, from 3 on `1 + max_staleness / 2`."""
    overlap: Harmless[bool | Auto] = "auto"
    """With `training.max_staleness`: sampling continues while the learner works, in a process of its own. If false, episodes are
    interrupted between two tokens and continue with the new weights; tools run on. `auto`: true if engine and learner have
    their own cores or GPUs, and the first five batches show that it is at least 5 % faster."""
    deterministic: bool = False
    """Fix the composition of every batch, so that a run is bit-for-bit repeatable. Slower with slow tools. With
    `training.max_staleness`, episodes are then interrupted only when each has sampled `max_segment_length` more tokens or has
    ended, and nothing overlaps."""

    @property
    def engine(self) -> str:
        """`backend`; if it is still `auto`, vllm if `in_process` or `base_url` asks for it, else local."""
        return settled(self.backend, "vllm" if self.in_process or self.base_url else "local")


class RewardConfig(Section):
    """Weights of the reward's named parts. Each part is computed from the trajectory and the ground truth."""

    correct: float = 1.0
    """Reward of a correct answer."""
    thought: float = 0.1
    """Reward of a well-formed thought: opened once, closed once, followed by an answer."""
    call_cost: float = Field(0.1, ge=0)
    """Penalty per tool call, whether it was needed or not."""
    wrong_answer: float = Field(0.0, ge=0)
    """Penalty of an answer that is neither correct nor says that there is none, so that guessing is worse than saying so. 1 gives
    the reward of TruthRL (arXiv:2509.25760): 1 if correct, 0 if the policy abstains, -1 if wrong. If a question has no answer,
    abstaining after a search is correct."""


class EnvironmentConfig(Section):
    """The environment: limits of every episode."""

    max_steps: int | None = Field(10, ge=1)
    """Maximum number of steps; then an episode ends (stop reason `max_steps`). Null: no limit."""
    step_timeout_seconds: float = Field(60.0, gt=0)
    """Time limit of one call of `reset`, `step` or `reward_fn`; when it is exceeded, the episode ends as failed."""
    agent_error_reward: float = 0.0
    """Reward of an episode whose agent raises (`Trainer(agent=…)`): malformed answers cause many of these errors."""
    agent_idle_seconds: Harmless[float] = Field(300.0, gt=0)
    """An agent that sends no request for this long, while none is answered, and does not return, ends its episode as failed."""
    train_dropped_answers: bool = True
    """Train also on answers that an agent discards, because it asks again with the same conversation."""


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
    cpus_per_learner: Harmless[float] = Field(1.0, gt=0)
    """CPUs per learner; threads as with `cpus_per_actor`."""
    gpus_per_learner: Harmless[float] = Field(0.0, ge=0)
    """GPUs per learner; if not 0, it runs on the first of them. If there are as many actors as learners, and each requests a
    fraction of a GPU, actor i and learner i share one."""
    start_timeout_seconds: Harmless[float] = Field(120.0, gt=0)
    """Time limit for the cluster to allocate the actors, and for an actor to start."""
    silence_timeout_seconds: Harmless[float] = Field(300.0, gt=0)
    """An actor without a heartbeat for this long is stopped; another one runs its episodes again. Also without Ray: a run ends if
    its local engine samples no token for this long, and with `training.max_staleness` a learner's process that neither answers
    nor computes for this long is replaced."""


class ChecksConfig(Section):
    """What a run does with the findings of its checks (docs/runs.md)."""

    policies: Harmless[dict[str, Literal["off", "warn", "stop"]]] = Field(default_factory=dict)
    """Policy by name of the check, in place of its own: `{entropy: stop, tasks: off}`. `warn`: log its findings; `stop`: end the
    run; `off`: do not check."""


class CheckpointConfig(Section):
    """Checkpoints and logs of a run."""

    output_dir: Harmless[PathText] = ""
    """Run folder of a `Trainer` that has no `run_path`; a recipe has the folder of its command. Empty: no run folder."""
    save_interval: Harmless[int] = Field(10, ge=1)
    """PPO iterations between checkpoints; supervised steps are saved every `save_interval` × 10 steps."""
    save_minutes: Harmless[float] = Field(10.0, gt=0)
    """Also save a checkpoint after the first step or iteration that ends this long after the last checkpoint."""
    keep_last_n: Harmless[int] = Field(2, ge=1)
    """Number of newest checkpoints to keep, besides the one with the best validation."""
    record_episodes: Harmless[int] = Field(0, ge=0)
    """Episodes of each iteration, validation and evaluation arm whose tokens are written to `trajectories.jsonl`, with
    log-probabilities, advantages, ratios, values and entropies, up to a size of 256 MiB (docs/runs.md). 0: texts only."""
    trackers: Harmless[list[str]] = Field(default_factory=lambda: ["tensorboard"])
    """Programs that also get the metrics: `tensorboard`, `wandb` (docs/runs.md)."""
    tracker_project: Harmless[str] = Field("midthought", min_length=1)
    """Project of the run in W&B."""


class SupervisedSection(Section):
    """Supervised steps on demonstrations."""

    num_steps: int = Field(100, ge=0)
    """Number of optimizer steps."""
    batch_tokens: int = Field(4096, ge=64)
    """Tokens of demonstrations per optimizer step."""
    learning_rate: Annotated[float, Field(gt=0, le=1)] | Auto = 2e-5
    """Peak learning rate (AdamW). `auto`: 2e-4 for adapters (`model.lora_rank`); for weights 2e-5·√(7e9 / parameters), or 2e-5 if
    the number of parameters is not known."""
    warmup_steps: int = Field(20, ge=0)
    """Optimizer steps over which the learning rate rises from 0."""
