"""Samples one token per row of a batch of logits. Each row has its own random stream. Does not depend on models or
sequences.

Each token uses one uniform number, a hash of (seed, position), so it does not depend on the rest of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from midthought.engines.engine import Sampling
from midthought.engines.local.device import kernels_of, to_device

BLOCK = 128
"""Block size of the search for the sampled token in a large vocabulary."""
MAX_SUMMED = 4096
"""Vocabularies up to this size are summed token by token."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
CPU = torch.device("cpu")
Rows = slice | Tensor
"""An index of rows; `slice(None)` for all."""
_Filter = Callable[[Tensor, Tensor], Tensor]


def _mix(state: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64 (Steele, Lea, Flood 2014): a bijection of 64-bit integers that scatters every bit."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


class RandomStreams:
    """Uniform random numbers, one stream per seed."""

    def __init__(self, seeds: Sequence[int]) -> None:
        words = np.array([seed & 0xFFFFFFFFFFFFFFFF for seed in seeds], dtype=np.uint64)
        self._mixed = _mix(words + _GOLDEN)

    def at(self, positions: Sequence[int] | np.ndarray) -> np.ndarray:
        """Returns float64 in [0, 1), 53 random bits each. `positions`: `[n]` or `[m, n]`; column `i` is stream `i`."""
        words = _mix(self._mixed + (np.array(positions, dtype=np.uint64) + np.uint64(1)) * _GOLDEN)
        return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


class DrawnTokens:
    """One sampled token per row, on the model's device; on a GPU its copy to the host may still be on its way.

    >>> DrawnTokens(torch.tensor([[5], [7]]), torch.tensor([[-0.25], [-1.0]])).read()
    ([5, 7], [-0.25, -1.0])
    """

    def __init__(self, token_ids: Tensor, logprobs: Tensor) -> None:
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

    def __init__(self, samplings: Sequence[Sampling], device: torch.device = CPU) -> None:
        """`device`: of the logits. What rows need is copied there once."""
        self.device = CPU if device.type == "mps" else device  # no float64 on mps
        self.streams = RandomStreams([sampling.seed for sampling in samplings])
        self._sums: Tensor | None = None
        self.temperatures: Tensor | None = None
        """`[n, 1]`"""
        if any(sampling.temperature not in (0.0, 1.0) for sampling in samplings):
            self.temperatures = self._column([sampling.temperature or 1.0 for sampling in samplings], np.float32)
        self.greedy = self._rows(
            [row for row, sampling in enumerate(samplings) if sampling.temperature == 0.0], len(samplings)
        )
        self.filters: list[tuple[_Filter, Rows, Tensor]] = []
        """Function, its rows, and their values `[rows, 1]`."""
        for leave_out, option, asks in _FILTERS:
            values = [getattr(sampling, option) for sampling in samplings]
            rows = [row for row, value in enumerate(values) if samplings[row].temperature and asks(value)]
            if (places := self._rows(rows, len(samplings))) is not None:
                self.filters.append((leave_out, places, self._column([values[row] for row in rows], np.float64)))

    @property
    def is_plain(self) -> bool:
        """Whether every row is sampled from all tokens."""
        return not self.filters and self.greedy is None

    def uniforms(self, positions: np.ndarray) -> Tensor:
        """`[m, n]` positions -> `[m, n]` float64 in [0, 1) on the device of the logits."""
        return to_device(self.streams.at(positions), self.device)

    def _column(self, numbers: Sequence[float], dtype: type[np.floating]) -> Tensor:
        return to_device(np.array(numbers, dtype=dtype)[:, None], self.device)

    def _rows(self, rows: Sequence[int], num_rows: int) -> Rows | None:
        """Returns an index of these rows; None if there are none."""
        if not rows:
            return None
        return slice(None) if len(rows) == num_rows else to_device(np.array(rows), self.device)

    def running_sums(self, probabilities: Tensor) -> Tensor:
        """Returns cumulative sums `[n, V]` in float64, in a buffer that is allocated once: reallocating costs as much as
        summing."""
        if self._sums is None or self._sums.shape != probabilities.shape or self._sums.device != probabilities.device:
            self._sums = torch.empty_like(probabilities, dtype=torch.float64)
        return self._sums.copy_(probabilities).cumsum_(-1)


@torch.inference_mode()
def draw_tokens(logits: Tensor, uniforms: Tensor, ways: SamplingBatch) -> DrawnTokens:
    """Samples one token per row from `softmax(logits / temperature)` by inverse CDF.

    After the temperature, `min_p`, `top_k` and `top_p` are applied in this order (vLLM's), each to the tokens that the previous
    one kept. At temperature 0 the most probable token is taken.

    Args:
        logits: `[n, V]`, any float type; converted to fp32.
        uniforms: `[n]` float64 in [0, 1), on the device of `ways`.
        ways: sampling options of the `n` rows.

    Returns:
        The token ids, and the log-probability of each under its sampling distribution (for temperature 0: at temperature 1).
    """
    logits = logits.to(ways.device)
    kernels = kernels_of(logits.device, "triton_sampling")
    if kernels is not None and ways.is_plain and kernels.can_draw(logits):
        return DrawnTokens(*kernels.draw(logits, ways.temperatures, uniforms))
    logits = logits.float()
    if ways.temperatures is not None:
        logits = logits / ways.temperatures
    for leave_out, rows, values in ways.filters:
        kept = leave_out(logits[rows], values)
        logits = kept if isinstance(rows, slice) else logits.index_copy(0, rows, kept)
    probabilities = logits.softmax(-1)
    tokens = _inverse_cdf(probabilities, uniforms[:, None], ways)
    if ways.greedy is not None:
        tokens[ways.greedy] = logits[ways.greedy].argmax(-1, keepdim=True)
    return DrawnTokens(tokens, probabilities.gather(-1, tokens).double().log())


def expected_difference(logits: Tensor, reference: Tensor) -> Tensor:
    """Expected |Δ log-probability| `[...]` of tokens drawn from the reference: logits and log-probabilities `[..., V]`."""
    logprobs = logits.float().log_softmax(-1)
    return (reference.exp() * (logprobs - reference).abs().nan_to_num(posinf=0.0)).sum(-1)


def _inverse_cdf(probabilities: Tensor, uniforms: Tensor, ways: SamplingBatch) -> Tensor:
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


def _passed(sums: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the column at which cumulative sums `[n, C]` exceed the target `[n, 1]`, and the target, limited to below the
    total."""
    total = sums[:, -1:]
    target = torch.minimum(target, total.nextafter(total.new_zeros(())))
    return torch.searchsorted(sums, target, right=True).clamp_(max=sums.shape[1] - 1), target


def _leave_out_improbable(logits: Tensor, shares: Tensor) -> Tensor:
    """min-p (arXiv 2407.01082): keeps tokens that are at least `min_p` times as probable as the most probable one."""
    return logits.masked_fill(logits < logits.amax(-1, keepdim=True) + shares.float().log(), -torch.inf)


def _leave_out_low_ranks(logits: Tensor, numbers: Tensor) -> Tensor:
    """Keeps the `top_k` most probable tokens, and those that are exactly as probable as the last of them."""
    ranks = numbers.long().clamp(max=logits.shape[-1]) - 1
    lowest = logits.sort(dim=-1, descending=True).values.gather(-1, ranks)
    return logits.masked_fill(logits < lowest, -torch.inf)


def _leave_out_tail(logits: Tensor, shares: Tensor) -> Tensor:
    """Nucleus sampling (arXiv 1904.09751): keeps the smallest set of most probable tokens whose probability reaches `top_p`."""
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    probabilities = ordered.softmax(-1, dtype=torch.float64)
    tail = probabilities.cumsum(-1) - probabilities >= shares
    tail[:, 0] = False
    return logits.masked_fill(torch.zeros_like(tail).scatter_(-1, order, tail), -torch.inf)


_FILTERS: tuple[tuple[_Filter, str, Callable[[float], bool]], ...] = (
    (_leave_out_improbable, "min_p", lambda value: value > 0.0),
    (_leave_out_low_ranks, "top_k", lambda value: value > 0),
    (_leave_out_tail, "top_p", lambda value: value < 1.0),
)
"""Function, option of `Sampling`, and whether a value of it leaves anything out."""
