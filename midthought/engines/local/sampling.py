"""Samples one token per row of a batch of logits. Each row has its own random stream. Does not depend on models or
sequences.

Each token uses one uniform number, a hash of (seed, position), so it does not depend on the rest of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from midthought.engines.engine import Sampling
from midthought.random_streams import RandomStreams

BLOCK = 128
"""Block size of the search for the sampled token in a large vocabulary."""
MAX_SUMMED = 4096
"""Vocabularies up to this size are summed token by token."""

_Filter = Callable[[torch.Tensor, Sequence[Sampling]], torch.Tensor]


class DrawnTokens:
    """One sampled token per row, on the model's device; on a GPU its copy to the host may still be on its way.

    >>> DrawnTokens(torch.tensor([[5], [7]]), torch.tensor([[-0.25], [-1.0]])).read()
    ([5, 7], [-0.25, -1.0])
    """

    def __init__(self, token_ids: torch.Tensor, logprobs: torch.Tensor) -> None:
        """Both `[n, 1]`. Starts the copy, one for both, and does not wait for it."""
        self.token_ids = token_ids[:, 0]
        """`[n]` int64."""
        both = torch.cat([token_ids.double(), logprobs.double()], dim=1).t()  # token ids are exact
        self._on_host = both.to("cpu", non_blocking=True)
        self._copied: torch.cuda.Event | None = None
        if both.is_cuda:
            self._copied = torch.cuda.Event()
            self._copied.record(torch.cuda.current_stream(both.device))

    def read(self) -> tuple[list[int], list[float]]:
        """Returns the token ids and their log-probabilities, after they have arrived."""
        if self._copied is not None:
            self._copied.synchronize()
        token_ids, logprobs = self._on_host.tolist()
        return [int(token_id) for token_id in token_ids], logprobs


class SamplingBatch:
    """Sampling options of each row of a batch. Valid as long as the batch has the same rows."""

    def __init__(self, samplings: Sequence[Sampling]) -> None:
        self.streams = RandomStreams([sampling.seed for sampling in samplings])
        self._sums: torch.Tensor | None = None
        self.penalties = {
            row: sampling.repetition_penalty
            for row, sampling in enumerate(samplings)
            if sampling.repetition_penalty != 1.0
        }
        self.temperatures: list[float] | None = None
        if any(sampling.temperature not in (0.0, 1.0) for sampling in samplings):
            self.temperatures = [sampling.temperature or 1.0 for sampling in samplings]
        self.greedy = [row for row, sampling in enumerate(samplings) if sampling.temperature == 0.0]
        self.filters: list[tuple[_Filter, list[int], list[Sampling]]] = []
        for leave_out, asks in _FILTERS:
            rows = [row for row, sampling in enumerate(samplings) if sampling.temperature and asks(sampling)]
            if rows:
                self.filters.append((leave_out, rows, [samplings[row] for row in rows]))

    def running_sums(self, probabilities: torch.Tensor) -> torch.Tensor:
        """Returns cumulative sums `[n, V]` in float64, in a buffer that is allocated once: reallocating costs as much as
        summing."""
        if self._sums is None or self._sums.shape != probabilities.shape or self._sums.device != probabilities.device:
            self._sums = torch.empty_like(probabilities, dtype=torch.float64)
        return self._sums.copy_(probabilities).cumsum_(-1)


@torch.inference_mode()
def draw_tokens(
    logits: torch.Tensor,
    uniforms: np.ndarray,
    ways: SamplingBatch,
    histories: Sequence[Sequence[int]] = (),
) -> DrawnTokens:
    """Samples one token per row from `softmax(logits / temperature)` by inverse CDF.

    The repetition penalty is applied first, then the temperature, then `min_p`, `top_k` and `top_p` in this order (vLLM's),
    each to the tokens that the previous one kept. At temperature 0 the most probable token is taken.

    Args:
        logits: `[n, V]`, any float type; converted to fp32.
        uniforms: `[n]` float64 in [0, 1).
        ways: sampling options of the `n` rows.
        histories: token ids of each sequence so far, for the repetition penalty.

    Returns:
        The token ids, and the log-probability of each under its sampling distribution (for temperature 0: at temperature 1,
        penalty included).
    """
    logits = logits.float().cpu() if logits.device.type == "mps" else logits.float()  # no float64 on mps
    if ways.penalties:
        logits = _penalise(logits, ways.penalties, histories)
    if ways.temperatures is not None:
        logits = logits / torch.tensor(ways.temperatures, device=logits.device)[:, None]
    for leave_out, rows, samplings in ways.filters:
        logits = logits.clone()
        logits[rows] = leave_out(logits[rows], samplings)
    probabilities = logits.softmax(-1)
    tokens = _inverse_cdf(probabilities, torch.from_numpy(uniforms).to(logits.device)[:, None], ways)
    if ways.greedy:
        tokens[ways.greedy] = logits[ways.greedy].argmax(-1, keepdim=True)
    return DrawnTokens(tokens, probabilities.gather(-1, tokens).double().log())


def _inverse_cdf(probabilities: torch.Tensor, uniforms: torch.Tensor, ways: SamplingBatch) -> torch.Tensor:
    """Returns `[n, 1]`: the token at which the cumulative sum of `[n, V]` exceeds the fraction `[n, 1]` of the total.

    Never returns a token of probability 0. In a long row it finds the block first, then the token in it, so that few tokens
    are summed one by one in float64.
    """
    num_tokens = probabilities.shape[1]
    if num_tokens <= MAX_SUMMED:
        sums = ways.running_sums(probabilities)
        # In float64, a number below 1 times the total never rounds to the total, so some sum is above the target.
        return torch.searchsorted(sums, uniforms * sums[:, -1:], right=True).clamp_(max=num_tokens - 1)
    num_whole = num_tokens // BLOCK * BLOCK
    blocks = probabilities[:, :num_whole].unflatten(1, (-1, BLOCK)).sum(-1)
    blocks = torch.cat([blocks, probabilities[:, num_whole:].sum(-1, keepdim=True)], dim=1)
    sums = blocks.cumsum(-1, dtype=torch.float64)
    block, target = _passed(sums, uniforms * sums[:, -1:])
    missing = (target - (sums - blocks).gather(-1, block)).clamp_(min=0.0)
    columns = block * BLOCK + torch.arange(BLOCK, device=block.device)
    inside = probabilities.gather(-1, columns.clamp(max=num_tokens - 1)).masked_fill_(columns >= num_tokens, 0.0)
    return block * BLOCK + _passed(inside.cumsum(-1, dtype=torch.float64), missing)[0]


def _passed(sums: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the column at which cumulative sums `[n, C]` exceed the target `[n, 1]`, and the target, limited to below the
    total."""
    total = sums[:, -1:]
    target = torch.minimum(target, total.nextafter(total.new_zeros(())))
    return torch.searchsorted(sums, target, right=True).clamp_(max=sums.shape[1] - 1), target


def _penalise(logits: torch.Tensor, penalties: Mapping[int, float], histories: Sequence[Sequence[int]]) -> torch.Tensor:
    logits = logits.clone()
    for row, penalty in penalties.items():
        seen = torch.tensor(sorted(set(histories[row])), device=logits.device)
        values = logits[row, seen]
        logits[row, seen] = torch.where(values > 0, values / penalty, values * penalty)
    return logits


def _leave_out_improbable(logits: torch.Tensor, samplings: Sequence[Sampling]) -> torch.Tensor:
    """min-p (arXiv 2407.01082): keeps tokens that are at least `min_p` times as probable as the most probable one."""
    shares = torch.tensor([sampling.min_p for sampling in samplings], device=logits.device).log()
    return logits.masked_fill(logits < logits.amax(-1, keepdim=True) + shares[:, None], -torch.inf)


def _leave_out_low_ranks(logits: torch.Tensor, samplings: Sequence[Sampling]) -> torch.Tensor:
    """Keeps the `top_k` most probable tokens, and those that are exactly as probable as the last of them."""
    ranks = torch.tensor([min(sampling.top_k, logits.shape[-1]) - 1 for sampling in samplings], device=logits.device)
    lowest = logits.sort(dim=-1, descending=True).values.gather(-1, ranks[:, None])
    return logits.masked_fill(logits < lowest, -torch.inf)


def _leave_out_tail(logits: torch.Tensor, samplings: Sequence[Sampling]) -> torch.Tensor:
    """Nucleus sampling (arXiv 1904.09751): keeps the smallest set of most probable tokens whose probability reaches `top_p`."""
    shares = torch.tensor([sampling.top_p for sampling in samplings], dtype=torch.float64, device=logits.device)
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    probabilities = ordered.softmax(-1, dtype=torch.float64)
    tail = probabilities.cumsum(-1) - probabilities >= shares[:, None]
    tail[:, 0] = False
    return logits.masked_fill(torch.zeros_like(tail).scatter_(-1, order, tail), -torch.inf)


_FILTERS: tuple[tuple[_Filter, Callable[[Sampling], bool]], ...] = (
    (_leave_out_improbable, lambda sampling: sampling.min_p > 0.0),
    (_leave_out_low_ranks, lambda sampling: sampling.top_k > 0),
    (_leave_out_tail, lambda sampling: sampling.top_p < 1.0),
)
