"""Engine of one episode on verl's server manager: token ids in, token ids and log-probabilities out.

verl's servers return whole completions, cannot be interrupted, and have no tokenizer, so no stop strings. They stop after
each token that may end a call; tokens after the call's end are cut.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from midthought.engines.engine import Sampling, Stopper
from midthought.engines.servers.streams import Chunk, PartialCompletion
from midthought.errors import EngineError
from midthought.types import Completion

MAX_EMPTY_ANSWERS = 120
"""Limit of consecutive responses without a token. During a weight update the servers return such responses."""
PAUSE_SECONDS = 1.0
"""Time before the next request after a response without a token."""
_COUNTS = ("spec_num_draft_tokens", "spec_num_accepted_tokens", "spec_num_verify_steps")


class VerlEngine:
    """Samples one episode. Implements `midthought.engines.engine.Engine`; create a new one for each episode.

    Args:
        server_manager: what verl passes to an agent loop (`verl.workers.rollout.llm_server.LLMServerClient`). Its `generate`
            returns verl's TokenOutput: `token_ids`, `log_probs` or None, `num_preempted`, `extra_fields`.
        sampling_params: as verl passed them to the agent loop; our `max_tokens`, `temperature`, `top_p` override them.
        eos_token_ids: the tokens that end a sequence.
        stop_token_ids: tokens that may end a call (`call_end_token_ids`): the servers stop after them; if no call ended,
            sampling continues with the next request.
        request_id: keeps an episode on one server, which caches its prefix.
        priority: verl's priority of this episode's requests.
    """

    def __init__(
        self,
        server_manager: Any,
        sampling_params: Mapping[str, Any],
        *,
        eos_token_ids: Iterable[int],
        stop_token_ids: Iterable[int] = (),
        request_id: str = "0",
        priority: int = 0,
    ) -> None:
        self.policy_version = 0
        self.eos_token_ids = frozenset(eos_token_ids)
        self.num_preempted: int | None = None
        """Sum over the requests; None if the servers do not report it."""
        self.extra_fields: dict[str, Any] = {}
        """Further fields of the servers' first response, with the latest `max_global_steps`."""
        self._server_manager = server_manager
        self._sampling_params = dict(sampling_params)
        self._stop_token_ids = sorted(self.eos_token_ids.union(stop_token_ids))
        self._request_id = request_id
        self._priority = priority

    async def sample(
        self, episode: int, token_ids: Sequence[int], sampling: Sampling, *, stopper: Stopper | None = None
    ) -> Completion:
        """Samples after `token_ids` until the stopper, an end-of-sequence token or `max_tokens` ends the completion.

        Raises `EngineError` after too many responses without tokens, or if the number of log-probabilities is wrong.
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
                    "check that actor_rollout_ref.rollout.max_model_len is at least prompt plus response"
                )
            await asyncio.sleep(PAUSE_SECONDS)
        return draft.completion(self.policy_version)

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
    """Returns the tokens that contain one of these characters, so that a call can end with them however it is tokenized.

    `vocabulary`: the tokenizer's pieces and ids. Pieces must contain ASCII unchanged, as byte-level and SentencePiece do.
    """
    return sorted({token_id for piece, token_id in vocabulary.items() if any(each in piece for each in characters)})


def _chunk(output: Any) -> Chunk:
    token_ids = list(output.token_ids)
    logprobs = [math.nan] * len(token_ids) if output.log_probs is None else list(output.log_probs)
    if len(logprobs) != len(token_ids):
        raise EngineError(f"the servers answered with {len(token_ids)} tokens and {len(logprobs)} log-probabilities")
    return Chunk(token_ids=token_ids, logprobs=logprobs)
