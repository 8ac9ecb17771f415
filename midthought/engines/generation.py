"""Base of the public synchronous engines: prompts in, texts and log-probabilities out.

Each wraps one asynchronous engine (`engine.py`), which the rollout loop uses directly. Does not depend on tools or rewards.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, TypeVar

from pydantic import Field

from midthought.config import Section
from midthought.engines.engine import Engine, Sampling
from midthought.errors import EngineError, SettingsError
from midthought.tokenization import Renderer
from midthought.tools.background_loop import BackgroundLoop
from midthought.types import Completion, Finish

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")

Prompt = str | Sequence[Mapping[str, str]]
"""A text (such as a rendered chat prompt; names of control tokens in it become those tokens), or a conversation of `role`
and `content`, which the chat template renders."""


class _SamplingOptions(Section):
    """What the values of the public engines' sampling options may be."""

    max_tokens: int = Field(1, ge=1)
    temperature: float = Field(1.0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0)
    min_p: float = Field(0.0, ge=0, le=1)
    seed: int = 0


SAMPLING_OPTIONS = tuple(_SamplingOptions.model_fields)


@dataclass(frozen=True, slots=True)
class GenerationOutput:
    """Result of `generate` for B prompts; rows are padded on the right to the longest, T tokens."""

    sequences: list[str]
    """Generated texts, without prompt and end-of-sequence token."""
    tokens: Tensor  # [B, T] int64, padded with the engine's `pad_token_id`
    log_probs: Tensor  # [B, T] float32, of the sampled tokens; 0 in the padding
    lengths: list[int] = field(default_factory=list)
    """Number of generated tokens per row, including the end-of-sequence token. Empty in an output made by hand."""
    finishes: list[Finish] = field(default_factory=list)
    """Finish reason per row: `end` or `length`. Empty in an output made by hand."""

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.sequences)


class BaseInferenceEngine:
    """Base class of public engines. A subclass creates an asynchronous `Engine` and passes it to `super().__init__`.

    Use `generate`; the rollout loop uses `core` and `renderer`. Usable as a context manager.
    """

    def __init__(
        self,
        core: Engine,
        renderer: Renderer = None,  # type: ignore[assignment]
        *,
        max_tokens: int = 256,
        temperature: float = 0.7,
        top_p: float = 0.9,
        top_k: int = 0,
        min_p: float = 0.0,
        seed: int = 0,
    ) -> None:
        """Raises `SettingsError` for invalid sampling options, or if `core` is not an engine."""
        if not hasattr(core, "sample"):
            raise SettingsError(
                f"{type(self).__name__}: super().__init__ takes an asynchronous engine and a Renderer, got {core!r:.40} "
                "(docs/own_parts.md, An engine); ScriptedInferenceEngine writes given texts without a model"
            )
        self.core = core
        self.renderer = renderer
        self.max_tokens = max_tokens
        self.temperature = temperature
        self.top_p = top_p
        self.top_k = top_k
        self.min_p = min_p
        self.seed = seed
        self._loop = BackgroundLoop("midthought-engine")
        self._numbers = itertools.count()
        self._is_shut_down = False
        self.sampling()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        top_k: int | None = None,
        min_p: float | None = None,
        seed: int | None = None,
        first_number: int = 0,
    ) -> GenerationOutput:
        """Generates a continuation of each prompt. The constructor sets the defaults; `temperature=0` is greedy.

        The n-th prompt's tokens depend on (seed, n), not on the rest of the batch. `first_number`: number of the first prompt,
        for prompts split over several calls. Raises `EngineError` for a prompt that is empty or fills the context,
        `SettingsError` for invalid sampling options.
        """
        given: dict[str, Any] = {
            "max_tokens": max_tokens,
            "temperature": temperature,
            "top_p": top_p,
            "top_k": top_k,
            "min_p": min_p,
            "seed": seed,
        }
        listed = prompt_list(prompts)
        sampling = [self.sampling(first_number + row, **given) for row in range(len(listed))]
        return self.run(self._generate(listed, sampling, first_number))

    def sampling(self, number: int = 0, **options: Any) -> Sampling:
        """Returns the sampling options of the n-th prompt of a call: the engine's, replaced by `options` that are not None.

        Raises `SettingsError` for invalid values.
        """
        given = {name: getattr(self, name) for name in SAMPLING_OPTIONS}
        given |= {name: value for name, value in options.items() if value is not None}
        checked = _SamplingOptions(**given).model_dump()
        return Sampling(**checked | {"seed": (checked["seed"] << 20) + number})

    def encode(self, prompt: Prompt) -> list[int]:
        """Returns the token ids of a prompt, with a beginning-of-sequence token if the tokenizer adds one to texts.

        Lone surrogates are replaced by question marks.
        """
        if not isinstance(prompt, str):
            return self.renderer.prompt(_checked_messages(prompt))
        bos_id = self.renderer.tokenizer.bos_token_id
        token_ids = self.renderer.control(prompt.encode(errors="replace").decode())
        has_bos = bos_id is not None and self.renderer.tokenizer("").input_ids[:1] == [bos_id]
        return [bos_id, *token_ids] if has_bos and token_ids[:1] != [bos_id] else token_ids

    @property
    def pad_token_id(self) -> int:
        """Padding in `GenerationOutput.tokens`: the tokenizer's pad token, or 0 if it has none."""
        return self.renderer.tokenizer.pad_token_id or 0

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on this engine's event loop. Synchronous code must use `core` only through this.

        Raises `EngineError` after `shutdown`, and if called on this event loop.
        """
        self._require_running(coroutine)
        return self._loop.run(coroutine)

    def start(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Starts a coroutine on this engine's event loop without waiting for it. Raises `EngineError` after `shutdown`."""
        self._require_running(coroutine)
        return self._loop.start(coroutine)

    def next_episode(self) -> int:
        """Returns a new sequence number for `core`. Raises `EngineError` after `shutdown`."""
        self._require_running()
        return next(self._numbers)

    def _require_running(self, *coroutines: Coroutine[Any, Any, Any]) -> None:
        if self._is_shut_down:
            for coroutine in coroutines:
                coroutine.close()
            raise EngineError(f"this {type(self).__name__} was shut down; create a new one")

    def update_weights(self) -> None:
        """Uses the model's new weights after they were changed in place. Not supported by all engines."""
        raise EngineError(f"{type(self).__name__} does not support weight updates")

    def shutdown(self) -> None:
        """Releases the engine's resources; it cannot be used afterwards. May be called twice."""
        self._is_shut_down = True
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    async def _generate(
        self, prompts: Sequence[Prompt], sampling: Sequence[Sampling], first_number: int
    ) -> GenerationOutput:
        sequences = [self.encode(prompt) for prompt in prompts]
        if empty := [row for row, token_ids in enumerate(sequences) if not token_ids]:
            raise EngineError(f"prompt {first_number + empty[0]} is empty; give at least one token to continue")
        numbers = [self.next_episode() for _ in sequences]
        for number in numbers:
            self.core.open(number)

        async def one(row: int) -> Completion:
            try:
                completion = await self.core.sample(numbers[row], sequences[row], sampling[row])
            finally:
                self.core.close(numbers[row])
            if not completion.token_ids:
                raise EngineError(
                    f"prompt {first_number + row} has {len(sequences[row])} tokens and fills the engine's context; "
                    "shorten it, or create the engine with a larger max_seq_len"
                )
            return completion

        running = [asyncio.ensure_future(one(row)) for row in range(len(sequences))]
        try:
            return self._output(await asyncio.gather(*running))
        finally:
            for row in running:
                row.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            for number in numbers:
                self.core.close(number)

    def _output(self, completions: Sequence[Completion]) -> GenerationOutput:
        import torch

        lengths = [len(completion.token_ids) for completion in completions]
        shape = (len(completions), max(lengths, default=0))
        tokens = torch.full(shape, self.pad_token_id, dtype=torch.int64)
        log_probs = torch.zeros(shape)
        for row, completion in enumerate(completions):
            tokens[row, : lengths[row]] = torch.tensor(completion.token_ids, dtype=torch.int64)
            log_probs[row, : lengths[row]] = torch.tensor(completion.sampled_logprobs)
        return GenerationOutput(
            sequences=[self._text(completion) for completion in completions],
            tokens=tokens,
            log_probs=log_probs,
            lengths=lengths,
            finishes=[completion.finish for completion in completions],
        )

    def _text(self, completion: Completion) -> str:
        token_ids = completion.token_ids
        return self.renderer.decode(token_ids[:-1] if completion.finish is Finish.END else token_ids)


def prompt_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Returns one or several prompts as a list; a list of `role`/`content` messages is one conversation."""
    if isinstance(prompts, str):
        return [prompts]
    listed: list[Any] = list(prompts) if isinstance(prompts, Iterable) else [prompts]
    if not isinstance(prompts, Iterable) or (hasattr(prompts, "dtype") and not all(isinstance(p, str) for p in listed)):
        raise SettingsError(f"prompts={prompts!r:.80}: give a text, a list of texts, or a list of messages")
    if any(isinstance(each, int | float | bytes | None) for each in listed):
        raise SettingsError(f"prompts={prompts!r:.80}: a prompt is a text or a list of messages, not token ids")
    return [listed] if listed and isinstance(listed[0], Mapping) else listed


def _checked_messages(messages: Sequence[Mapping[str, str]]) -> Sequence[Mapping[str, str]]:
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping) or not all(
            isinstance(message.get(key), str) for key in ("role", "content")
        ):
            raise SettingsError(
                f"message {number} of a prompt is {message!r:.80}; write {{'role': 'user', 'content': 'some text'}}"
            )
    return messages
