"""Draws tokens from logits, a whole batch at once, each row from its own stream. Knows nothing of models or sequences.

One uniform number per token comes from a hash of (seed, position): what else is in the batch does not matter.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

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


def _keep_nucleus(logprobs: torch.Tensor, top_ps: torch.Tensor) -> torch.Tensor:
    """Renormalise `[n, V]` over the smallest set of most probable tokens whose probability reaches top_p (nucleus
    sampling, Holtzman et al. 2020); -inf elsewhere. Rows with top_p = 1 stay as they are."""
    ordered, order = logprobs.sort(dim=-1, descending=True, stable=True)
    probabilities = ordered.double().exp()
    ordered_outside = probabilities.cumsum(-1) - probabilities >= top_ps[:, None]
    outside = torch.zeros_like(ordered_outside).scatter_(-1, order, ordered_outside)
    outside[top_ps >= 1.0] = False
    outside.scatter_(-1, order[:, :1], False)
    kept = logprobs.masked_fill(outside, -torch.inf).log_softmax(-1)
    return torch.where((top_ps >= 1.0)[:, None], logprobs, kept)


def draw_tokens(
    logits: torch.Tensor, uniforms: np.ndarray, temperatures: Sequence[float], top_ps: Sequence[float]
) -> tuple[list[int], list[float]]:
    """Draw one token a row from `softmax(logits / temperature)`, by inverse CDF in float64.

    Args:
        logits: `[n, V]`, any float type; computed with in fp32.
        uniforms: `[n]` float64 in [0, 1).
        temperatures: `n` values; 0 takes the most probable token.
        top_ps: `n` values in (0, 1]; not looked at where the temperature is 0.

    Returns:
        The tokens, and the log-probability of each under the distribution it was drawn from (temperature and nucleus
        included; at temperature 0 that of the plain softmax).
    """
    greedy_rows = [row for row, temperature in enumerate(temperatures) if temperature == 0.0]
    logits = logits.float().cpu() if logits.device.type == "mps" else logits.float()  # no float64 on mps
    if any(temperature not in (0.0, 1.0) for temperature in temperatures):
        divisors = torch.tensor([temperature or 1.0 for temperature in temperatures], device=logits.device)
        logits = logits / divisors[:, None]
    logprobs = logits.log_softmax(-1)
    if any(top_p < 1.0 and temperature != 0.0 for top_p, temperature in zip(top_ps, temperatures, strict=True)):
        nucleus = [
            1.0 if temperature == 0.0 else top_p for top_p, temperature in zip(top_ps, temperatures, strict=True)
        ]
        logprobs = _keep_nucleus(logprobs, torch.tensor(nucleus, dtype=torch.float64, device=logits.device))
    if len(greedy_rows) == len(temperatures):
        tokens = logprobs.argmax(-1)
    else:
        cumulative = logprobs.exp().cumsum(-1, dtype=torch.float64)
        total = cumulative[:, -1]
        below_total = torch.nextafter(total, torch.zeros_like(total))
        targets = torch.minimum(torch.from_numpy(uniforms).to(total.device) * total, below_total)
        tokens = torch.searchsorted(cumulative, targets[:, None], right=True)[:, 0].clamp_(max=logits.shape[-1] - 1)
        if greedy_rows:
            tokens[greedy_rows] = logprobs[greedy_rows].argmax(-1)
    chosen = logprobs.gather(-1, tokens[:, None])[:, 0]
    return tokens.tolist(), chosen.tolist()
