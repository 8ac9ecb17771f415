"""Draws tokens from logits, a whole batch at once, each row from its own stream. Knows nothing of models or sequences.

One uniform number per token comes from a hash of (seed, position): what else is in the batch does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from midthought.inference.engine import Sampling

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(state: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64 (Steele, Lea, Flood 2014): a bijection of 64-bit integers that scatters every bit."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def counter_uniforms(seeds: Sequence[int], positions: Sequence[int]) -> np.ndarray:
    """`[n]` float64 in [0, 1): number `positions[i]` of the stream `seeds[i]`, 53 random bits each."""
    seed_words = np.array([seed & 0xFFFFFFFFFFFFFFFF for seed in seeds], dtype=np.uint64)
    position_words = np.array(positions, dtype=np.uint64)
    with np.errstate(over="ignore"):
        words = _mix(_mix(seed_words + _GOLDEN) + (position_words + np.uint64(1)) * _GOLDEN)
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def draw_tokens(
    logits: torch.Tensor,
    uniforms: np.ndarray,
    samplings: Sequence[Sampling],
    histories: Sequence[Sequence[int]] | None = None,
) -> tuple[list[int], list[float]]:
    """Draw one token a row from `softmax(logits / temperature)`, by inverse CDF in float64.

    The repetition penalty comes first, then the temperature, then `min_p`, `top_k` and `top_p` in this order (vLLM's), each
    on what the one before has left.

    Args:
        logits: `[n, V]`, any float type; computed with in fp32.
        uniforms: `[n]` float64 in [0, 1).
        samplings: `n` ways of drawing; at temperature 0 the most probable token is taken.
        histories: the tokens of each sequence so far, for the repetition penalty.

    Returns:
        The tokens, and the log-probability of each under the distribution it was drawn from (at temperature 0: that at
        temperature 1, penalty included).
    """
    logits = logits.float().cpu() if logits.device.type == "mps" else logits.float()  # no float64 on mps
    logits = _penalise(logits, samplings, histories)
    if any(sampling.temperature not in (0.0, 1.0) for sampling in samplings):
        divisors = torch.tensor([sampling.temperature or 1.0 for sampling in samplings], device=logits.device)
        logits = logits / divisors[:, None]
    for leave_out, asks in _FILTERS:
        rows = [row for row, sampling in enumerate(samplings) if sampling.temperature and asks(sampling)]
        if rows:
            logits = logits.clone()
            logits[rows] = leave_out(logits[rows], [samplings[row] for row in rows])
    peaks = logits.amax(-1, keepdim=True)
    cumulative = (logits - peaks).exp_().cumsum(-1, dtype=torch.float64)
    total = cumulative[:, -1]
    below_total = torch.nextafter(total, torch.zeros_like(total))
    targets = torch.minimum(torch.from_numpy(uniforms).to(total.device) * total, below_total)
    tokens = torch.searchsorted(cumulative, targets[:, None], right=True).clamp_(max=logits.shape[-1] - 1)
    greedy = [row for row, sampling in enumerate(samplings) if sampling.temperature == 0.0]
    if greedy:
        tokens[greedy] = logits[greedy].argmax(-1, keepdim=True)
    logprobs = (logits.gather(-1, tokens) - peaks)[:, 0].double() - total.log()
    return tokens[:, 0].tolist(), logprobs.tolist()


def _penalise(
    logits: torch.Tensor, samplings: Sequence[Sampling], histories: Sequence[Sequence[int]] | None
) -> torch.Tensor:
    rows = [row for row, sampling in enumerate(samplings) if sampling.repetition_penalty != 1.0]
    if not rows or histories is None:
        return logits
    logits = logits.clone()
    for row in rows:
        penalty = samplings[row].repetition_penalty
        seen = torch.tensor(sorted(set(histories[row])), device=logits.device)
        values = logits[row, seen]
        logits[row, seen] = torch.where(values > 0, values / penalty, values * penalty)
    return logits


def _leave_out_improbable(logits: torch.Tensor, samplings: Sequence[Sampling]) -> torch.Tensor:
    """min-p (arXiv 2407.01082): tokens stay that are at least `min_p` times as probable as the most probable one."""
    shares = torch.tensor([sampling.min_p for sampling in samplings], device=logits.device).log()
    return logits.masked_fill(logits < logits.amax(-1, keepdim=True) + shares[:, None], -torch.inf)


def _leave_out_low_ranks(logits: torch.Tensor, samplings: Sequence[Sampling]) -> torch.Tensor:
    """The `top_k` most probable tokens stay, and those that are exactly as probable as the last of them."""
    ranks = torch.tensor([min(sampling.top_k, logits.shape[-1]) - 1 for sampling in samplings], device=logits.device)
    lowest = logits.sort(dim=-1, descending=True).values.gather(-1, ranks[:, None])
    return logits.masked_fill(logits < lowest, -torch.inf)


def _leave_out_tail(logits: torch.Tensor, samplings: Sequence[Sampling]) -> torch.Tensor:
    """Nucleus sampling (arXiv 1904.09751): the smallest set of most probable tokens stays whose probability reaches `top_p`."""
    shares = torch.tensor([sampling.top_p for sampling in samplings], dtype=torch.float64, device=logits.device)
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    probabilities = ordered.softmax(-1, dtype=torch.float64)
    tail = probabilities.cumsum(-1) - probabilities >= shares[:, None]
    tail[:, 0] = False
    return logits.masked_fill(torch.zeros_like(tail).scatter_(-1, order, tail), -torch.inf)


_FILTERS: tuple[tuple[Callable[[torch.Tensor, Sequence[Sampling]], torch.Tensor], Callable[[Sampling], bool]], ...] = (
    (_leave_out_improbable, lambda sampling: sampling.min_p > 0.0),
    (_leave_out_low_ranks, lambda sampling: sampling.top_k > 0),
    (_leave_out_tail, lambda sampling: sampling.top_p < 1.0),
)
