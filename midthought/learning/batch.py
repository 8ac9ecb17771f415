"""Trajectories as flat tensors: the tokens of all rows one after the other, and how rows are split into micro-batches.

Log-probability, value and advantage at a token are of this token given the tokens before it. A row's first token is never
in the mask. Does not depend on a model: the code that scores the batch fills the later fields with `with_fields`.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from midthought.errors import RecordError, TrainingStoppedError
from midthought.learning.micro_batching import group_by_length, pack_first_fit, rows_together, shared_lengths
from midthought.types import Segment, Trajectory

Packing = bool | Literal["shared"]
"""Whether rows are concatenated without padding, and whether what a group's rows share is computed once (`training.packing`)."""
OF_ROWS = ("lengths", "episodes", "groups")
"""Tensors with one value per row."""


@dataclass(frozen=True, kw_only=True)
class TokenBatch:
    """N tokens in B rows (segments of E episodes), without padding. The rows of an episode are adjacent and in order.

    Per-token values are 0 outside the mask.
    """

    token_ids: Tensor  # [N] int64
    cu_seqlens: Tensor  # [B + 1] int64
    """Row boundaries: row i has the tokens `cu_seqlens[i]` to `cu_seqlens[i + 1] - 1`."""
    loss_mask: Tensor  # [N] bool
    """True for policy tokens: the tokens that have a loss and an advantage."""
    sampled_logprobs: Tensor  # [N] float32
    """Log-probabilities recorded by the engine; 0 outside the mask and for demonstrations."""
    rewards: Tensor  # [N] float32
    """A turn's and a span's reward at its last policy token, a call's at the last one before its result, the episode's reward
    at its last policy token; 0 elsewhere."""
    turns: Tensor  # [N] int64
    """Number of the turn that a policy token belongs to: 0, 1, …; -1 elsewhere."""
    episodes: Tensor  # [B] int64
    """Index of the row's trajectory in the list that the batch was built from."""
    groups: Tensor  # [B] int64
    """The episode's group (GRPO)."""
    calls: Tensor | None = None  # [N] int64
    """Number of the call step that a policy token belongs to: 0, 1, …; -1 elsewhere. See `CreditInputs.calls`."""
    ages: Tensor | None = None  # [N] int64
    """Updates since a policy token was sampled; -1 if that is not known (recorded episodes). None: 0 everywhere."""
    temperatures: Tensor | None = None  # [N] float32
    """Temperature of the distribution that each policy token was sampled from, 1 elsewhere; None: 1 everywhere. All
    log-probabilities, entropies and KL divergences of the batch refer to that distribution."""
    num_unscored: int = 0
    """Number of policy tokens removed from the mask because their sampled log-probability was not finite."""
    old_logprobs: Tensor | None = None  # [N] of the policy before the update, recomputed
    reference_logprobs: Tensor | None = None  # [N]
    teacher_logprobs: Tensor | None = None  # [N] of the teacher, for distillation
    rollout_weights: Tensor | None = None  # [N] factors of the policy loss
    values: Tensor | None = None  # [N] of the critic before the update
    advantages: Tensor | None = None  # [N]
    returns: Tensor | None = None  # [N]
    loss_weights: Tensor | None = None  # [N] in an optimizer step's average; None: all equal
    slots: Tensor | None = None  # [N] int64: places of recorded tokens (`LearnedTokens`), 0 for others

    @classmethod
    def from_trajectories(
        cls,
        trajectories: Sequence[Trajectory],
        *,
        demonstrations: bool = False,
        policy_version: int | None = None,
        slots: Mapping[tuple[int, int], int] | None = None,
    ) -> TokenBatch:
        """Builds one row per segment that has a policy token; other segments are left out.

        `demonstrations=True` (SFT) keeps every mask-True token although no log-probability was sampled. Otherwise tokens
        whose sampled log-probability is not finite are removed from the mask and counted in `num_unscored`. A missing reward
        counts as 0. `policy_version` is the version of the policy before the
        update, from which the `ages` follow. `slots`: the slot of the first token of each recorded
        (trajectory, segment). If a reward's own token was removed from the mask, the last policy
        token before it gets the reward, or else the first. Raises TrainingStoppedError if no sampled log-probability is
        finite, RecordError if no row is left, a reward is not finite, there are rewards for more turns or calls than the
        episode has, or a span is not in the record or has no policy token.
        """
        rows: list[_Row] = []
        num_unscored = 0
        for number, trajectory in enumerate(trajectories):
            trajectory.require_tokens()
            learned = [(segment, _finite_mask(segment, demonstrations)) for segment in trajectory.segments]
            num_unscored += sum(sum(segment.loss_mask) - sum(mask) for segment, mask in learned)
            rows += [_Row(number, place, *pair) for place, pair in enumerate(learned) if any(pair[1])]
        if not rows and num_unscored:
            raise TrainingStoppedError(
                f"none of the {num_unscored} sampled tokens has a finite log-probability: the policy's weights are too large or "
                "not finite. Lower training.learning_rate and resume from the last checkpoint, or give another model"
            )
        if not rows:
            raise RecordError(f"no policy token in {len(trajectories)} trajectories: there is nothing to learn from")
        segments = [row.segment for row in rows]
        mask = torch.tensor([flag for row in rows for flag in row.mask])
        cu_seqlens = torch.tensor([0, *itertools.accumulate(len(row.mask) for row in rows)])
        sampled = torch.zeros(len(mask))
        if not demonstrations:
            sampled = torch.tensor([x for segment in segments for x in segment.sampled_logprobs]).where(mask, sampled)
        ages = None
        if policy_version is not None:
            versions = torch.tensor([version for segment in segments for version in segment.policy_versions])
            ages = (policy_version - versions) * mask
        return cls(
            token_ids=torch.tensor([token_id for segment in segments for token_id in segment.token_ids]),
            cu_seqlens=cu_seqlens,
            loss_mask=mask,
            sampled_logprobs=sampled,
            rewards=_rewards(trajectories, rows, cu_seqlens.tolist()),
            turns=torch.cat([_steps(trajectories[row.episode].turn_ends, row) for row in rows]),
            calls=torch.cat([_steps(trajectories[row.episode].call_ends, row) for row in rows]),
            episodes=torch.tensor([row.episode for row in rows]),
            groups=torch.tensor([trajectories[row.episode].group for row in rows]),
            ages=ages,
            temperatures=_temperatures(segments),
            slots=None if slots is None else torch.cat([_slots(row, slots) for row in rows]),
            num_unscored=num_unscored,
        )

    # -- reading -----------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.episodes)

    @property
    def lengths(self) -> Tensor:
        """[B] int64: number of tokens of every row."""
        return self.cu_seqlens.diff()

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_policy_tokens(self) -> int:
        return int(self.loss_mask.sum())

    @property
    def num_episodes(self) -> int:
        return len(torch.unique(self.episodes))

    @property
    def token_episodes(self) -> Tensor:
        """[N] int64: the episode of every token."""
        return self.episodes.repeat_interleave(self.lengths)

    @property
    def position_ids(self) -> Tensor:
        """[N] int64: 0, 1, … in every row."""
        return _within_rows(self.cu_seqlens)

    def padded(self, tensor: Tensor, missing: float = 0) -> Tensor:
        """[N] -> [B, T]: one line per row, `missing` on its right. `tensor[batch.loss_mask]` and
        `padded(tensor)[padded(batch.loss_mask)]` are equal."""
        return pad_sequence(tensor.split(self.lengths.tolist()), batch_first=True, padding_value=missing)

    def turn_values(self) -> dict[int, dict[int, float]]:
        """Returns trajectory -> turn -> the critic's value before the turn's first policy token. The batch must be scored."""
        if self.values is None:
            raise ValueError("the batch has no values: score it with a critic")
        mask = self.loss_mask
        found: dict[int, dict[int, float]] = defaultdict(dict)
        columns = (self.token_episodes[mask], self.turns[mask], self.values[mask])
        for episode, turn, value in zip(*(column.tolist() for column in columns), strict=True):
            found[episode].setdefault(turn, value)
        return dict(found)

    # -- by episode --------------------------------------------------------------------------------------------

    def by_episode(self, tensor: Tensor, missing: float = 0) -> Tensor:
        """[N] -> [E, T]: one line per episode, its rows one after the other, `missing` on the right."""
        return pad_sequence(tensor.split(self._episode_lengths()), batch_first=True, padding_value=missing)

    def by_token(self, tensor: Tensor) -> Tensor:
        """[E, T] -> [N]: the inverse of `by_episode`."""
        return torch.cat([line[:length] for line, length in zip(tensor, self._episode_lengths(), strict=True)])

    def of_episodes(self, tensor: Tensor) -> Tensor:
        """[B] -> [E]: a value that all rows of an episode share, in the order of `by_episode`."""
        return tensor[self.episodes.diff(prepend=self.episodes[:1] - 1) != 0]

    def _episode_lengths(self) -> list[int]:
        """Number of tokens of every episode."""
        return torch.unique_consecutive(self.token_episodes, return_counts=True)[1].tolist()

    # -- splitting ---------------------------------------------------------------------------------------------

    def with_fields(self, **named: Tensor) -> TokenBatch:
        """Returns the batch with later fields filled in."""
        changed: dict[str, Any] = {**named}
        return replace(self, **changed)

    def to(self, device: torch.device | str) -> TokenBatch:
        return self.with_fields(**{name: tensor.to(device) for name, tensor in self._tensors().items()})

    def select(self, rows: Tensor) -> TokenBatch:
        """Returns these rows in this order."""
        tensors = {name: tensor for name, tensor in self._tensors().items() if name != "cu_seqlens"}
        tokens = self.tokens_of(rows)
        selected = {name: tensor[rows if name in OF_ROWS else tokens] for name, tensor in tensors.items()}
        return self.with_fields(cu_seqlens=boundaries(self.lengths[rows]), **selected)

    def tokens_of(self, rows: Tensor) -> Tensor:
        """Returns the indices of the tokens of these rows, row by row."""
        lengths = self.lengths[rows]
        return self.cu_seqlens[rows].repeat_interleave(lengths) + _within_rows(boundaries(lengths))

    def _tensors(self) -> dict[str, Tensor]:
        present = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in present.items() if isinstance(value, Tensor)}

    @property
    def shared_lengths(self) -> Tensor:
        """[B] int64: how many first tokens each row shares with its group (`micro_batching.shared_lengths`)."""
        is_wanted = torch.cat([self.loss_mask[1:], self.loss_mask.new_zeros(1)])
        return shared_lengths(self.token_ids, self.cu_seqlens, is_wanted, self.groups)

    def micro_batch_rows(self, max_tokens: int, *, packed: Packing = False) -> list[Tensor]:
        """Returns row numbers of micro-batches of at most `max_tokens` tokens; a longer row is a micro-batch of its own.

        Rows are sorted by length, longest first (equal lengths keep their order), so there is little padding; padding
        counts as tokens. `packed`: there is no padding, and each row goes to the first micro-batch that it fits; `shared`: a
        group's rows stay together, and their common prompt counts once. The result is deterministic.
        """
        if max_tokens <= 0:
            raise ValueError(f"max_tokens must be above 0, got {max_tokens}")
        if not packed:
            return group_by_length(self.lengths, max_tokens)
        units, sizes = self.units(max_tokens, packed=packed)
        return [torch.cat([units[unit] for unit in part.tolist()]) for part in pack_first_fit(sizes, max_tokens)]

    def units(self, max_tokens: int, *, packed: Packing, at_least: int = 1) -> tuple[list[Tensor], Tensor]:
        """Returns rows that stay together in packed micro-batches, and the tokens of each unit (`rows_together`)."""
        if packed == "shared":
            return rows_together(self.lengths, self.shared_lengths, self.groups, max_tokens, at_least)
        return list(torch.arange(len(self)).split(1)), self.lengths

    def mini_batches(self, num_episodes: int, generator: torch.Generator | None = None) -> Iterator[TokenBatch]:
        """Yields batches of at most `num_episodes` whole episodes, in an order drawn from `generator` (None: the batch's order).

        Their sizes differ by at most one episode, so no optimizer step depends on a few episodes only.
        """
        numbers = torch.unique(self.episodes)
        order = numbers[torch.randperm(len(numbers), generator=generator)] if generator is not None else numbers
        for chosen in order.tensor_split(-(-len(order) // num_episodes)):
            yield self.select(torch.isin(self.episodes, chosen).nonzero()[:, 0])


class _Row(NamedTuple):
    """A segment that becomes a row."""

    episode: int
    number: int
    """Index among the segments of its episode."""
    segment: Segment
    mask: list[bool]


def boundaries(lengths: Tensor) -> Tensor:
    """[B] numbers of tokens -> [B + 1] `cu_seqlens`."""
    return torch.nn.functional.pad(lengths.cumsum(0), (1, 0))


def _within_rows(cu_seqlens: Tensor) -> Tensor:
    """Returns the index of every token within its row: [N] int64."""
    starts = cu_seqlens[:-1].repeat_interleave(cu_seqlens.diff())
    return torch.arange(len(starts), device=starts.device) - starts


def _finite_mask(segment: Segment, demonstration: bool) -> list[bool]:
    """Returns the segment's mask without the tokens whose sampled log-probability is not finite."""
    if demonstration:
        return segment.loss_mask
    pairs = zip(segment.loss_mask, segment.sampled_logprobs, strict=True)
    return [flag and math.isfinite(logprob) for flag, logprob in pairs]


def _slots(row: _Row, first_slots: Mapping[tuple[int, int], int]) -> Tensor:
    first, length = first_slots.get((row.episode, row.number)), len(row.mask)
    return torch.zeros(length, dtype=torch.int64) if first is None else torch.arange(first, first + length)


def _steps(step_ends: Sequence[tuple[int, int]], row: _Row) -> Tensor:
    """Returns the number of the step (turn or call step) of every policy token of a row, -1 elsewhere: [T] int64.

    Equal ends are one step; tokens after the last end belong to one more step.
    """
    unique = sorted({end for end in step_ends if end[1] >= 0})
    finished = bisect.bisect_left(unique, (row.number, -1))
    ends = torch.tensor([index for number, index in unique if number == row.number], dtype=torch.int64)
    numbers = finished + torch.bucketize(torch.arange(len(row.mask)), ends)
    return numbers.where(torch.tensor(row.mask), torch.tensor(-1))


def _temperatures(segments: Sequence[Segment]) -> Tensor | None:
    """Returns the temperature of every token, None if all are 1."""
    if all(span.temperature == 1.0 for segment in segments for span in segment.spans):
        return None
    rows = [torch.ones(len(segment.token_ids)) for segment in segments]
    for row, segment in zip(rows, segments, strict=True):
        for span in segment.spans:
            row[span.start : span.end] = span.temperature
    return torch.cat(rows)


def _rewards(trajectories: Sequence[Trajectory], rows: Sequence[_Row], starts: Sequence[int]) -> Tensor:
    """Returns the rewards at the tokens that they are credited to: [N] float32. `starts`: index of each row's first token."""
    places: dict[int, list[tuple[int, int]]] = defaultdict(list)
    indices: dict[int, list[int]] = defaultdict(list)
    for row, start in zip(rows, starts, strict=False):
        of_policy = [index for index, flag in enumerate(row.mask) if flag]
        places[row.episode] += [(row.number, index) for index in of_policy]
        indices[row.episode] += [start + index for index in of_policy]
    amounts: dict[int, list[float]] = defaultdict(list)
    for episode, its_places in places.items():
        for end, paid in _payments(trajectories[episode]).items():
            last = max(bisect.bisect_right(its_places, end) - 1, 0)
            amounts[indices[episode][last]] += paid
    rewards = torch.zeros(starts[-1])
    for index, paid in amounts.items():
        rewards[index] = math.fsum(paid)
    return rewards


def _payments(trajectory: Trajectory) -> dict[tuple[int, int], list[float]]:
    """Returns (segment, index) -> rewards credited there: each turn's and call's at its end, the parts at the end of
    the episode."""
    reward = trajectory.reward
    if reward is None:
        return {}
    where = f"task {trajectory.task.task_id!r}"
    paid: dict[tuple[int, int], list[float]] = defaultdict(list)
    for noun, amounts, ends in (
        ("turn", reward.turns, trajectory.turn_ends),
        ("call", reward.calls, trajectory.call_ends),
    ):
        if len(amounts) > len(ends):
            past = "finished" if noun == "turn" else "made"
            raise RecordError(f"{where}: rewards for {len(amounts)} {noun}s, but {len(ends)} were {past}")
        for number, (end, amount) in enumerate(zip(ends, amounts, strict=False)):
            paid[end].append(_finite(amount, f"{noun} {number}", where))
    paid[len(trajectory.segments), 0] = [_finite(amount, name, where) for name, amount in reward.parts.items()]
    return paid


def _finite(amount: float, name: str, where: str) -> float:
    if not math.isfinite(amount):
        raise RecordError(f"{where}: the reward for {name!r} is {amount}; mend the function that gave it")
    return amount
