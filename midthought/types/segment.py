"""Tokens with their origin: what an engine sampled, and one append-only sequence of an episode."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from midthought.errors import RecordError


class Finish(enum.StrEnum):
    """Why one call of `engine.sample` ended."""

    CALL = "call"
    """The stopper found the end of a call inside the last token."""
    END = "end"
    """An end-of-sequence token was sampled; it is the last of `token_ids`."""
    LENGTH = "length"
    """`max_tokens` were sampled."""


class SpanKind(enum.StrEnum):
    """Origin of a run of tokens. It determines the loss mask: only SAMPLED tokens are trained on."""

    PROMPT = "prompt"
    SAMPLED = "policy"
    RESULT = "tool"
    REPLY = "reply"


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """Result of one call of `engine.sample`: token ids and their log-probabilities under the sampling distribution."""

    token_ids: tuple[int, ...]
    sampled_logprobs: tuple[float, ...]
    finish: Finish
    policy_version: int = 0
    num_cut: int = 0
    """Number of tokens that a server sampled after the end of the call and that were cut."""
    temperature: float | None = None
    """Temperature of the distribution of `sampled_logprobs`. None: the requested temperature."""


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens `start:end` of a segment, all of one kind and, if the policy sampled them, of one temperature."""

    kind: SpanKind
    start: int
    end: int
    temperature: float = 1.0
    """Temperature of the distribution of the tokens' log-probabilities; 1 for tokens that were not sampled."""


@dataclass(slots=True)
class Segment:
    """One append-only sequence of tokens. All lists except the spans are as long as `token_ids`."""

    token_ids: list[int] = field(default_factory=list)
    loss_mask: list[bool] = field(default_factory=list)
    sampled_logprobs: list[float] = field(default_factory=list)
    """NaN for tokens without a recorded log-probability (context, demonstrations)."""
    policy_versions: list[int] = field(default_factory=list)
    """Version of the policy that sampled the token; -1 if it was not sampled. An episode that was carried over from one
    iteration to the next has tokens of several versions."""
    spans: list[Span] = field(default_factory=list)

    def append(
        self,
        kind: SpanKind,
        token_ids: Sequence[int],
        logprobs: Sequence[float],
        policy_version: int = -1,
        temperature: float = 1.0,
    ) -> None:
        """Appends tokens of one kind, all with this version and temperature."""
        if not token_ids:
            return
        start, end = len(self.token_ids), len(self.token_ids) + len(token_ids)
        self.token_ids.extend(token_ids)
        self.sampled_logprobs.extend(logprobs)
        self.policy_versions.extend([policy_version] * len(token_ids))
        self.loss_mask.extend([kind is SpanKind.SAMPLED] * len(token_ids))
        last = self.spans[-1] if self.spans else None
        if last and last.kind is kind is SpanKind.SAMPLED and last.temperature == temperature:
            self.spans[-1] = Span(kind, last.start, end, temperature)
        else:
            self.spans.append(Span(kind, start, end, temperature))

    def extend(self, other: Segment, start: int) -> None:
        """Appends the tokens of another segment from index `start` on, with which one of its spans begins."""
        shift = len(self.token_ids) - start
        for name in ("token_ids", "loss_mask", "sampled_logprobs", "policy_versions"):
            getattr(self, name).extend(getattr(other, name)[start:])
        later = (span for span in other.spans if span.start >= start)
        self.spans += [Span(each.kind, each.start + shift, each.end + shift, each.temperature) for each in later]

    def sampled_runs(self, start: int = 0) -> list[list[int]]:
        """Returns the sampled tokens from index `start` on, one list per contiguous run, independent of temperature."""
        runs: list[list[int]] = []
        end = -1
        for span in self.spans:
            if span.kind is SpanKind.SAMPLED and span.start >= start:
                token_ids = self.token_ids[span.start : span.end]
                runs = [*runs[:-1], runs[-1] + token_ids] if span.start == end else [*runs, token_ids]
                end = span.end
        return runs

    def check(self, where: str) -> None:
        """Raises `RecordError` if an invariant is violated: spans tile the tokens, the mask follows from the spans."""
        columns = (self.token_ids, self.loss_mask, self.sampled_logprobs, self.policy_versions)
        lengths = {len(column) for column in columns}
        if len(lengths) != 1:
            raise RecordError(
                f"{where}: token ids, mask, log-probabilities and versions differ in length: {sorted(lengths)}"
            )
        position = 0
        for span in self.spans:
            if span.start != position or span.end <= span.start:
                raise RecordError(f"{where}: spans do not tile the tokens at {position}: {span}")
            self._check_span(span, where)
            position = span.end
        if position != len(self.token_ids):
            raise RecordError(f"{where}: spans end at {position}, tokens at {len(self.token_ids)}")
        if not self.spans or self.spans[0].kind is not SpanKind.PROMPT:
            raise RecordError(f"{where}: does not begin with a prompt")

    def _check_span(self, span: Span, where: str) -> None:
        tokens = slice(span.start, span.end)
        if any(flag != (span.kind is SpanKind.SAMPLED) for flag in self.loss_mask[tokens]):
            raise RecordError(f"{where}: the loss mask contradicts {span}")
        if not 0 < span.temperature < math.inf:
            raise RecordError(f"{where}: {span} has no finite temperature above 0")
        if span.kind is SpanKind.SAMPLED:
            return
        if not all(math.isnan(value) for value in self.sampled_logprobs[tokens]):
            raise RecordError(f"{where}: context tokens carry log-probabilities at {span}")
        if set(self.policy_versions[tokens]) != {-1}:
            raise RecordError(f"{where}: context tokens carry a policy version at {span}")
        if span.temperature != 1.0:
            raise RecordError(f"{where}: context tokens carry a temperature at {span}")
