"""Settings that only verl needs: the machines it runs on, and the options of our agent loop. Knows no recipe."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from midthought.config import InferenceConfig, Section

AGENT_NAME = "midthought"
"""Under which `agent_loop.yaml` registers our agent loop with its options, and which rows of the data ask for."""
PLAIN_AGENT_NAME = "midthought_plain"
"""Under which importing the module registers it without options. Another name: verl imports the module after it has read
the file, and would put the plain one in place of the one with options."""


class VerlSftConfig(Section):
    """What verl's SFT trainer has to know besides."""

    batch_size: int = Field(32, ge=1)
    """Conversations per optimizer step; a multiple of the GPUs."""
    max_length: int = Field(16384, ge=1)
    """Most tokens of a conversation; a longer one ends verl's run."""
    overrides: dict[str, Any] = Field(default_factory=dict)
    """Keys of the SFT trainer's own configuration, such as `{"trainer.total_epochs": 6}`; they win over everything else."""


class VerlConfig(Section):
    """What verl has to know besides the recipe: machines, memory, and settings of its own."""

    rollout: Literal["vllm", "sglang"] = "vllm"
    """Engine that verl samples with."""
    num_nodes: int = Field(1, ge=1)
    """Machines."""
    gpus_per_node: int = Field(8, ge=1)
    """GPUs of each."""
    tensor_parallel: int = Field(1, ge=1)
    """GPUs that share one sampling engine. As few as the model fits on: more engines sample more."""
    gpu_memory_utilization: float = Field(0.5, gt=0, lt=1)
    """Share of a GPU's memory that the sampling engine takes while it samples."""
    max_prompt_length: int = Field(1024, ge=1)
    """Most tokens of a prompt, system message and chat template included; verl leaves rows with longer ones out."""
    max_tokens_per_gpu: int | None = Field(None, ge=1)
    """Most tokens of a micro-batch on one GPU; rows are packed up to it. Null: room for two of the longest sequences."""
    rows_per_gpu: int | None = Field(None, ge=1)
    """Rows of a micro-batch on one GPU, padded, instead of packing by tokens."""
    offload: bool = False
    """Keep weights and optimizer states in the host's memory while they are not used."""
    num_agent_workers: int = Field(8, ge=1)
    """Processes that run episodes (tools included) side by side."""
    num_validation_rows: int = Field(64, ge=1)
    """Most tasks of the validation file."""
    project: str = "midthought"
    """`trainer.project_name`: where its loggers and checkpoints file the run."""
    loggers: list[str] = Field(default_factory=lambda: ["console", "tensorboard"])
    """verl's loggers: console, tensorboard, wandb, …"""
    call_ends_with: str = "}"
    """Servers stop after every token that holds one of these characters, so that an episode stops where its call does. Empty:
    they write whole segments of `inference.max_segment_length`, and what follows a call is cut. That is better for texts that
    are full of such characters (LaTeX)."""
    python: str | None = None
    """Interpreter of an environment that has verl, to launch with; null: this one."""
    overrides: dict[str, Any] = Field(default_factory=dict)
    """Keys of verl's own configuration, such as `{"trainer.save_freq": 50}`; they win over everything else."""
    sft_trainer: VerlSftConfig = Field(default_factory=VerlSftConfig)
    """What only the warm-up by verl's SFT trainer reads (`--stage sft`)."""


class LoopOptions(Section):
    """Options of our agent loop, as `agent_loop.yaml` gives them to every worker."""

    call_format: str = "in_thought"
    """How calls are written: in_thought, react, hermes, json, function_calling, or one registered by you."""
    max_segment_length: int = Field(256, ge=1)
    """Most tokens sampled in one request."""
    max_tool_calls_per_cot: int = Field(5, ge=0)
    """Calls beyond this number are answered with an error that says so."""
    max_result_tokens: int = Field(256, ge=8)
    """A longer tool result is cut."""
    max_turns: int = Field(5, ge=1)
    """Answers of the policy in one episode."""
    tool_timeout_seconds: float = Field(10.0, gt=0)
    """Deadline of one tool call."""
    call_ends_with: str = "}"
    """See `VerlConfig.call_ends_with`."""
    supply: str | None = None
    """`module:name` of a function `(renderer, tools, options)` that gives a `midthought.cluster.verl.job.EpisodeSetup`. Null:
    the tools of verl's tool configuration, nobody replies, and the reward is that of your own reward function."""
    supply_options: dict[str, Any] = Field(default_factory=dict)
    """What it is given as options; JSON values."""

    @classmethod
    def from_config(cls, inference: InferenceConfig, verl: VerlConfig, **more: Any) -> LoopOptions:
        """What a recipe's settings say of episodes; `more` are further options by name."""
        return cls(
            max_segment_length=inference.max_segment_length,
            max_tool_calls_per_cot=inference.max_tool_calls_per_cot,
            max_result_tokens=inference.max_result_tokens,
            max_turns=inference.max_turns,
            tool_timeout_seconds=inference.tool_timeout_seconds,
            call_ends_with=verl.call_ends_with,
            **more,
        )
