"""Input of a plan: the arguments of `midthought plan`."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from midthought.config import Section
from midthought.errors import near_names
from midthought.plan.hardware import GPUS, Gpu


class PlanSettings(Section):
    """A model, machines, and how it is trained on them. One word each, `midthought plan gpus=8`."""

    model: str = ""
    """Folder with a `config.json`, or a Hugging Face name. Empty: the sizes below."""
    hidden_size: int | None = Field(None, ge=1)
    """Width."""
    num_layers: int | None = Field(None, ge=1)
    """Decoder layers."""
    num_heads: int | None = Field(None, ge=1)
    """Attention heads."""
    num_kv_heads: int | None = Field(None, ge=1)
    """Key/value heads; as many as heads by default."""
    head_dim: int | None = Field(None, ge=1)
    """Width of a head; `hidden_size / num_heads` by default."""
    intermediate_size: int | None = Field(None, ge=1)
    """Width of the MLP; 3 × `hidden_size` by default."""
    vocab_size: int | None = Field(None, ge=1)
    """Vocabulary; 151,936 by default."""
    tie_embeddings: bool = False
    """The output layer is the embedding."""
    qk_norm: bool = True
    """Queries and keys are normalised, as in Qwen3."""

    gpus: int = Field(1, ge=1)
    """All GPUs of the run."""
    gpus_per_node: int = Field(8, ge=1)
    """GPUs that are joined by the quick link."""
    gpu: str = "h100"
    """Its name, which says memory, bandwidth and speed."""
    gpu_memory_gib: float | None = Field(None, gt=0)
    """Memory of a GPU where it differs, in GiB."""
    gpu_bandwidth_gbs: float | None = Field(None, gt=0)
    """Its memory's bandwidth where it differs, in GB/s."""
    gpu_tflops: float | None = Field(None, gt=0)
    """Its dense bfloat16 speed where it differs, in 10^12 operations a second."""
    node_link_gbs: float = Field(50.0, gt=0)
    """Bandwidth between nodes for each GPU, in GB/s: 50 is a 400 Gb/s port each."""
    headroom: float = Field(0.1, ge=0, lt=1)
    """Share of a GPU's memory left alone: CUDA's own (about 1 GiB), NCCL's buffers, fragments."""

    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Of the weights that compute."""
    master_weights: bool = True
    """float32 copies of bfloat16 weights, which learn in their place."""
    critic: Literal["none", "separate", "shared"] = "none"
    """A critic of its own (a second model that learns), a head on the policy, or none (GRPO)."""
    reference: bool = False
    """A frozen copy for the KL term. With LoRA the policy without its adapters is one, and takes no memory."""
    offload_reference: bool = False
    """It waits in the host's memory while it does not score."""
    lora_rank: int = Field(0, ge=0)
    """Adapters of this rank learn instead of the weights; 0: the weights."""
    merge_adapters: bool = True
    """With LoRA `local` samples from merged copies of the layers, if they take at most a quarter of the free memory."""
    gradient_checkpointing: bool = False
    """Keep only each layer's input, and compute the layer again in the backward pass."""
    logits_mib: float = Field(64, ge=0)
    """Logits that exist at once, in MiB of float32; 0: all of them."""
    packing: bool = True
    """Rows of a micro-batch stand one after the other; false: padded to the longest."""
    shard: int | None = Field(None, ge=1)
    """GPUs over which weights, gradients and optimizer states are sharded (FSDP2); all that learn by default."""
    offload: bool = False
    """Weights and optimizer states lie in the host's memory while the engine samples (verl.offload)."""

    engine: Literal["local", "vllm", "sglang"] = "vllm"
    """`local` samples with the learner's own weights, the others have a copy."""
    engine_copies: bool = False
    """`local` has a copy beside the learner's (`ray.colocate`), as it has on GPUs of its own (`engine_gpus`)."""
    engine_gpus: int | None = Field(None, ge=1)
    """GPUs for the engine alone; by default it shares all of them with the learner."""
    engine_sleeps: bool = False
    """An engine on the learner's GPUs gives its memory back while it learns (verl's does)."""
    tensor_parallel: int = Field(1, ge=1)
    """GPUs that share one engine."""
    gpu_memory_utilization: float = Field(0.5, gt=0, lt=1)
    """Share of a GPU's memory that the engine takes, its weights included. `local` takes no more than half of it."""
    max_num_seqs: int = Field(256, ge=1)
    """Most sequences at once in one engine."""
    bucket_mib: float = Field(128, ge=0)
    """New weights go to the engine in buckets of so many MiB."""

    prompt_tokens: int = Field(1024, ge=1)
    """Tokens of a prompt."""
    response_tokens: int = Field(2048, ge=1)
    """Most tokens of a response, tool results included."""
    mean_response_tokens: int | None = Field(None, ge=1)
    """Mean tokens of a response, for the time; `response_tokens` by default."""
    batch_size: int = Field(256, ge=1)
    """Episodes of an iteration."""
    mini_batch_size: int = Field(64, ge=1)
    """Episodes of an optimizer step."""
    micro_batch_tokens: int = Field(16384, ge=1)
    """Tokens of a forward and backward pass on one GPU; a longer sequence stands alone."""
    group_size: int = Field(8, ge=1)
    """Episodes of a prompt; an engine computes their prompt once."""
    ppo_epochs: int = Field(1, ge=1)
    """Passes over an iteration's episodes."""

    mfu: float = Field(0.4, gt=0, le=1)
    """Share of the GPU's speed that learning and reading prompts reach. An assumption; measure yours."""
    bandwidth_share: float = Field(0.7, gt=0, le=1)
    """Share of its bandwidth that sampling reaches. An assumption, too."""

    @field_validator("gpu")
    @classmethod
    def _is_known(cls, name: str) -> str:
        if name.lower() not in GPUS:
            raise ValueError(
                f"{near_names(name.lower(), GPUS)} For another one, set gpu_memory_gib, gpu_bandwidth_gbs, gpu_tflops."
            )
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
    def tokens_of_episode(self) -> int:
        return self.prompt_tokens + self.response_tokens

    @property
    def mean_tokens(self) -> int:
        """Mean tokens of an episode."""
        return self.prompt_tokens + min(self.mean_response_tokens or self.response_tokens, self.response_tokens)

    @property
    def tokens_of_pass(self) -> int:
        """Tokens of the largest micro-batch."""
        return max(self.micro_batch_tokens, self.tokens_of_episode)

    @property
    def machine(self) -> Gpu:
        """Data of the GPU, with the values that the settings replace."""
        known = GPUS[self.gpu]
        return Gpu(
            memory_gib=self.gpu_memory_gib or known.memory_gib,
            bandwidth_gbs=self.gpu_bandwidth_gbs or known.bandwidth_gbs,
            tflops=self.gpu_tflops or known.tflops,
            link_gbs=known.link_gbs,
        )
