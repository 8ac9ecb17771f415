"""Makes a model server ready for requests: checks it once, and makes it load the published weights, with a proof."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Sequence

from midthought.engines.engine import Sampling
from midthought.engines.servers.checks import (
    LogprobMode,
    compare_tokenizers,
    find_model,
    probe_logprob_mode,
    why_not_exact,
)
from midthought.engines.servers.server import Server
from midthought.engines.servers.streams import PartialCompletion
from midthought.engines.weight_sync.weight_check import Publication
from midthought.errors import EngineError, SettingsError


async def prepare(server: Server, publication: Publication | None) -> None:
    """Checks the server and makes it load the published weights, each once."""
    if server.model is not None and server.loaded is publication:
        return
    async with server.session().lock:
        if server.model is None:
            await identify(server)
        if publication is not None and server.loaded is not publication:
            await _load(server, publication)


async def identify(server: Server) -> None:
    """Checks the server's model, tokenizer and log-probabilities.

    Raises `SettingsError` if one of them differs from what is needed.
    """
    needed = server.needed
    name, length = await find_model(server, needed.model)
    if needed.probe is not None:
        await compare_tokenizers(server, name, *needed.probe)
    lengths = [length - server.num_reserved_tokens] if length is not None else []
    lengths += [needed.max_seq_len] if needed.max_seq_len is not None else []
    if not lengths:
        raise SettingsError(f"{server.url} does not report its maximum sequence length; set max_seq_len")
    server.model, server.max_seq_len = name, min(lengths)
    if needed.training_temperature is not None and needed.probe is not None:
        sampling = Sampling(max_tokens=1, temperature=needed.training_temperature)
        if not await _is_exact(server, list(needed.probe[1]), sampling, None):
            server.model = None
            raise SettingsError(why_not_exact(server.url, sampling))


async def has_exact_logprobs(server: Server, draft: PartialCompletion, adapter: str | None) -> bool:
    """Whether this server's log-probabilities refer to the draft's sampling distribution. Warns once if not."""
    if LogprobMode().covers(draft.sampling):
        return True
    async with server.session().lock:
        is_exact = await _is_exact(server, draft.prompt, draft.sampling, adapter)
        if not is_exact and not server.has_warned:
            server.has_warned = True
            warnings.warn(
                f"{why_not_exact(server.url, draft.sampling)}. NaN is recorded instead, and training excludes such tokens",
                stacklevel=2,
            )
    return is_exact


async def _is_exact(server: Server, prompt: Sequence[int], sampling: Sampling, adapter: str | None) -> bool:
    """Whether the log-probabilities refer to the sampling distribution; probes the server once, if that matters."""

    async def logprob(token_ids: Sequence[int], probed: Sampling) -> float:
        return (await server.next_token(token_ids, probed, adapter))[1]

    if LogprobMode().covers(sampling):
        return True
    if server.logprob_mode is None:
        server.logprob_mode = await probe_logprob_mode(logprob, prompt, penalizes_prompt=server.penalizes_prompt)
    return server.logprob_mode.covers(sampling)


async def _load(server: Server, new: Publication) -> None:
    """Makes the server load the weights, and checks that it uses them. Wakes it up first.

    Raises `EngineError` if it does not load them or computes something else.
    """
    old, server.loaded = server.loaded, None
    try:
        if new.adapter is not None:
            for part in list(server.released):
                await server.wake(part)
            await server.load_adapter(new.adapter, str(new.path))
        else:
            async with server.updating():
                if new.weights is not None:
                    await server.weight_sender().send(server, new.weights, is_new=old is None)
                else:
                    await server.load_weights(str(new.path))
    except EngineError as error:
        raise EngineError(f"{server.url} does not take new weights: {error}") from None
    proof = new.proof
    sampled = [
        await server.next_token(proof.token_ids[:length], Sampling(max_tokens=1, seed=number), new.adapter)
        for number, length in enumerate(proof.lengths)
        if length < server.max_seq_len
    ]
    proof.check(server.url, sampled, new.likely_cause)
    server.loaded = new
    if old is not None and old.adapter is not None:
        with contextlib.suppress(EngineError):  # it may have unloaded it itself
            await server.unload_adapter(old.adapter)
