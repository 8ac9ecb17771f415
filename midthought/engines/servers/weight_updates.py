"""Makes one model server load published weights, and proves that it computes with them; makes it sleep in between."""

from __future__ import annotations

import contextlib
import functools

from midthought.engines.engine import Sampling
from midthought.engines.servers.connection import Connections
from midthought.engines.servers.dialect import Dialect, Routes, WeightSender
from midthought.engines.servers.endpoints import Endpoint
from midthought.engines.servers.requests import CompletionRequests
from midthought.engines.servers.streams import PartialCompletion
from midthought.engines.weight_sync.publication import Publication
from midthought.errors import EngineError


class WeightUpdates:
    """Updates of the servers of one engine. The caller makes sure that nothing is sampled meanwhile.

    Args:
        transport: name of the dialect's senders for models that are sent tensor by tensor.
    """

    def __init__(
        self, dialect: Dialect, requests: CompletionRequests, connections: Connections, *, transport: str
    ) -> None:
        self._dialect = dialect
        self._requests = requests
        self._connections = connections
        self._transport = transport
        self._senders: dict[Endpoint, WeightSender] = {}

    async def refusal(self, endpoint: Endpoint) -> str | None:
        """Returns the reason why the server cannot receive tensors by the transport, None if it can."""
        return await self._sender_of(endpoint).refusal(self._routes(endpoint))

    async def load(self, endpoint: Endpoint, new: Publication) -> None:
        """Makes the server load the weights, and checks that it uses them. Wakes it up first.

        Raises `EngineError` if it does not load them or computes something else.
        """
        old, endpoint.loaded = endpoint.loaded, None
        try:
            if new.adapter is None:
                await self._load_model(endpoint, new, is_new=old is None)
            else:
                await self._load_adapter(endpoint, new.adapter, str(new.path))
        except EngineError as error:
            raise EngineError(f"{endpoint.url} does not take new weights: {error}") from None
        sampled = []
        for number, length in enumerate(new.proof.lengths):
            if length < endpoint.max_seq_len:
                draft = PartialCompletion(
                    new.proof.token_ids[:length], Sampling(max_tokens=1, seed=number), frozenset()
                )
                await self._requests.stream(endpoint, draft, room=1, adapter=new.adapter)
                sampled.append((draft.token_ids[0], draft.logprobs[0]))
        new.proof.check(endpoint.url, sampled, new.likely_cause)
        endpoint.loaded = new
        if old is not None and old.adapter is not None:
            with contextlib.suppress(EngineError):  # it may have unloaded it itself
                await self._dialect.unload_adapter(self._routes(endpoint).post, old.adapter)

    async def sleep(self, endpoint: Endpoint, *, keeps_weights: bool) -> None:
        """Makes the server release its memory until `load`. Weights are kept if only an adapter is loaded then."""
        if not endpoint.released:
            parts = await self._dialect.sleep(self._routes(endpoint).post, keeps_weights=keeps_weights)
            endpoint.released.extend(parts)

    async def _load_model(self, endpoint: Endpoint, new: Publication, *, is_new: bool) -> None:
        routes, wake = self._routes(endpoint), functools.partial(self._wake, endpoint)
        async with self._dialect.updating(routes.post, wake, is_asleep=bool(endpoint.released)):
            if new.weights is not None:
                await self._sender_of(endpoint).send(routes, new.weights, is_new=is_new)
            else:
                await self._dialect.load_weights(routes.post, str(new.path))

    async def _load_adapter(self, endpoint: Endpoint, name: str, path: str) -> None:
        for part in list(endpoint.released):
            await self._wake(endpoint, part)
        await self._dialect.load_adapter(self._routes(endpoint).post, name, path)

    async def _wake(self, endpoint: Endpoint, part: str) -> None:
        if part in endpoint.released:
            await self._dialect.wake(self._routes(endpoint).post, part)
            endpoint.released.remove(part)

    def _sender_of(self, endpoint: Endpoint) -> WeightSender:
        if endpoint not in self._senders:
            self._senders[endpoint] = self._dialect.senders[self._transport]()
        return self._senders[endpoint]

    def _routes(self, endpoint: Endpoint) -> Routes:
        get, post = self._connections.get, self._connections.post
        return Routes(functools.partial(get, endpoint), functools.partial(post, endpoint))
