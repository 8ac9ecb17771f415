"""Makes model servers ready for requests: checks each one once, and makes it load the published weights."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence

from midthought.engines.engine import Sampling
from midthought.engines.servers.checks import compare_tokenizers, find_model, probe_logprob_mode, why_not_exact
from midthought.engines.servers.connection import Connections, Session
from midthought.engines.servers.dialect import Dialect
from midthought.engines.servers.endpoints import Endpoint, LogprobMode
from midthought.engines.servers.requests import CompletionRequests
from midthought.engines.servers.streams import PartialCompletion
from midthought.engines.servers.weight_updates import WeightUpdates
from midthought.engines.weight_sync.publication import Publication
from midthought.errors import SettingsError


class Preparation:
    """What happens to a server before it samples.

    Args:
        model: its name on the servers, or the path that it was loaded from.
        probe: a text and its ids in our tokenizer, to compare with the servers' tokenizers.
        max_seq_len: maximum tokens of a sequence; the server's own limit if that is smaller.
        training_temperature: temperature of training rollouts; a server that does not return the log-probabilities of that
            distribution is refused with `SettingsError` at its first check.
    """

    def __init__(
        self,
        dialect: Dialect,
        requests: CompletionRequests,
        connections: Connections,
        updates: WeightUpdates,
        *,
        model: str,
        probe: tuple[str, Sequence[int]] | None,
        max_seq_len: int | None,
        training_temperature: float | None,
    ) -> None:
        self._dialect = dialect
        self._requests = requests
        self._connections = connections
        self._model = model
        self._probe = probe
        self._max_seq_len = max_seq_len
        self._training_temperature = training_temperature
        self._updates = updates
        self.publication: Publication | None = None
        """The weights that every server must load before it samples."""

    @property
    def adapter(self) -> str | None:
        """Name of the published adapter on the servers."""
        return None if self.publication is None else self.publication.adapter

    async def prepare(self, session: Session, endpoint: Endpoint) -> None:
        """Checks the server and makes it load the published weights, each once."""
        if endpoint.model is not None and endpoint.loaded is self.publication:
            return
        async with session.locks[endpoint]:
            if endpoint.model is None:
                await self.identify(session, endpoint)
            if self.publication is not None and endpoint.loaded is not self.publication:
                await self._updates.load(endpoint, self.publication)

    async def identify(self, session: Session, endpoint: Endpoint) -> None:
        """Checks the server's model, tokenizer and log-probabilities.

        Raises `SettingsError` if one of them differs from what is needed.
        """
        ask = functools.partial(self._connections.ask, endpoint)
        name, length = await find_model(ask, endpoint.url, self._model)
        if self._probe is not None:
            await compare_tokenizers(ask, endpoint.url, name, *self._probe)
        lengths = [length - self._dialect.num_reserved_tokens] if length is not None else []
        lengths += [self._max_seq_len] if self._max_seq_len is not None else []
        if not lengths:
            raise SettingsError(f"{endpoint.url} does not report its maximum sequence length; set max_seq_len")
        endpoint.model, endpoint.max_seq_len = name, min(lengths)
        if self._training_temperature is not None and self._probe is not None:
            sampling = Sampling(max_tokens=1, temperature=self._training_temperature)
            if not (await self._logprob_mode_of(endpoint, list(self._probe[1]), sampling)).covers(sampling):
                endpoint.model = None
                raise SettingsError(why_not_exact(endpoint, sampling))

    async def has_exact_logprobs(self, session: Session, endpoint: Endpoint, draft: PartialCompletion) -> bool:
        """Whether this server's log-probabilities refer to the draft's sampling distribution. Warns once if not."""
        if LogprobMode().covers(draft.sampling):
            return True
        async with session.locks[endpoint]:
            logprob_mode = await self._logprob_mode_of(endpoint, draft.prompt, draft.sampling)
            if not logprob_mode.covers(draft.sampling) and not endpoint.has_warned:
                endpoint.has_warned = True
                warnings.warn(
                    f"{why_not_exact(endpoint, draft.sampling)}. NaN is recorded instead, and training excludes such "
                    "tokens",
                    stacklevel=2,
                )
        return logprob_mode.covers(draft.sampling)

    async def sleep(self, session: Session, endpoint: Endpoint) -> None:
        """Makes the server release its memory until it loads weights again."""
        async with session.locks[endpoint]:
            await self._updates.sleep(endpoint, keeps_weights=self.adapter is not None)

    async def _logprob_mode_of(self, endpoint: Endpoint, prompt: Sequence[int], sampling: Sampling) -> LogprobMode:
        """Returns which sampling settings the log-probabilities include; probes the server once, if that matters."""
        if LogprobMode().covers(sampling):
            return LogprobMode()
        if endpoint.logprob_mode is None:
            logprob = functools.partial(self._requests.logprob, endpoint, adapter=self.adapter)
            endpoint.logprob_mode = await probe_logprob_mode(
                logprob, prompt, penalizes_prompt=self._dialect.penalizes_prompt
            )
        return endpoint.logprob_mode
