"""One streamed completion request to a model server. Does not retry and does not depend on weights."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
from collections.abc import Sequence

from midthought.engines.engine import Sampling
from midthought.engines.servers.connection import Connections, RetryPolicy, named
from midthought.engines.servers.dialect import Dialect
from midthought.engines.servers.endpoints import Endpoint, Endpoints
from midthought.engines.servers.streams import (
    EventSplitter,
    PartialCompletion,
    RetryableError,
    add_events,
    response_error,
)


class CompletionRequests:
    """Sends completion requests in the servers' protocol.

    Args:
        model: the model's name on servers that were not checked yet.
    """

    def __init__(
        self, dialect: Dialect, model: str, endpoints: Endpoints, connections: Connections, retry_policy: RetryPolicy
    ) -> None:
        self._dialect = dialect
        self._model = model
        self._endpoints = endpoints
        self._connections = connections
        self._retry_policy = retry_policy

    async def stream(self, endpoint: Endpoint, draft: PartialCompletion, room: int, adapter: str | None = None) -> None:
        """Sends one request and adds its tokens as they arrive. Returning early closes the connection, which cancels it."""
        import httpx

        num_before = num_kept = len(draft.token_ids)
        token_ids = [*draft.prompt, *draft.token_ids]
        seed = request_seed(draft.sampling.seed, len(token_ids))
        sampling = dataclasses.replace(draft.sampling, max_tokens=room, seed=seed)
        body = self._dialect.body(
            endpoint.model or self._model, token_ids, sampling, sorted(draft.eos_token_ids), adapter
        )
        read = self._dialect.reader(token_ids)
        splitter, seconds = EventSplitter(), self._retry_policy.first_token_timeout_seconds
        try:
            async with (
                asyncio.timeout(seconds) as deadline,
                self._connections.session().clients[endpoint].stream("POST", self._dialect.path, json=body) as response,
                contextlib.aclosing(response.aiter_bytes()) as pieces,  # type: ignore[type-var]
            ):
                if response.status_code != 200:
                    await response.aread()
                    raise response_error(response)
                async for piece in pieces:
                    has_ended = add_events(splitter.feed(piece), read, draft)
                    if len(draft.token_ids) > num_kept:
                        num_kept, seconds = len(draft.token_ids), self._retry_policy.next_token_timeout_seconds
                        deadline.reschedule(asyncio.get_running_loop().time() + seconds)
                        self._endpoints.succeeded(endpoint)
                    if has_ended:
                        break
                else:
                    where = "inside a line" if splitter.is_in_line else "before the completion did"
                    raise RetryableError(f"the stream ended {where}")
        except TimeoutError:
            if not deadline.expired():
                raise
            raise RetryableError(f"no token for {seconds:g} s") from None
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise RetryableError(named(error), is_disconnected=True) from None
        if draft.finish is None and num_kept == num_before:
            raise RetryableError("the stream ended without a token")

    async def logprob(
        self, endpoint: Endpoint, prompt: Sequence[int], sampling: Sampling, adapter: str | None = None
    ) -> float:
        """Returns the server's log-probability of one sampled token."""
        draft = PartialCompletion(prompt, sampling, frozenset())
        await self.stream(endpoint, draft, room=1, adapter=adapter)
        return draft.logprobs[0]


def request_seed(seed: int, position: int) -> int:
    """Returns a 63-bit seed from an episode's seed and the position of a request's first token.

    Each request needs its own seed, because servers seed requests, not positions: two spans must not share random numbers.
    """
    return int.from_bytes(hashlib.blake2b(f"{seed} {position}".encode(), digest_size=8).digest()) >> 1
