"""The engine of one episode over verl's server manager: token ids in, token ids and log-probabilities out.

verl's servers answer whole requests and cannot be interrupted, and they have no tokenizer, so no stop strings. They are
asked to stop after any token that may end a call; whatever they write beyond the call's end all the same is cut.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from midthought.engines.engine import Sampling, Stopper
from midthought.engines.servers.streams import Chunk, PartialCompletion
from midthought.errors import EngineError
from midthought.types import Completion

MAX_EMPTY_ANSWERS = 120
"""Answers without a token in a row, after which the servers count as gone. While weights change, requests are sent back."""
_PAUSE_SECONDS = 1.0
_COUNTS = ("spec_num_draft_tokens", "spec_num_accepted_tokens", "spec_num_verify_steps")


class ServerManager(Protocol):
    """What an agent loop is given by verl: `verl.workers.rollout.llm_server.LLMServerClient`, or one like it."""

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **more: Any
    ) -> Any:
        """verl's TokenOutput: `token_ids`, `log_probs` or None, `num_preempted`, `extra_fields`."""
        ...


class VerlEngine:
    """Samples one episode. Implements `midthought.engines.engine.Engine`; make a new one for the next episode.

    Args:
        server_manager: verl's.
        sampling_params: as verl gave them to the agent loop; ours (`max_tokens`, `temperature`, `top_p`) win over them.
        eos_token_ids: the tokens that end a sequence.
        stop_token_ids: tokens that may end a call (`call_end_token_ids`): the servers stop after them, and are asked to go on
            where no call ended.
        request_id: keeps an episode on one server, where its prefix is cached.
        priority: verl's, of this episode's requests.
    """

    def __init__(
        self,
        server_manager: ServerManager,
        sampling_params: Mapping[str, Any],
        *,
        eos_token_ids: Iterable[int],
        stop_token_ids: Iterable[int] = (),
        request_id: str = "0",
        priority: int = 0,
        pause_seconds: float = _PAUSE_SECONDS,
    ) -> None:
        self.policy_version = 0
        self.eos_token_ids = frozenset(eos_token_ids)
        self.num_preempted: int | None = None
        """Summed over the requests; None where the servers do not say."""
        self.extra_fields: dict[str, Any] = {}
        """What the servers said beside tokens: the first request's, with the newest `max_global_steps`."""
        self.num_requests = 0
        self._server_manager = server_manager
        self._sampling_params = dict(sampling_params)
        self._stop_token_ids = sorted(self.eos_token_ids.union(stop_token_ids))
        self._request_id = request_id
        self._priority = priority
        self._pause_seconds = pause_seconds

    async def sample(
        self, episode: int, token_ids: Sequence[int], sampling: Sampling, *, stopper: Stopper | None = None
    ) -> Completion:
        """Continue `token_ids` until the stopper, an end-of-sequence token or `max_tokens` ends it.

        EngineError where the servers answer without tokens for too long, or with fewer log-probabilities than tokens.
        """
        draft = PartialCompletion(list(token_ids), sampling, self.eos_token_ids, stopper)
        num_empty = 0
        while draft.finish is None:
            num_kept = len(draft.token_ids)
            output = await self._request(draft)
            draft.add(_chunk(output))
            if len(draft.token_ids) > num_kept:
                num_empty = 0
                continue
            num_empty += 1
            if num_empty >= MAX_EMPTY_ANSWERS:
                raise EngineError(
                    f"{num_empty} answers in a row held no token (the last one ended with {output.stop_reason!r}); "
                    "see that actor_rollout_ref.rollout.max_model_len has room for prompt and response"
                )
            await asyncio.sleep(self._pause_seconds)
        return Completion(
            token_ids=tuple(draft.token_ids),
            sampled_logprobs=tuple(draft.logprobs),
            finish=draft.finish,
            policy_version=self.policy_version,
            num_cut=draft.num_cut,
        )

    def open(self, episode: int) -> None:
        """Nothing is kept for an episode here."""

    def close(self, episode: int) -> None:
        """Nothing is kept for an episode here."""

    async def _request(self, draft: PartialCompletion) -> Any:
        sampling_params = {
            **self._sampling_params,
            "temperature": draft.sampling.temperature,
            "top_p": draft.sampling.top_p,
            "max_tokens": draft.sampling.max_tokens - len(draft.token_ids),
            "stop_token_ids": self._stop_token_ids,
        }
        output = await self._server_manager.generate(
            self._request_id,
            prompt_ids=[*draft.prompt, *draft.token_ids],
            sampling_params=sampling_params,
            priority=self._priority,
        )
        self.num_requests += 1
        self._record_metadata(output)
        return output

    def _record_metadata(self, output: Any) -> None:
        said = dict(output.extra_fields)
        if output.num_preempted is not None:
            self.num_preempted = (self.num_preempted or 0) + output.num_preempted
        newest = said.get("max_global_steps", said.get("global_steps"))
        counts = {name: self.extra_fields.get(name, 0) + said[name] for name in _COUNTS if name in said}
        self.extra_fields = {**said, **self.extra_fields, **counts}
        if newest is not None:
            self.policy_version = int(newest)
            self.extra_fields["max_global_steps"] = newest


def call_end_token_ids(vocabulary: Mapping[str, int], characters: str) -> list[int]:
    """The tokens that hold one of these characters: what a call can end with, however it is split.

    `vocabulary` is the tokenizer's: piece to id; its pieces spell ASCII as it is, as byte-level and SentencePiece ones do.
    """
    return sorted({token_id for piece, token_id in vocabulary.items() if any(each in piece for each in characters)})


def _chunk(output: Any) -> Chunk:
    token_ids = list(output.token_ids)
    logprobs = [math.nan] * len(token_ids) if output.log_probs is None else list(output.log_probs)
    if len(logprobs) != len(token_ids):
        raise EngineError(f"the servers answered with {len(token_ids)} tokens and {len(logprobs)} log-probabilities")
    return Chunk(token_ids=token_ids, logprobs=logprobs)
