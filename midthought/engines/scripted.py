"""Engine that writes scripted texts, and a tokenizer without training: for tests of recipes, call formats and tools, and tiny
models."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any

from midthought.engines.engine import Sampling, Stopper
from midthought.errors import EngineError
from midthought.tokenization import Renderer
from midthought.types import Completion, Finish

Script = Sequence[str | Sequence[int]] | Callable[[int, Sequence[int]], str | Sequence[int] | None]

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LOGPROB = -0.5
"""Recorded log-probability of every token."""
MARKERS = ("<|pad|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>")


class ScriptedEngine:
    """Implements `midthought.engines.engine.Engine` from a script. Stops at the same points as a real engine.

    Args:
        script: a list with one text (or token ids) per episode number, or a function of (episode, token ids so far) that
            returns the next text when an episode has written the previous one, and None at its end. Text after a call is
            written after the call's result. At its end an episode writes the end-of-sequence token.
        renderer: tokenizes the texts; names of control tokens in them become those tokens.
    """

    policy_version = 0

    def __init__(self, script: Script, renderer: Renderer) -> None:
        if not renderer.eos_token_ids:
            raise EngineError("the tokenizer has no end-of-sequence token; set its eos_token")
        self.eos_token_ids = renderer.eos_token_ids
        self.eos_token_id = min(self.eos_token_ids)
        self._script = script
        self._renderer = renderer
        self._remaining_ids: dict[int, list[int]] = {}
        """Token ids of its current text that an episode has not written yet."""
        self._started: set[int] = set()

    async def sample(
        self, episode: int, token_ids: Sequence[int], sampling: Sampling, *, stopper: Stopper | None = None
    ) -> Completion:
        """Writes up to the end of a call, the end of the sequence, or `max_tokens`."""
        await asyncio.sleep(0)
        written: list[int] = []
        finish = Finish.LENGTH
        while len(written) < sampling.max_tokens:
            token_id = self._next_token(episode, [*token_ids, *written])
            written.append(token_id)
            if token_id in self.eos_token_ids:
                finish = Finish.END
                break
            if stopper is not None and stopper.feed(token_id):
                finish = Finish.CALL
                break
        return Completion(token_ids=tuple(written), sampled_logprobs=(LOGPROB,) * len(written), finish=finish)

    def open(self, episode: int) -> None:
        """Starts a new episode from the start of its script."""
        self.close(episode)

    def close(self, episode: int) -> None:
        """Ends the episode."""
        self._remaining_ids.pop(episode, None)
        self._started.discard(episode)

    def _next_token(self, episode: int, token_ids: Sequence[int]) -> int:
        unwritten = self._remaining_ids.setdefault(episode, [])
        if not unwritten:
            words = self._next_words(episode, token_ids)
            unwritten += self._renderer.control(words) if isinstance(words, str) else self._ids(words)
        return unwritten.pop(0) if unwritten else self.eos_token_id

    @staticmethod
    def _ids(words: Sequence[int] | None) -> Sequence[int]:
        for each in words or ():
            if not isinstance(each, Integral):
                raise EngineError(
                    f"the script has {each!r} among an episode's token ids; one text or a list of ids per episode"
                )
        return words or ()

    def _next_words(self, episode: int, token_ids: Sequence[int]) -> str | Sequence[int] | None:
        if callable(self._script):
            return self._script(episode, token_ids)
        if episode in self._started:
            return None
        self._started.add(episode)
        if episode >= len(self._script):
            raise EngineError(f"the script has {len(self._script)} episodes, episode {episode} was requested")
        return self._script[episode]


def byte_tokenizer() -> Any:
    """Returns a fast tokenizer of 256 bytes and five control tokens with a ChatML template; decoding restores any text."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = Tokenizer(models.BPE(vocab={piece: number for number, piece in enumerate(alphabet)}, merges=[]))
    pieces.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    pieces.decoder = decoders.ByteLevel()
    pieces.add_special_tokens([AddedToken(marker, special=True, normalized=False) for marker in MARKERS])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=pieces, pad_token="<|pad|>", eos_token="<|im_end|>")
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer
