"""The quantities of a token, in one list: the recording, the report page and docs/report.md use it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Scale(StrEnum):
    """How a heat map colors a quantity."""

    NONE = "none"
    """Not a number."""
    DIVERGING = "diverging"
    """Two colors: above and below `center`."""
    SEQUENTIAL = "sequential"
    """One color: the larger the darker."""
    REVERSED = "reversed"
    """One color: the smaller the darker."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Quantity:
    """One quantity of a token."""

    name: str
    """Field of `RecordedToken`, or the name of a difference of two of them."""
    label: str
    meaning: str
    scale: Scale = Scale.NONE
    center: float = 0.0
    column: str = ""
    """Column of float32 numbers in the recording; empty if it is not such a number."""
    minus: str = ""
    """Column that is subtracted from `column`."""


_QUANTITIES = (
    Quantity(name="token_id", label="id", meaning="Id in the vocabulary."),
    Quantity(name="text", label="text", meaning="The text that the token completes."),
    Quantity(
        name="author",
        label="author",
        meaning="Who wrote it: policy, tool, prompt, or reply (of the environment or user).",
    ),
    Quantity(name="in_loss", label="mask", meaning="Whether the update trained on it.", scale=Scale.SEQUENTIAL),
    Quantity(
        name="policy_version",
        label="policy version",
        meaning="Version of the policy that sampled it.",
        scale=Scale.SEQUENTIAL,
    ),
    Quantity(
        name="advantage",
        label="advantage",
        meaning="As the loss used it: above 0 the update makes the token more likely, below 0 less likely.",
        scale=Scale.DIVERGING,
        column="advantages",
    ),
    Quantity(
        name="sampled_logprob",
        label="log-probability, sampled",
        meaning="As the engine recorded it, in nats.",
        scale=Scale.REVERSED,
        column="sampled_logprobs",
    ),
    Quantity(
        name="logprob",
        label="log-probability, recomputed",
        meaning="By the learner before the update, in nats.",
        scale=Scale.REVERSED,
        column="logprobs",
    ),
    Quantity(
        name="reference_logprob",
        label="log-probability, reference",
        meaning="Of the reference policy, in nats.",
        scale=Scale.REVERSED,
        column="reference_logprobs",
    ),
    Quantity(
        name="ratio",
        label="ratio",
        meaning="exp(log π − log π_old) in the last pass of the update.",
        scale=Scale.DIVERGING,
        center=1.0,
        column="ratios",
    ),
    Quantity(
        name="value", label="value", meaning="Of the critic, before the update.", scale=Scale.DIVERGING, column="values"
    ),
    Quantity(
        name="entropy",
        label="entropy",
        meaning="Of the distribution at the token in the last pass, in nats.",
        scale=Scale.SEQUENTIAL,
        column="entropies",
    ),
    Quantity(
        name="recomputed_minus_sampled",
        label="recomputed − sampled",
        meaning="Difference of both log-probabilities: 0 if engine and learner compute the same.",
        scale=Scale.DIVERGING,
        column="logprobs",
        minus="sampled_logprobs",
    ),
    Quantity(
        name="policy_minus_reference",
        label="policy − reference",
        meaning="Log-probability before the update minus the reference policy's: the token's term of the KL divergence (k1).",
        scale=Scale.DIVERGING,
        column="logprobs",
        minus="reference_logprobs",
    ),
)


def token_quantities() -> tuple[Quantity, ...]:
    """Returns the quantities of a token in the order in which they are shown."""
    return _QUANTITIES


def recorded_columns() -> dict[str, str]:
    """Returns the columns of numbers in a recording, with the field of `RecordedToken` that has one token's number."""
    return {each.column: each.name for each in _QUANTITIES if each.column and not each.minus}
