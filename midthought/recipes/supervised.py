"""Settings that every recipe has: supervised steps, control arms, and episodes to write."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from midthought.config import Auto, Harmless, Section


class RecipeEvaluation(Section):
    """Base of a recipe's section `evaluation`."""

    num_shown: Harmless[int] = Field(60, ge=0)
    """Episodes of each evaluation arm that are written to `trajectories.jsonl`, and of each training iteration and validation,
    there at most 8; 0: none."""
    control_arms: Harmless[list[str]] = Field(default_factory=list)
    """Also train and evaluate these variants of the run (`--arms`, docs/commands.md): `rft` and `rft_seconds` (rejection-sampling
    fine-tuning from the same warm-up, for as many episodes or seconds), `clean` (clean demonstrations, no RL), and in `feedback`
    `retry_only` (RL with feedback that only says whether an answer is right)."""


class SupervisedSection(Section):
    """Supervised steps on demonstrations."""

    num_steps: int = Field(100, ge=0)
    """Number of optimizer steps."""
    batch_tokens: int = Field(4096, ge=64)
    """Tokens of demonstrations per optimizer step."""
    learning_rate: Annotated[float, Field(gt=0, le=1)] | Auto = 2e-5
    """Peak learning rate (AdamW). `auto`: 2e-5 for weights, 2e-4 for adapters (`model.lora_rank`)."""
    warmup_steps: int = Field(20, ge=0)
    """Optimizer steps over which the learning rate rises from 0."""
    mixed_precision: bool | None = None
    """Use bfloat16 autocast. Null: if a measurement at the first step finds it at least 1.1 times as fast as float32; a resumed
    run keeps the choice. With `inference.deterministic`, null means float32, because nothing may depend on timing."""
