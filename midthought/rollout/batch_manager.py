"""Generates for many prompts with one engine, a batch at a time. Uses only the engine's `generate`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from midthought.engines.generation import BaseInferenceEngine, GenerationOutput, Prompt, prompt_list
from midthought.errors import EngineError, SettingsError


class BatchInferenceManager:
    """Generates for any number of prompts with at most `batch_size` of them in the engine at once.

    Raises SettingsError if `batch_size` is below 1.
    """

    def __init__(self, engine: BaseInferenceEngine, batch_size: int = 32) -> None:
        if batch_size < 1:
            raise SettingsError(f"batch_size={batch_size}: a batch has at least one prompt")
        self.engine = engine
        self.batch_size = batch_size

    def generate_batch(
        self,
        prompts: Prompt | Sequence[Prompt],
        max_tokens: int | None = None,
        **sampling: Any,
    ) -> GenerationOutput:
        """Continues every prompt. The result equals that of one `generate` call with all prompts, whatever `batch_size` is.

        Args:
            prompts: texts or conversations, as `BaseInferenceEngine.generate` takes them.
            max_tokens: maximum tokens generated for each.
            sampling: `temperature`, `top_p`, `seed`; the engine's values are the defaults.

        Raises:
            SettingsError: an unknown sampling option or an invalid value.
            EngineError: a batch failed; the message names its first prompt, and the original error is the cause.
        """
        sampling["max_tokens"] = max_tokens
        self.engine.sampling(**sampling)
        listed = prompt_list(prompts)
        if not listed:
            return self.engine.generate([])
        outputs = []
        for start in range(0, len(listed), self.batch_size):
            batch = listed[start : start + self.batch_size]
            try:
                outputs.append(self.engine.generate(batch, first_number=start, **sampling))
            except Exception as error:
                raise EngineError(
                    f"the batch of {len(batch)} prompts from prompt {start} on ({batch[0]!r:.60}) failed: {error}"
                ) from error
        return _joined(outputs, self.engine.pad_token_id)


def _joined(outputs: Sequence[GenerationOutput], pad_token_id: int) -> GenerationOutput:
    """Returns the rows of several outputs, padded to the longest of them."""
    import torch
    from torch.nn.functional import pad

    num_columns = max(output.tokens.shape[1] for output in outputs)
    missing = [(0, num_columns - output.tokens.shape[1]) for output in outputs]
    return GenerationOutput(
        sequences=[text for output in outputs for text in output.sequences],
        tokens=torch.cat([pad(o.tokens, m, value=pad_token_id) for o, m in zip(outputs, missing, strict=True)]),
        log_probs=torch.cat([pad(o.log_probs, m) for o, m in zip(outputs, missing, strict=True)]),
        lengths=[length for output in outputs for length in output.lengths],
        finishes=[finish for output in outputs for finish in output.finishes],
    )
