"""What must be known of a model server before it is trusted: its models, its tokenizer, what its log-probabilities mean.

Asks through functions that it is given; knows nothing of connections or episodes.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from midthought.engines.engine import Sampling
from midthought.engines.servers.endpoints import Endpoint, Recording
from midthought.engines.servers.streams import Interrupted, refusal
from midthought.errors import SettingsError

if TYPE_CHECKING:
    import httpx

Ask = Callable[[str, str, Any], Awaitable["httpx.Response"]]
"""(method, path, JSON body or None) -> the answer."""

_NUM_PROBE_TOKENS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_IN_DOUBT, _CERTAIN = -0.1, -1e-3
"""Log-probabilities of a most probable token that others come near, and of one that none comes near."""


async def find_model(ask: Ask, url: str, model: str) -> tuple[str, int | None]:
    """The name that the server gives to the model named or loaded from `model`, and its longest sequence if it says so.

    Raises SettingsError, naming what is served, where it is another; Interrupted where no model server answers.
    """
    answer = await ask("GET", "/v1/models", None)
    if answer.status_code != 200:
        raise refusal(answer)
    try:
        cards = [(str(card["id"]), card.get("root"), card.get("max_model_len")) for card in answer.json()["data"]]
    except (ValueError, LookupError, TypeError, AttributeError):
        raise Interrupted("what answers there is no model server") from None
    for name, root, length in cards:
        is_same_path = isinstance(root, str) and os.path.realpath(root) == os.path.realpath(model)
        if name == model or is_same_path:
            return name, length if isinstance(length, int) else None
    served = ", ".join(repr(name) for name, _, _ in cards) or "nothing"
    raise SettingsError(f"{url} does not serve {model!r} but {served}; give the right one as served_model_name")


async def compare_tokenizers(ask: Ask, url: str, model: str, text: str, token_ids: Sequence[int]) -> None:
    """Raise SettingsError where the server makes other tokens of the text; warn where it does not say."""
    answer = await ask("POST", "/tokenize", {"model": model, "prompt": text, "add_special_tokens": False})
    try:
        theirs = list(answer.json()["tokens"]) if answer.status_code == 200 else None
    except (ValueError, LookupError, TypeError):
        theirs = None
    if theirs is None:
        warnings.warn(f"{url} does not tell how it tokenizes; make sure that it has our tokenizer", stacklevel=2)
    elif theirs != list(token_ids):
        pairs = enumerate(zip(theirs, token_ids, strict=False))
        place = next((number for number, pair in pairs if pair[0] != pair[1]), min(len(theirs), len(token_ids)))
        raise SettingsError(
            f"{url} has another tokenizer than ours: it makes {len(theirs)} tokens of a text of ours that has "
            f"{len(token_ids)}, first another one at {place}; start it on the folder that holds our tokenizer"
        )


async def try_recording(
    logprob: Callable[[Sequence[int], Sampling], Awaitable[float]], prompt: Sequence[int], *, penalises_prompt: bool
) -> Recording:
    """Find out what a server's log-probabilities take into account.

    The most probable token is drawn twice: at temperature 1, and from a nucleus of one at temperature 2. The second
    log-probability is 0 where the nucleus counts, and otherwise differs from the first where the temperature counts.
    A prompt that leaves no doubt about its next token shows nothing, so shorter beginnings of it are tried first.

    Args:
        logprob: what the server records for the next token.
        penalises_prompt: whether its repetition penalty is ours; where it is not, it never counts.
    """
    for num_tokens in _NUM_PROBE_TOKENS:
        beginning = prompt[:num_tokens]
        plain = await logprob(beginning, _greedy())
        if plain < _IN_DOUBT or num_tokens >= len(prompt):
            break
    other = await logprob(beginning, Sampling(max_tokens=1, temperature=2.0, top_p=1e-6))
    has_truncation = plain < _IN_DOUBT and other > _CERTAIN
    return Recording(
        temperature=has_truncation or abs(other - plain) > 0.02,
        truncation=has_truncation,
        penalty=penalises_prompt and await _records_penalty(logprob, prompt),
    )


async def _records_penalty(
    logprob: Callable[[Sequence[int], Sampling], Awaitable[float]], prompt: Sequence[int]
) -> bool:
    """A penalty far below 1 is a reward: a token of the prompt becomes certain, and is recorded so where it counts."""
    for num_tokens in sorted({min(number, len(prompt)) for number in _NUM_PROBE_TOKENS}, reverse=True):
        beginning = prompt[:num_tokens]
        if await logprob(beginning, _greedy()) < _IN_DOUBT and await logprob(beginning, _greedy(0.01)) > _CERTAIN:
            return True
    return False


def _greedy(repetition_penalty: float = 1.0) -> Sampling:
    return Sampling(max_tokens=1, temperature=0.0, repetition_penalty=repetition_penalty)


def why_not_exact(endpoint: Endpoint, sampling: Sampling) -> str:
    """Why the server's log-probabilities are not those of the distribution sampled from, and the remedy."""
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    plain = Sampling(max_tokens=1)
    said = [f"{name}={getattr(sampling, name):g}" for name in names if getattr(sampling, name) != getattr(plain, name)]
    return (
        f"{endpoint.url} does not return the log-probabilities of what it samples with {', '.join(said)}, but those of the "
        "model alone. Start vLLM with --logprobs-mode processed_logprobs (SGLang without SGLANG_RETURN_ORIGINAL_LOGPROB), "
        "let midthought start the server (inference.base_url=[]), or set inference.temperature=1.0 without filters"
    )
