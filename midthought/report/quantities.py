"""The quantities of a token, in one list: the recording, the report page and docs/runs.md use it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Scale = Literal["none", "diverging", "sequential", "reversed"]
"""How a heat map colors a quantity: not at all; two colors, above and below `center`; one color, the larger the darker, or the
smaller the darker."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """One quantity of a token."""

    name: str
    """Name in the page's addresses."""
    label: str
    meaning: str
    scale: Scale = "none"
    center: float = 0.0
    column: str = ""
    """Column of float32 numbers in the recording; empty if it is not such a number."""
    minus: str = ""
    """Column that is subtracted from `column`."""


# fmt: off
QUANTITIES = (
    Quantity("token_id", "id", "Id in the vocabulary."),
    Quantity("text", "text", "The text that the token completes."),
    Quantity("author", "author", "Who wrote it: policy, tool, prompt, or reply (of the environment or user)."),
    Quantity("in_loss", "mask", "Whether the update trained on it.", "sequential"),
    Quantity("policy_version", "policy version", "Version of the policy that sampled it.", "sequential"),
    Quantity("advantage", "advantage",
             "As the loss used it: above 0 the update makes the token more likely, below 0 less likely.",
             "diverging", column="advantages"),
    Quantity("sampled_logprob", "log-probability, sampled", "As the engine recorded it, in nats.", "reversed",
             column="sampled_logprobs"),
    Quantity("logprob", "log-probability, recomputed", "By the learner before the update, in nats.", "reversed",
             column="logprobs"),
    Quantity("reference_logprob", "log-probability, reference", "Of the reference policy, in nats.", "reversed",
             column="reference_logprobs"),
    Quantity("ratio", "ratio", "exp(log π − log π_old) in the last pass of the update.", "diverging", column="ratios",
             center=1.0),
    Quantity("value", "value", "Of the critic, before the update.", "diverging", column="values"),
    Quantity("entropy", "entropy", "Of the distribution at the token in the last pass, in nats.", "sequential",
             column="entropies"),
    Quantity("recomputed_minus_sampled", "recomputed − sampled",
             "Difference of both log-probabilities: 0 if engine and learner compute the same.", "diverging",
             column="logprobs", minus="sampled_logprobs"),
    Quantity("policy_minus_reference", "policy − reference",
             "Log-probability before the update minus the reference policy's: the token's term of the KL divergence (k1).",
             "diverging", column="logprobs", minus="reference_logprobs"),
)
# fmt: on
"""The quantities of a token, in the order in which they are shown."""
COLUMNS = tuple(each.column for each in QUANTITIES if each.column and not each.minus)
"""Columns of float32 numbers in a recording. A row has them for the policy's tokens only."""
