"""TRL's GRPOTrainer on finished completions: its loss, backward passes and optimizer step. It generates nothing.

Needs trl and datasets, which `make bench` installs in a separate folder.
"""

from __future__ import annotations

import copy
import tempfile
from typing import Any

import torch
from torch import Tensor

from midthought.config import TrainingConfig
from midthought.learning.batch import TokenBatch
from midthought.learning.model import PPOBatch


class TRLUpdate:
    """`training_step` for every micro-batch of a step, then clipping and AdamW, as `Trainer.train` calls them.

    What `_generate_and_score_completions` would return is given: prompts padded on the left, completions on the right,
    the tool mask, advantages and old log-probabilities.
    """

    def __init__(self, model: Any, tokenizer: Any, batch: TokenBatch, training: TrainingConfig, num_rows: int) -> None:
        from datasets import Dataset
        from trl import GRPOConfig, GRPOTrainer

        self._folder = tempfile.TemporaryDirectory(prefix="bench-trl-")
        self._inputs = _inputs(batch, tokenizer.pad_token_id)
        self._num_parts = len(batch) // num_rows
        config = GRPOConfig(
            output_dir=self._folder.name,
            per_device_train_batch_size=num_rows,
            gradient_accumulation_steps=self._num_parts,
            steps_per_generation=self._num_parts,
            num_generations=2,
            max_completion_length=self._inputs["completion_ids"].shape[1],
            loss_type="dapo",
            beta=0.0,
            epsilon=training.clip_ratio,
            temperature=1.0,
            learning_rate=training.learning_rate,
            adam_beta2=training.adam_beta2,
            weight_decay=training.weight_decay,
            max_grad_norm=training.max_grad_norm,
            lr_scheduler_type="constant",
            optim="adamw_torch_fused",
            gradient_checkpointing=False,
            bf16=model.dtype == torch.bfloat16,
            use_cpu=model.device.type == "cpu",
            report_to="none",
        )
        self.trainer = GRPOTrainer(
            model=copy.deepcopy(model),
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=config,
            train_dataset=Dataset.from_list([{"prompt": "-"}] * len(batch)),
            processing_class=copy.deepcopy(tokenizer),
        )
        trainer = self.trainer
        trainer._generate_and_score_completions = lambda _: dict(self._inputs)
        trainer.create_optimizer()
        trainer.model_wrapped, trainer.optimizer = trainer.accelerator.prepare(trainer.model, trainer.optimizer)
        trainer.current_gradient_accumulation_steps = self._num_parts

    def prepare(self, work: object) -> None:
        self.trainer.model.train()

    def run(self) -> None:
        """One optimizer step."""
        trainer, model = self.trainer, self.trainer.model_wrapped
        losses = [trainer.training_step(model, {}, None) for _ in range(self._num_parts)]
        self.grad_norm = float(trainer.accelerator.clip_grad_norm_(model.parameters(), trainer.args.max_grad_norm))
        trainer.optimizer.step()
        model.zero_grad()
        self.loss = float(sum(losses))

    def check(self) -> None:
        assert torch.isfinite(torch.tensor(self.grad_norm)), f"gradient norm {self.grad_norm}"


def _inputs(tokens: TokenBatch, pad_token_id: int) -> dict[str, Tensor]:
    """A scored and credited batch, one row an episode, as TRL lays it out."""
    batch = PPOBatch(tokens)
    assert batch.old_logprobs is not None and batch.advantages is not None
    starts = batch.loss_mask.int().argmax(dim=1).tolist()
    ends = batch.lengths.tolist()

    def cut(figures: Tensor, *, prompt: bool, fill: float = 0) -> Tensor:
        rows = [
            row[:start] if prompt else row[start:end] for row, start, end in zip(figures, starts, ends, strict=True)
        ]
        side = "left" if prompt else "right"
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=fill, padding_side=side)

    is_token = torch.ones_like(batch.token_ids)
    tool_mask = cut(batch.loss_mask.long(), prompt=False)
    return {
        "prompt_ids": cut(batch.token_ids, prompt=True, fill=pad_token_id),
        "prompt_mask": cut(is_token, prompt=True),
        "completion_ids": cut(batch.token_ids, prompt=False, fill=pad_token_id),
        "completion_mask": cut(is_token, prompt=False),
        "tool_mask": tool_mask,
        "advantages": (batch.advantages * batch.loss_mask).sum(1) / batch.loss_mask.sum(1),
        "old_per_token_logps": cut(batch.old_logprobs, prompt=False),
        "num_items_in_batch": tool_mask.sum(),
    }
