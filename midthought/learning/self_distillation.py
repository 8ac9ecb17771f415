"""SDPO: the rows that the policy scores as its own teacher, which knows more about the episodes than the policy did.

The teacher reads the tokens of an episode after a prompt that also has feedback on the episode, or a successful episode of the
same task. Source: Hübotter et al. 2026 (arXiv 2601.20802), sections 2 and 3. Does not depend on a model or a loss.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from midthought.config import TrainingConfig
from midthought.learning.batch import TokenBatch, boundaries
from midthought.tokenization import Renderer
from midthought.types import SpanKind, Task, Trajectory

DEMONSTRATION = "\n\nA correct solution:\n\n{}"
FEEDBACK = "\n\nFeedback on your earlier attempt:\n\n{}"
REQUEST = "\n\nNow answer the question."
"""What follows the task in the teacher's prompt: a successful episode, feedback, and in any case the request."""
MIN_TOKENS = 16
"""A text for which the model has fewer positions than this is left out."""
RESERVED_TOKENS = 64
"""Positions that are kept for the words around the texts."""


class Hindsight(NamedTuple):
    """The rows of a batch that have a teacher, as the teacher reads them."""

    rows: TokenBatch
    """Longer by the context; with the same policy tokens as the rows of the batch, in the same order."""
    places: Tensor  # [R] int64
    """Row of the batch, for each of `rows`, ascending."""

    def logprobs(self, batch: TokenBatch, scores: Tensor) -> Tensor:
        """Returns the teacher's log-probabilities at the tokens of a scored batch [N], from `scores` at the tokens of `rows`.

        At policy tokens without a teacher these are the policy's own, so that the log-ratio is 0.
        """
        assert batch.old_logprobs is not None
        tokens = batch.tokens_of(self.places)
        found = batch.old_logprobs.clone()
        found[tokens[batch.loss_mask[tokens]]] = scores[self.rows.loss_mask]
        return found

    def asking(self, batch: TokenBatch) -> TokenBatch:
        """Returns `rows` with the batch's `teacher_top_ids` at their policy tokens, if it has some."""
        if batch.teacher_top_ids is None:
            return self.rows
        tokens, ids = batch.tokens_of(self.places), batch.teacher_top_ids
        asked = ids.new_zeros(self.rows.num_tokens, ids.shape[1])
        asked[self.rows.loss_mask] = ids[tokens[batch.loss_mask[tokens]]]
        return self.rows.with_fields(teacher_top_ids=asked)

    def taught(self, batch: TokenBatch, scores: Tensor) -> TokenBatch:
        """Fills in the teacher's fields of a scored batch, from `scores` at the tokens of `rows`: [N], or [N, 1 + k] with
        `teacher_top_ids`, which become -1 at policy tokens without a teacher."""
        if batch.teacher_top_ids is None:
            return batch.with_fields(teacher_logprobs=self.logprobs(batch, scores))
        if not len(self.rows):
            scores = scores.new_zeros(0, 1 + batch.teacher_top_ids.shape[1])
        tokens = batch.tokens_of(self.places)
        tokens = tokens[batch.loss_mask[tokens]]
        ids = torch.full_like(batch.teacher_top_ids, -1)
        ids[tokens] = batch.teacher_top_ids[tokens]
        teachers = torch.zeros(ids.shape)
        teachers[tokens] = scores[self.rows.loss_mask][:, 1:]
        logprobs = self.logprobs(batch, scores[:, 0])
        return batch.with_fields(teacher_logprobs=logprobs, teacher_top_ids=ids, teacher_top_logprobs=teachers)

    def only(self, batch: TokenBatch) -> tuple[TokenBatch, Hindsight]:
        """Returns the batch without the rows that have no teacher."""
        return batch.select(self.places), self._replace(places=torch.arange(len(self.places)))


class PromptEdit(NamedTuple):
    """A change of a prompt: `token_ids` replace the tokens from `start` to the end of `head`."""

    head: list[int]
    """The prompt's tokens up to the end of the change."""
    start: int
    token_ids: list[int]

    @classmethod
    def between(cls, old: Sequence[int], new: Sequence[int]) -> PromptEdit:
        """Returns the smallest change of `old` to `new`."""
        start = _num_equal(old, new)
        num_after = _num_equal(old[start:][::-1], new[start:][::-1])
        return cls(list(old[: len(old) - num_after]), start, list(new[start : len(new) - num_after]))

    def fits(self, row: Tensor, max_seq_len: int | None) -> bool:
        """Whether the row [T] starts with `head`, and has at most `max_seq_len` tokens after the change."""
        length = len(row) + self.start + len(self.token_ids) - len(self.head)
        return row[: len(self.head)].tolist() == self.head and (max_seq_len is None or length <= max_seq_len)

    def applied(self, row: Tensor, inserted: Tensor) -> Tensor:
        """Returns the values of a row [T] after the change, with the values `inserted` at `token_ids`."""
        return torch.cat([row[: self.start], inserted.to(row), row[len(self.head) :]])


@dataclass(frozen=True, kw_only=True)
class SelfTeacher:
    """Writes the teacher's prompts."""

    renderer: Renderer
    """The policy's. Feedback and demonstrations are foreign text, so they never become control tokens."""
    messages: Callable[[Task], Sequence[Mapping[str, str]]]
    """The conversation that the episodes of a task start with; its last message is the user's."""
    max_seq_len: int | None = None
    """Positions of the model; None: no limit."""

    def hindsight(
        self, batch: TokenBatch, trajectories: Sequence[Trajectory], training: TrainingConfig
    ) -> tuple[Hindsight, dict[str, float]]:
        """Returns the rows of the batch that have a teacher. `trajectories`: those that the batch was built from.

        Metrics: `batch/num_with_feedback` and `batch/num_with_sibling` (episodes), and `batch/num_untaught`, the episodes
        without a teacher: there is neither text, or the model has no positions left for it.
        """
        tokens = batch.token_ids.split(batch.lengths.tolist())
        rows: dict[int, list[int]] = defaultdict(list)
        for row, episode in enumerate(batch.episodes.tolist()):
            rows[episode].append(row)
        successes = _successes(trajectories, training.success_reward_threshold)
        edits: dict[int, PromptEdit] = {}
        counts = dict.fromkeys(("with_feedback", "with_sibling", "untaught"), 0.0)
        for episode, its_rows in rows.items():
            trajectory = trajectories[episode]
            sibling = next((each for each in successes[trajectory.group] if each is not trajectory), None)
            longest = max(len(tokens[row]) for row in its_rows)
            feedback, demonstration = self._texts(trajectory, sibling, training, longest)
            edit = self._edit(trajectory.task, feedback, demonstration)
            taught = [row for row in its_rows if edit is not None and edit.fits(tokens[row], self.max_seq_len)]
            edits |= {row: edit for row in taught if edit is not None}
            counts["with_feedback"] += bool(feedback and taught)
            counts["with_sibling"] += bool(demonstration and taught)
            counts["untaught"] += not taught
        return _rewritten(batch, edits), {f"batch/num_{name}": count for name, count in counts.items()}

    def _texts(
        self, trajectory: Trajectory, sibling: Trajectory | None, training: TrainingConfig, num_tokens: int
    ) -> tuple[str, str]:
        """Returns feedback and demonstration, cut to what the settings allow and to the positions that `num_tokens` leave;
        empty if there is none, or the settings exclude it."""
        kind = training.self_teacher
        said = trajectory.reward.feedback if trajectory.reward is not None else ""
        feedback = said.strip() if kind in ("feedback", "both") else ""
        demonstration = self._demonstration(sibling) if sibling is not None and kind in ("sibling", "both") else ""
        limit = training.self_teacher_tokens
        if self.max_seq_len is not None:
            num_left = self.max_seq_len - num_tokens - RESERVED_TOKENS
            limit = min(limit, num_left // max(bool(feedback) + bool(demonstration), 1))
        if limit < MIN_TOKENS:
            return "", ""
        return self.renderer.truncate(feedback, limit), self.renderer.truncate(demonstration, limit)

    def _demonstration(self, trajectory: Trajectory) -> str:
        """Returns what the policy wrote in an episode: thoughts, calls and answers.

        Tool results are left out. The policy cannot know their words before it has called, but a teacher that reads them expects
        them, for example as the continuation of a query.
        """
        segment, renderer = trajectory.segments[-1], self.renderer
        texts = []
        for span in segment.spans[1:]:
            if span.kind is SpanKind.SAMPLED:
                token_ids = segment.token_ids[span.start : span.end]
                texts.append(
                    renderer.decode([each for each in token_ids if each not in renderer.eos_token_ids]).strip()
                )
        return "\n".join(texts)

    def _edit(self, task: Task, feedback: str, demonstration: str) -> PromptEdit | None:
        """Returns the change of the policy's prompt to the teacher's; None without any text."""
        if not feedback and not demonstration:
            return None
        *before, last = self.messages(task)
        words = last["content"]
        words += DEMONSTRATION.format(demonstration) if demonstration else ""
        words += FEEDBACK.format(feedback) if feedback else ""
        told = {**last, "content": words + REQUEST}
        return PromptEdit.between(self.renderer.prompt([*before, last]), self.renderer.prompt([*before, told]))


def _successes(trajectories: Sequence[Trajectory], threshold: float) -> dict[int, list[Trajectory]]:
    """Returns group -> episodes with at least this reward, the best first (equal rewards keep their order)."""
    found: dict[int, list[tuple[float, Trajectory]]] = defaultdict(list)
    for trajectory in trajectories:
        if trajectory.reward is not None and trajectory.reward.total >= threshold:
            found[trajectory.group].append((trajectory.reward.total, trajectory))
    ordered = {group: sorted(pairs, key=lambda pair: -pair[0]) for group, pairs in found.items()}
    return defaultdict(list, {group: [each for _, each in pairs] for group, pairs in ordered.items()})


def _rewritten(batch: TokenBatch, edits: Mapping[int, PromptEdit]) -> Hindsight:
    """Returns the rows of the batch with their prompts changed. Only what a forward pass reads is filled in."""
    places = torch.tensor(sorted(edits), dtype=torch.int64)
    chosen = batch.select(places)
    pairs = [(edits[row], slice(*batch.cu_seqlens[row : row + 2].tolist())) for row in places.tolist()]

    def changed(values: Tensor, inserted: Callable[[PromptEdit], Tensor]) -> Tensor:
        return torch.cat([values[:0], *(edit.applied(values[row], inserted(edit)) for edit, row in pairs)])

    def constant(value: float) -> Callable[[PromptEdit], Tensor]:
        return lambda edit: torch.full((len(edit.token_ids),), value)

    token_ids = changed(batch.token_ids, lambda edit: torch.tensor(edit.token_ids, dtype=torch.int64))
    lengths = chosen.lengths + torch.tensor(
        [edit.start + len(edit.token_ids) - len(edit.head) for edit, _ in pairs], dtype=torch.int64
    )
    rows = TokenBatch(
        token_ids=token_ids,
        cu_seqlens=boundaries(lengths),
        loss_mask=changed(batch.loss_mask, constant(0)),
        sampled_logprobs=changed(batch.sampled_logprobs, constant(0)),
        rewards=changed(batch.rewards, constant(0)),
        turns=changed(batch.turns, constant(-1)),
        episodes=chosen.episodes,
        groups=chosen.groups,
        temperatures=None if batch.temperatures is None else changed(batch.temperatures, constant(1)),
    )
    return Hindsight(rows, places)


def _num_equal(one: Sequence[int], other: Sequence[int]) -> int:
    """Returns the length of the common beginning."""
    number = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        number += 1
    return number
