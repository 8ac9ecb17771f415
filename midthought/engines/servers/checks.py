"""Checks a model server before it is used: its model, its tokenizer, and what its log-probabilities include."""

from __future__ import annotations

import os
import warnings
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from midthought.engines.engine import Sampling
from midthought.engines.servers.connection import Connection
from midthought.engines.servers.streams import RetryableError, response_error
from midthought.errors import SettingsError

_NUM_PROBE_TOKENS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_UNCERTAIN, _CERTAIN = -0.1, -1e-3
"""Below the first, the most probable token has close competitors; above the second, it has none."""


@dataclass(frozen=True, slots=True)
class LogprobMode:
    """Which sampling settings a server's log-probabilities include."""

    temperature: bool = False
    truncation: bool = False
    """Normalized over the tokens that `top_p`, `top_k` and `min_p` keep."""
    penalty: bool = False
    """`repetition_penalty`."""

    def covers(self, sampling: Sampling) -> bool:
        """Whether the log-probabilities refer to the sampling distribution; for greedy sampling, at temperature 1."""
        if sampling.repetition_penalty != 1 and not self.penalty:
            return False
        if sampling.temperature == 0:
            return True
        is_whole = sampling.top_p == 1 and sampling.top_k == 0 and sampling.min_p == 0
        return (self.temperature or sampling.temperature == 1) and (self.truncation or is_whole)


async def find_model(server: Connection, model: str) -> tuple[str, int | None]:
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


async def compare_tokenizers(server: Connection, model: str, text: str, token_ids: Sequence[int]) -> None:
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
            "ours; "
            f"the first difference is at token {place}; start it on the folder that holds our tokenizer"
        )


async def probe_logprob_mode(
    logprob: Callable[[Sequence[int], Sampling], Awaitable[float]], prompt: Sequence[int], *, penalizes_prompt: bool
) -> LogprobMode:
    """Determines which sampling settings a server's log-probabilities include.

    Samples the most probable token twice: at temperature 1, and from a nucleus of one token at temperature 2. If truncation is
    included, the second log-probability is 0. Otherwise, if the temperature is included, the two differ. A prompt whose
    next token is nearly certain shows no difference, so shorter prefixes are tried first.

    Args:
        logprob: returns the server's log-probability of the next token.
        penalizes_prompt: whether its repetition penalty is the same as ours; if not, it never counts as included.
    """
    for num_tokens in _NUM_PROBE_TOKENS:
        beginning = prompt[:num_tokens]
        plain = await logprob(beginning, _greedy())
        if plain < _UNCERTAIN or num_tokens >= len(prompt):
            break
    other = await logprob(beginning, Sampling(max_tokens=1, temperature=2.0, top_p=1e-6))
    has_truncation = plain < _UNCERTAIN and other > _CERTAIN
    return LogprobMode(
        temperature=has_truncation or abs(other - plain) > 0.02,
        truncation=has_truncation,
        penalty=penalizes_prompt and await _includes_penalty(logprob, prompt),
    )


async def _includes_penalty(
    logprob: Callable[[Sequence[int], Sampling], Awaitable[float]], prompt: Sequence[int]
) -> bool:
    """With a penalty far below 1, a token of the prompt becomes nearly certain; its log-probability shows it if included."""
    for num_tokens in sorted({min(number, len(prompt)) for number in _NUM_PROBE_TOKENS}, reverse=True):
        beginning = prompt[:num_tokens]
        if await logprob(beginning, _greedy()) < _UNCERTAIN and await logprob(beginning, _greedy(0.01)) > _CERTAIN:
            return True
    return False


def _greedy(repetition_penalty: float = 1.0) -> Sampling:
    return Sampling(max_tokens=1, temperature=0.0, repetition_penalty=repetition_penalty)


def why_not_exact(url: str, sampling: Sampling) -> str:
    """Returns the reason why the server's log-probabilities do not refer to the sampling distribution, and the remedy."""
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    plain = Sampling(max_tokens=1)
    said = [f"{name}={getattr(sampling, name):g}" for name in names if getattr(sampling, name) != getattr(plain, name)]
    return (
        f"{url} does not return the log-probabilities of what it samples with {', '.join(said)}; it returns the "
        "model's, before temperature and filters. Start vLLM with --logprobs-mode processed_logprobs (SGLang without "
        "SGLANG_RETURN_ORIGINAL_LOGPROB), let midthought start the server (inference.base_url=[]), or set "
        "inference.temperature=1.0 without filters"
    )
