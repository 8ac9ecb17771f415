"""Input of a plan: the arguments of `midthought plan`."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from midthought.config import Section
from midthought.errors import near_names
from midthought.plan.hardware import GIB, GPUS


class PlanSettings(Section):
    """A model, machines, and how the model is trained on them: arguments like `midthought plan gpus=8`."""

    model: str = ""
    """Folder with a `config.json`, or a Hugging Face name. Empty: the sizes below."""
    hidden_size: int | None = Field(None, ge=1)
    """Hidden size."""
    num_layers: int | None = Field(None, ge=1)
    """Number of decoder layers."""
    num_heads: int | None = Field(None, ge=1)
    """Number of attention heads."""
    num_kv_heads: int | None = Field(None, ge=1)
    """Number of key/value heads; `num_heads` by default."""
    head_dim: int | None = Field(None, ge=1)
    """Dimension of a head; `hidden_size / num_heads` by default."""
    intermediate_size: int | None = Field(None, ge=1)
    """Width of the MLP; 3 × `hidden_size` by default."""
    vocab_size: int = Field(151_936, ge=1)
    """Vocabulary size."""
    tie_embeddings: bool = False
    """Whether the output layer is the embedding."""
    qk_norm: bool = True
    """Whether queries and keys are normalized, as in Qwen3."""

    device: Literal["gpu", "cpu"] = "gpu"
    """What the run computes on. On a CPU, its memory is the machine's, and `local` keeps its cache while it learns."""
    gpus: int = Field(1, ge=1)
    """Number of GPUs of the run."""
    gpu: str = "h100"
    """Name of the GPU; sets its memory."""
    gpu_memory_gib: float | None = Field(None, gt=0)
    """Memory of a GPU in GiB, if it differs."""
    headroom: float = Field(0.1, ge=0, lt=1)
    """Share of a GPU's memory that is not planned: CUDA context (about 1 GiB), NCCL buffers, fragmentation."""

    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Data type of the weights in forward and backward passes."""
    critic: Literal["none", "separate", "shared"] = "none"
    """`separate` (a second trained model), `shared` (a value head on the policy), or `none` (GRPO)."""
    reference: bool = False
    """Whether there is a frozen reference for the KL term. With LoRA it is the policy without adapters and takes no memory."""
    offload_reference: bool = False
    """Keep the reference in CPU memory except while it scores."""
    lora_rank: int = Field(0, ge=0)
    """Rank of LoRA adapters; 0: full fine-tuning."""
    use_dora: Literal[False] = False
    """DoRA is not counted: its passes keep constants that grow with the square of a map's input."""
    merge_adapters: bool = True
    """With LoRA, `local` samples from merged copies of the layers, if they take at most a quarter of the free memory."""
    optimizer: Literal["adamw", "adamw_8bit"] = "adamw"
    """`adamw_8bit`: moments of 1 byte per number, with one float32 scale per block of 256."""
    offload_optimizer: bool = False
    """Keep float32 copies and Adam moments in main memory; steps are taken there."""
    gradient_checkpointing: bool = False
    """Store only the input of each layer and recompute the layer in the backward pass."""
    offload_activations: bool = False
    """With `gradient_checkpointing`: store these inputs in main memory."""
    logits_mib: float = Field(64, ge=0)
    """Memory limit for logits, in MiB of float32; 0: no limit."""
    packing: bool = True
    """Pack the rows of a micro-batch without padding; false: pad them to the longest."""
    shard: int | None = Field(None, ge=1)
    """GPUs over which weights, gradients and optimizer states are sharded (FSDP2); all learning GPUs by default."""
    offload: bool = False
    """Keep weights and optimizer states in CPU memory while the engine samples (verl.offload)."""

    engine: Literal["local", "vllm", "sglang"] = "vllm"
    """Engine. `local` samples with the learner's own weights, the others have a copy."""
    engine_copies: bool = False
    """Whether `local` has its own copy of the weights (`ray.colocate`); with `engine_gpus` it always has one."""
    engine_gpus: int | None = Field(None, ge=1)
    """GPUs for the engine only; by default it shares all GPUs with the learner."""
    engine_sleeps: bool = False
    """Whether an engine on the learner's GPUs frees its memory during learning (verl's does)."""
    in_process: bool = False
    """Whether vLLM runs in the learner's process (`inference.in_process`)."""
    tensor_parallel: int = Field(1, ge=1)
    """GPUs per engine."""
    gpu_memory_utilization: float = Field(0.5, gt=0, lt=1)
    """Share of a GPU's memory that the engine takes, its weights included. `local` takes no more than half of it."""
    max_num_seqs: int = Field(256, ge=1)
    """Maximum number of concurrent sequences in one engine."""

    prompt_tokens: int = Field(1024, ge=1)
    """Tokens of a prompt."""
    response_tokens: int = Field(2048, ge=1)
    """Maximum tokens of a response, tool results included."""
    batch_size: int = Field(256, ge=1)
    """Episodes per iteration."""
    mini_batch_size: int = Field(64, ge=1)
    """Episodes per optimizer step."""
    micro_batch_tokens: int = Field(16384, ge=1)
    """Tokens per micro-batch on one GPU; a longer sequence is a micro-batch of its own."""

    @field_validator("gpu")
    @classmethod
    def _is_known(cls, name: str) -> str:
        if name.lower() not in GPUS:
            raise ValueError(f"{near_names(name.lower(), GPUS)} For another one, set gpu_memory_gib.")
        return name.lower()

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.engine_gpus is not None and self.engine_gpus >= self.gpus:
            raise ValueError(f"engine_gpus={self.engine_gpus} of gpus={self.gpus} leaves none to learn; set it lower")
        if self.sampling_gpus % self.tensor_parallel:
            raise ValueError(
                f"tensor_parallel={self.tensor_parallel} does not divide the engine's {self.sampling_gpus} GPUs; "
                "set it to a divisor"
            )
        if self.learning_gpus % self.num_shards:
            raise ValueError(
                f"shard={self.shard} does not divide the {self.learning_gpus} GPUs that learn; set a divisor"
            )
        return self

    @property
    def is_split(self) -> bool:
        """Whether engine and learner use separate GPUs."""
        return self.engine_gpus is not None

    @property
    def engine_has_copy(self) -> bool:
        """Whether the engine has its own copy of the weights."""
        return self.engine != "local" or self.is_split or self.engine_copies

    @property
    def is_for_verl(self) -> bool:
        """Whether only verl trains like this: an engine of its own that sleeps."""
        return self.offload or (self.engine_sleeps and not self.in_process)

    @property
    def is_fused(self) -> bool:
        """Whether the learner fuses norms, LoRA layers and attention: half precision on one GPU."""
        is_half_on_gpu = self.device == "gpu" and self.dtype == "bfloat16"
        return is_half_on_gpu and self.num_shards == 1 and not self.is_for_verl

    @property
    def sampling_gpus(self) -> int:
        return self.engine_gpus or self.gpus

    @property
    def learning_gpus(self) -> int:
        return self.gpus - (self.engine_gpus or 0)

    @property
    def num_shards(self) -> int:
        return self.shard or self.learning_gpus

    @property
    def num_engines(self) -> int:
        return self.sampling_gpus // self.tensor_parallel

    @property
    def num_episodes_of_engine(self) -> int:
        return -(-self.batch_size // self.num_engines)

    @property
    def tokens_of_episode(self) -> int:
        return self.prompt_tokens + self.response_tokens

    @property
    def tokens_of_pass(self) -> int:
        """Tokens of the largest micro-batch."""
        return max(self.micro_batch_tokens, self.tokens_of_episode)

    @property
    def memory_gib(self) -> float:
        """Memory of a GPU in GiB."""
        return self.gpu_memory_gib or GPUS[self.gpu]

    @property
    def memory_bytes(self) -> int:
        return round(self.memory_gib * GIB)
