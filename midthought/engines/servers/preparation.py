"""Makes a model server ready for requests: checks its model, its tokenizer and what its log-probabilities include, each once,
and makes it load the published weights, with a proof."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Sequence

from midthought.engines.engine import Sampling
from midthought.engines.servers.server import Server
from midthought.engines.servers.streams import LogprobMode, PartialCompletion, RetryableError, response_error
from midthought.engines.weight_publication import Publication
from midthought.errors import EngineError, SettingsError
from midthought.tokenization import Renderer

_PROBE = "def tide(x):\n\treturn [x, 12345] # é ﷽ 🦉  Who's there?\r\n"
_NUM_PROBE_TOKENS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_UNCERTAIN, _CERTAIN = -0.1, -1e-3
"""Below the first, the most probable token has close competitors; above the second, it has none."""


def probe_text(renderer: Renderer) -> tuple[str, list[int]]:
    """Returns a text that tokenizers split differently, including control tokens, and its ids in ours."""
    text = _PROBE + renderer.decode(sorted(renderer.control_token_ids))
    return text, renderer.tokenizer(text, add_special_tokens=False).input_ids


async def prepare(server: Server, publication: Publication | None) -> None:
    """Checks the server and makes it load the published weights, each once."""
    if server.model is not None and server.loaded is publication:
        return
    async with server.lock:
        if server.model is None:
            await identify(server)
        if publication is not None and server.loaded is not publication:
            await _load(server, publication)


async def identify(server: Server) -> None:
    """Checks the server's model, tokenizer and log-probabilities.

    Raises `SettingsError` if one of them differs from what is needed.
    """
    needed = server.needed
    name, length = await _find_model(server, needed.model)
    if needed.probe is not None:
        await _compare_tokenizers(server, name, *needed.probe)
    lengths = [length - server.num_reserved_tokens] if length is not None else []
    lengths += [needed.max_seq_len] if needed.max_seq_len is not None else []
    if not lengths:
        raise SettingsError(f"{server.url} does not report its maximum sequence length; set max_seq_len")
    server.model, server.max_seq_len = name, min(lengths)
    if needed.training_temperature is not None and length is not None and length < (needed.max_seq_len or 0):
        warnings.warn(
            f"{server.url} has a context of {length} tokens, the run {needed.max_seq_len}: episodes that get longer end there; "
            "start it with a larger --max-model-len (SGLang: --context-length), or lower inference.max_tokens",
            stacklevel=2,
        )
    if needed.training_temperature is not None and needed.probe is not None:
        sampling = Sampling(max_tokens=1, temperature=needed.training_temperature)
        if not await _is_exact(server, sampling, needed.probe[1], None):
            server.model = server.logprob_mode = None
            raise SettingsError(_why_not_exact(server.url, sampling))


async def _find_model(server: Server, model: str) -> tuple[str, int | None]:
    """Returns the server's name of the model that is named `model` or loaded from that path, and its maximum sequence length.

    Raises `SettingsError` with the served models if it is not among them, `RetryableError` if no model server answers.
    """
    answer = await server.ask("GET", "/v1/models")
    if answer.status_code != 200:
        raise response_error(answer)
    try:
        cards = [(str(card["id"]), card.get("root"), card.get("max_model_len")) for card in answer.json()["data"]]
    except (ValueError, LookupError, TypeError, AttributeError):
        raise RetryableError("the response is not from a model server") from None
    for name, root, length in cards:
        is_same_path = isinstance(root, str) and os.path.realpath(root) == os.path.realpath(model)
        if name == model or is_same_path:
            return name, length if isinstance(length, int) else None
    served = ", ".join(repr(name) for name, _, _ in cards) or "nothing"
    raise SettingsError(f"{server.url} does not serve {model!r} but {served}; give the right one as served_model_name")


async def _compare_tokenizers(server: Server, model: str, text: str, token_ids: Sequence[int]) -> None:
    """Raises `SettingsError` if the server tokenizes the text differently. Warns if it has no `/tokenize` route."""
    answer = await server.ask("POST", "/tokenize", {"model": model, "prompt": text, "add_special_tokens": False})
    try:
        theirs = list(answer.json()["tokens"]) if answer.status_code == 200 else None
    except (ValueError, LookupError, TypeError):
        theirs = None
    if theirs is None:
        warnings.warn(
            f"{server.url} does not report its tokenization; make sure that it uses our tokenizer", stacklevel=2
        )
    elif theirs != list(token_ids):
        pairs = enumerate(zip(theirs, token_ids, strict=False))
        place = next((number for number, pair in pairs if pair[0] != pair[1]), min(len(theirs), len(token_ids)))
        raise SettingsError(
            f"{server.url} has another tokenizer than ours: it makes {len(theirs)} tokens of a text that has {len(token_ids)} in "
            f"ours; the first difference is at token {place}; start it on the folder that holds our tokenizer"
        )


async def has_exact_logprobs(server: Server, draft: PartialCompletion, adapter: str | None) -> bool:
    """Whether this server's log-probabilities refer to the draft's sampling distribution. Warns once if not."""
    if LogprobMode().covers(draft.sampling):
        return True
    async with server.lock:
        is_exact = await _is_exact(server, draft.sampling, draft.prompt, adapter)
        if not is_exact and not server.has_warned:
            server.has_warned = True
            warnings.warn(
                f"{_why_not_exact(server.url, draft.sampling)}. NaN is recorded instead, and training excludes such tokens",
                stacklevel=2,
            )
    return is_exact


async def _is_exact(server: Server, sampling: Sampling, prompt: Sequence[int], adapter: str | None) -> bool:
    """Whether the log-probabilities refer to the sampling distribution. Probes the server once, if that matters."""
    if LogprobMode().covers(sampling):
        return True
    if server.logprob_mode is None:
        server.logprob_mode = await _probe_logprob_mode(server, prompt, adapter)
    return server.logprob_mode.covers(sampling)


async def _probe_logprob_mode(server: Server, prompt: Sequence[int], adapter: str | None) -> LogprobMode:
    """Determines which sampling settings a server's log-probabilities include.

    Samples the most probable token twice: at temperature 1, and from a nucleus of one token at temperature 2. If truncation is
    included, the second log-probability is 0. Otherwise, if the temperature is included, the two differ. A prompt whose
    next token is nearly certain shows no difference, so shorter prefixes are tried first.
    """
    for num_tokens in _NUM_PROBE_TOKENS:
        beginning = prompt[:num_tokens]
        _, plain = await server.next_token(beginning, Sampling(max_tokens=1, temperature=0.0), adapter)
        if plain < _UNCERTAIN or num_tokens >= len(prompt):
            break
    _, other = await server.next_token(beginning, Sampling(max_tokens=1, temperature=2.0, top_p=1e-6), adapter)
    has_truncation = plain < _UNCERTAIN and other > _CERTAIN
    return LogprobMode(temperature=has_truncation or abs(other - plain) > 0.02, truncation=has_truncation)


def _why_not_exact(url: str, sampling: Sampling) -> str:
    """Returns the reason why the server's log-probabilities do not refer to the sampling distribution, and the remedy."""
    names, plain = ("temperature", "top_p", "top_k", "min_p"), Sampling(max_tokens=1)
    said = [f"{name}={getattr(sampling, name):g}" for name in names if getattr(sampling, name) != getattr(plain, name)]
    return (
        f"{url} does not return the log-probabilities of what it samples with {', '.join(said)}; it returns the "
        "model's, before temperature and filters. Start vLLM with --logprobs-mode processed_logprobs (SGLang without "
        "SGLANG_RETURN_ORIGINAL_LOGPROB), let midthought start the server (inference.base_url=[]), or set "
        "inference.temperature=1.0 without filters"
    )


async def _load(server: Server, new: Publication) -> None:
    """Makes the server load the weights, and checks that it uses them.

    Raises `EngineError` if it does not load them or computes something else.
    """
    old, server.loaded = server.loaded, None
    try:
        if new.adapter is not None:
            await server.load_adapter(new.adapter, str(new.path))
        else:
            await server.load_weights(str(new.path))
    except EngineError as error:
        raise EngineError(f"{server.url} does not take new weights: {error}") from None
    sampled = [
        await server.next_token(prefix, Sampling(max_tokens=1, seed=number), new.adapter)
        for number, prefix in enumerate(new.prefixes_within(server.max_seq_len))
    ]
    new.check(server.url, sampled)
    server.loaded = new
    if old is not None and old.adapter is not None:
        with contextlib.suppress(EngineError):  # it may have unloaded it itself
            await server.unload_adapter(old.adapter)
