"""Trajectories as right-padded tensors, one row per segment, and how they are cut into micro-batches.

Log-probability, value and advantage at index t are of token t given the tokens before it. Token 0 is never in the mask.
Does not depend on a model: the code that scores the batch fills the later fields with `with_fields`.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from midthought.errors import RecordError, TrainingStoppedError
from midthought.learning.micro_batching import group_by_length, pack_first_fit, split_by_rows, split_by_tokens
from midthought.types import Segment, Trajectory


@dataclass(frozen=True, kw_only=True)
class PPOBatch:
    """B rows (segments of E episodes), padded on the right to T tokens. Per-token values are 0 outside the mask."""

    token_ids: Tensor  # [B, T] int64
    lengths: Tensor  # [B] int64
    """Number of tokens of every row, without padding."""
    loss_mask: Tensor  # [B, T] bool
    """True for policy tokens: the tokens that have a loss and an advantage."""
    sampled_logprobs: Tensor  # [B, T] float32
    """Log-probabilities recorded by the engine; 0 outside the mask and for demonstrations."""
    rewards: Tensor  # [B, T] float32
    """A turn's reward at the turn's last policy token, the episode's reward at its last policy token; 0 elsewhere."""
    turns: Tensor  # [B, T] int64
    """Number of the turn that a policy token belongs to: 0, 1, …; -1 elsewhere."""
    episodes: Tensor  # [B] int64
    """Index of the row's trajectory in the list that the batch was built from."""
    segments: Tensor  # [B] int64
    """Index of the row among its episode's rows: 0, 1, …"""
    groups: Tensor  # [B] int64
    """The episode's group (GRPO)."""
    baselines: Tensor | None = None  # [B] float32
    """The reward of the greedy episode of the same task (ReMax)."""
    is_stale: Tensor | None = None  # [B, T] bool
    """True for stale policy tokens: sampled by a policy older than the one before the update. None: there are none."""
    temperatures: Tensor | None = None  # [B, T] float32
    """Temperature of the distribution that each policy token was sampled from, 1 elsewhere; None: 1 everywhere. All
    log-probabilities, entropies and KL divergences of the batch refer to that distribution."""
    num_unscored: int = 0
    """Number of policy tokens removed from the mask because their sampled log-probability was not finite."""
    old_logprobs: Tensor | None = None  # [B, T] of the policy before the update, recomputed
    reference_logprobs: Tensor | None = None  # [B, T]
    rollout_weights: Tensor | None = None  # [B, T] factors of the policy loss
    values: Tensor | None = None  # [B, T] of the critic before the update
    advantages: Tensor | None = None  # [B, T]
    returns: Tensor | None = None  # [B, T]
    loss_weights: Tensor | None = None  # [B, T] in an optimizer step's average; None: all equal

    @classmethod
    def from_trajectories(
        cls,
        trajectories: Sequence[Trajectory],
        *,
        pad_token_id: int = 0,
        demonstrations: bool = False,
        baselines: Sequence[float] | None = None,
        policy_version: int | None = None,
    ) -> PPOBatch:
        """Builds one row per segment that has a policy token; other segments are left out.

        `demonstrations=True` (SFT) keeps every mask-True token although no log-probability was sampled. Otherwise tokens
        whose sampled log-probability is not finite are removed from the mask and counted in `num_unscored`. A missing reward
        counts as 0. `baselines` has one number per trajectory. `policy_version` is the version of the policy before the
        update: tokens of earlier versions are stale. If a reward's own token was removed from the mask, the last policy
        token before it gets the reward, or else the first. Raises TrainingStoppedError if no sampled log-probability is
        finite, RecordError if no row is left, a reward is not finite, or there are more turn rewards than finished turns.
        """
        rows: list[_Row] = []
        num_unscored = 0
        for number, trajectory in enumerate(trajectories):
            learned = [(segment, _learned(segment, demonstrations)) for segment in trajectory.segments]
            num_unscored += sum(sum(segment.loss_mask) - sum(mask) for segment, mask in learned)
            kept = [place for place, (_, mask) in enumerate(learned) if any(mask)]
            rows += [_Row(number, trajectory.group, row, place, *learned[place]) for row, place in enumerate(kept)]
        if not rows and num_unscored:
            raise TrainingStoppedError(
                f"none of the {num_unscored} sampled tokens has a finite log-probability: the policy's weights are too large or "
                "not finite. Lower training.learning_rate and resume from the last checkpoint, or give another model"
            )
        if not rows:
            raise RecordError(f"no policy token in {len(trajectories)} trajectories: there is nothing to learn from")
        batch = cls._empty(rows, pad_token_id, num_unscored)
        if baselines is not None:
            batch = replace(batch, baselines=torch.tensor([baselines[row.episode] for row in rows]))
        if policy_version is not None:
            batch = replace(batch, is_stale=torch.zeros_like(batch.loss_mask))
        if any(span.temperature != 1.0 for row in rows for span in row.segment.spans):
            batch = replace(batch, temperatures=torch.ones(batch.token_ids.shape))
        for index, row in enumerate(rows):
            length = len(row.segment.token_ids)
            mask = torch.tensor(row.mask)
            batch.token_ids[index, :length] = torch.tensor(row.segment.token_ids)
            batch.loss_mask[index, :length] = mask
            if not demonstrations:
                logprobs = torch.tensor(row.segment.sampled_logprobs, dtype=torch.float32)
                batch.sampled_logprobs[index, :length] = logprobs.where(mask, 0.0)
            if batch.is_stale is not None and policy_version is not None:
                batch.is_stale[index, :length] = mask & (torch.tensor(row.segment.policy_versions) < policy_version)
            batch.turns[index, :length] = _turns(trajectories[row.episode].turn_ends, row.number, mask)
            if batch.temperatures is not None:
                for span in row.segment.spans:
                    batch.temperatures[index, span.start : span.end] = span.temperature
        for episode, its_rows in itertools.groupby(range(len(rows)), key=lambda index: rows[index].episode):
            batch._credit(trajectories[episode], {rows[index].number: index for index in its_rows})
        return batch

    def _credit(self, trajectory: Trajectory, rows: dict[int, int]) -> None:
        """Writes the rewards of one episode to their tokens; `rows`: its segments' numbers -> their rows, in order."""
        amounts: dict[tuple[int, int], list[float]] = defaultdict(list)
        for end, paid in _payments(trajectory).items():
            amounts[self._last_policy_token(rows, end)] += paid
        for (row, index), paid in amounts.items():
            self.rewards[row, index] = math.fsum(paid)

    def _last_policy_token(self, rows: dict[int, int], end: tuple[int, int]) -> tuple[int, int]:
        """Returns (row, index) of an episode's last policy token up to (segment, index) `end`, or of its first if none."""
        for number, row in reversed(rows.items()):
            columns = self.loss_mask[row].nonzero()[:, 0]
            if number == end[0]:
                columns = columns[columns <= end[1]]
            if number <= end[0] and len(columns):
                return row, int(columns[-1])
        first = next(iter(rows.values()))
        return first, int(self.loss_mask[first].nonzero()[0])

    @classmethod
    def _empty(cls, rows: Sequence[_Row], pad_token_id: int, num_unscored: int) -> PPOBatch:
        lengths = [len(row.segment.token_ids) for row in rows]
        shape = (len(rows), max(lengths))
        return cls(
            token_ids=torch.full(shape, pad_token_id, dtype=torch.int64),
            lengths=torch.tensor(lengths),
            loss_mask=torch.zeros(shape, dtype=torch.bool),
            sampled_logprobs=torch.zeros(shape),
            rewards=torch.zeros(shape),
            turns=torch.full(shape, -1),
            episodes=torch.tensor([row.episode for row in rows]),
            segments=torch.tensor([row.place for row in rows]),
            groups=torch.tensor([row.group for row in rows]),
            num_unscored=num_unscored,
        )

    # -- reading -----------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.token_ids)

    @property
    def num_tokens(self) -> int:
        """Number of tokens in all rows, without padding."""
        return int(self.lengths.sum())

    @property
    def num_policy_tokens(self) -> int:
        return int(self.loss_mask.sum())

    @property
    def num_episodes(self) -> int:
        return len(torch.unique(self.episodes))

    @property
    def attention_mask(self) -> Tensor:
        """[B, T] bool, True before the padding. Causal attention does not need it: no token sees the padding to its right."""
        return torch.arange(self.token_ids.shape[1], device=self.token_ids.device) < self.lengths[:, None]

    @property
    def position_ids(self) -> Tensor:
        """[B, T] int64: 0, 1, … in every row."""
        return torch.arange(self.token_ids.shape[1], device=self.token_ids.device).expand_as(self.token_ids)

    # -- cutting -----------------------------------------------------------------------------------------------

    def with_fields(self, **named: Tensor) -> PPOBatch:
        """Returns the batch with later fields filled in."""
        return self._replaced(named)

    def to(self, device: torch.device | str) -> PPOBatch:
        return self._map(lambda tensor: tensor.to(device))

    def select(self, rows: Tensor) -> PPOBatch:
        """Returns these rows in this order, without padding that none of them needs."""
        width = int(self.lengths[rows].max())
        return self._map(lambda tensor: tensor[rows, :width] if tensor.dim() == 2 else tensor[rows])

    def _map(self, change: Callable[[Tensor], Tensor]) -> PPOBatch:
        present = {field.name: getattr(self, field.name) for field in fields(self)}
        return self._replaced({name: change(value) for name, value in present.items() if isinstance(value, Tensor)})

    def _replaced(self, changed: dict[str, Any]) -> PPOBatch:
        return replace(self, **changed)

    def micro_batch_rows(self, max_tokens: int, *, packed: bool = False) -> list[Tensor]:
        """Returns row numbers of micro-batches of at most `max_tokens` tokens; a longer row is a micro-batch of its own.

        Rows are sorted by length, longest first (equal lengths keep their order), so there is little padding; padding
        counts as tokens. `packed`: there is no padding, and each row goes to the first micro-batch that it fits. The result
        is deterministic.
        """
        if max_tokens <= 0:
            raise ValueError(f"max_tokens must be above 0, got {max_tokens}")
        return (pack_first_fit if packed else group_by_length)(self.lengths, max_tokens)

    def micro_batches(
        self, max_tokens: int, num_parts: int | None = None, *, packed: bool = False
    ) -> Iterator[PPOBatch]:
        """Splits the batch as `micro_batch_rows` does, or into `num_parts`: with equal numbers of rows, longest first, or
        (`packed`) about equal numbers of tokens.

        There are fewer parts if there are fewer rows.
        """
        if num_parts is None:
            return (self.select(rows) for rows in self.micro_batch_rows(max_tokens, packed=packed))
        if num_parts <= 0:
            raise ValueError(f"num_parts must be above 0, got {num_parts}")
        return (self.select(rows) for rows in (split_by_tokens if packed else split_by_rows)(self.lengths, num_parts))

    def mini_batches(self, num_episodes: int, generator: torch.Generator | None = None) -> Iterator[PPOBatch]:
        """Yields batches of `num_episodes` whole episodes, in an order drawn from `generator` (None: in the batch's order).

        The last one may be smaller.
        """
        numbers = torch.unique(self.episodes)
        order = numbers[torch.randperm(len(numbers), generator=generator)] if generator is not None else numbers
        for chosen in order.split(num_episodes):
            yield self.select(torch.isin(self.episodes, chosen).nonzero()[:, 0])

    # -- by episode --------------------------------------------------------------------------------------------

    def by_episode(self, figure: Tensor, missing: int = 0) -> Tensor:
        """[B, T] -> [E, S·T]: concatenates an episode's segments in order into one row; `missing` elsewhere."""
        _, episode = torch.unique(self.episodes, return_inverse=True)
        num_segments = int(self.segments.max()) + 1
        wide = figure.new_full((int(episode.max()) + 1, num_segments, figure.shape[1]), missing)
        wide[episode, self.segments] = figure
        return wide.flatten(1)

    def by_row(self, figure: Tensor) -> Tensor:
        """[E, S·T] -> [B, T]: the inverse of `by_episode`."""
        _, episode = torch.unique(self.episodes, return_inverse=True)
        return figure.unflatten(1, (-1, self.token_ids.shape[1]))[episode, self.segments]

    def of_episodes(self, figure: Tensor) -> Tensor:
        """[B] -> [E]: a value that all rows of an episode share, in the order of `by_episode`."""
        _, episode = torch.unique(self.episodes, return_inverse=True)
        shared = figure.new_zeros(int(episode.max()) + 1)
        shared[episode] = figure
        return shared

    @property
    def episode_groups(self) -> Tensor:
        """[E] int64: the group of every episode, in the order of `by_episode`."""
        return self.of_episodes(self.groups)

    def turn_values(self) -> dict[int, dict[int, float]]:
        """Returns trajectory -> turn -> the critic's value before the turn's first policy token. The batch must be scored."""
        if self.values is None:
            raise ValueError("the batch has no values: score it with a critic")
        turns = self.by_episode(self.turns, missing=-1)
        seen = torch.nn.functional.pad(turns.cummax(dim=1).values[:, :-1], (1, 0), value=-1)
        values, numbers = self.by_episode(self.values), torch.unique(self.episodes).tolist()
        found: dict[int, dict[int, float]] = defaultdict(dict)
        for row, column in (turns > seen).nonzero().tolist():
            found[numbers[row]][int(turns[row, column])] = float(values[row, column])
        return dict(found)


class _Row(NamedTuple):
    """A segment that becomes a row."""

    episode: int
    group: int
    place: int
    """Index among the rows of its episode."""
    number: int
    """Index among the segments of its episode."""
    segment: Segment
    mask: list[bool]


def _turns(turn_ends: Sequence[tuple[int, int]], segment: int, mask: Tensor) -> Tensor:
    """Returns the turn number of every policy token of a segment, -1 elsewhere: [T] int64.

    Tokens after the last finished turn belong to one more turn.
    """
    finished = bisect.bisect_left(turn_ends, (segment, -1))
    ends = torch.tensor([index for number, index in turn_ends if number == segment], dtype=torch.int64)
    numbers = finished + torch.bucketize(torch.arange(len(mask)), ends)
    return torch.where(mask, numbers, -1)


def _payments(trajectory: Trajectory) -> dict[tuple[int, int], list[float]]:
    """Returns (segment, index) -> rewards credited there: each turn's at its end, the parts at the end of the episode."""
    reward, ends = trajectory.reward, trajectory.turn_ends
    if reward is None:
        return {}
    where = f"task {trajectory.task.task_id!r}"
    for name, amount in [
        *reward.parts.items(),
        *((f"turn {turn}", amount) for turn, amount in enumerate(reward.turns)),
    ]:
        if not math.isfinite(amount):
            raise RecordError(f"{where}: the reward for {name!r} is {amount}; mend the function that gave it")
    if len(reward.turns) > len(ends):
        raise RecordError(f"{where}: rewards for {len(reward.turns)} turns, but {len(ends)} were finished")
    by_turn = {end: [amount] for end, amount in zip(ends, reward.turns, strict=False)}
    return {**by_turn, (len(trajectory.segments), 0): list(reward.parts.values())}


def _learned(segment: Segment, demonstration: bool) -> list[bool]:
    """Returns the segment's mask without the tokens whose sampled log-probability is not finite."""
    if demonstration:
        return segment.loss_mask
    pairs = zip(segment.loss_mask, segment.sampled_logprobs, strict=True)
    return [flag and math.isfinite(logprob) for flag, logprob in pairs]
