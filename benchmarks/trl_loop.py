"""TRL's GRPOTrainer with a tool, run until its completions are finished; it does not learn.

Needs trl and datasets, which `make bench` installs in a separate folder.
"""

from __future__ import annotations

import copy
import importlib.util
import tempfile
from collections.abc import Callable
from typing import Any

from benchmarks.reciter import Reciter
from benchmarks.work import Latency, LookTool, Shape, Work


def is_installed() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in ("trl", "datasets"))


class TRLToolLoop:
    """`GRPOTrainer._generate`: `generate`, the calls parsed and run, `generate` anew on the longer context.

    The reciter's style is `hermes`, the form of calls that TRL reads. Its chat template leaves the tools' descriptions
    out, so that prompts are as long as everybody's. `_generate` is private; `train` calls it, and nothing public does.
    """

    def __init__(self, reciter: Reciter, shape: Shape, latency: Latency) -> None:
        self._reciter = reciter
        self._shape = shape
        self._latency = latency
        self._folder = tempfile.TemporaryDirectory(prefix="bench-trl-")

        def look(word: str) -> str:
            """Looks a word up.

            Args:
                word: The word.
            """
            return self._tool.execute(word)

        self._look = look
        self._trainer = make_trainer(reciter, shape, look, self._folder.name)

    def prepare(self, work: Work) -> None:
        self._tool = LookTool(work.results, self._latency)
        self._prompts = [[{"role": "user", "content": prompt}] for prompt in work.prompts]
        self._trainer._sync_tool_dicts = [{"look": self._look} for _ in self._prompts]
        self._trainer._async_tool_dicts = [{} for _ in self._prompts]

    def run(self) -> None:
        _, self._completion_ids, self._masks, *_ = self._trainer._generate(self._prompts)

    def check(self) -> None:
        for token_ids, mask in zip(self._completion_ids, self._masks, strict=True):
            assert len(token_ids) == self._shape.num_response, f"{len(token_ids)} tokens"
            assert sum(mask) == self._shape.num_sampled, f"{sum(mask)} sampled tokens"
            self._reciter.check(
                [token_id for token_id, was_sampled in zip(token_ids, mask, strict=True) if was_sampled]
            )


def make_trainer(reciter: Reciter, shape: Shape, tool: Callable[..., str], folder: str) -> Any:
    """A GRPOTrainer that samples at temperature 1 from a copy of the reciter's model, and keeps its cache in `generate`."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer
    from trl.chat_template_utils import qwen3_template

    tokenizer = copy.deepcopy(reciter.tokenizer)
    tokenizer.response_template = qwen3_template
    config = GRPOConfig(
        output_dir=folder,
        per_device_train_batch_size=shape.num_episodes,
        num_generations=2,
        max_completion_length=shape.num_response,
        max_tool_calling_iterations=shape.num_calls,
        temperature=1.0,
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=reciter.model.device.type == "cpu",
        report_to="none",
    )
    return GRPOTrainer(
        model=copy.deepcopy(reciter.model),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=config,
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": "-"}]}] * shape.num_episodes),
        processing_class=tokenizer,
        tools=[tool],
    )
