"""Settings of supervised steps: `Trainer.sft`, and the warm-up of every recipe."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from midthought.config.section import Auto, Section


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
