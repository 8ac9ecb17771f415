"""The verdict of a comparison in one sentence, with the test and its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from midthought.evaluation.comparison.compared_run import Configuration
from midthought.evaluation.comparison.measures import MeasureResult

LEVEL = 0.05
LABELS = {
    "exact_match": "exact match",
    "logged_exact_match": "exact match, all questions",
    "reward": "reward",
    "calls": "calls",
    "policy_tokens": "policy tokens",
    "training_reward": "training reward, last 10 % of the shared iterations",
}
_JUDGED = ("exact_match", "reward", "training_reward")
"""Measures of a verdict, the first one that is there; the others describe how answers differ, not which are better."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What a comparison shows."""

    measure: str | None
    """The measure that was tested; None if nothing could be tested."""
    is_shown: bool
    """Whether p is below 0.05, after the adjustment if there are several comparisons."""
    p_value: float | None
    finding: str
    """Which configuration is better, `no difference shown`, or why nothing was tested."""
    numbers: str
    """Test, n, statistic, p, interval."""
    limits: str
    """What the verdict does not say, and the remedy."""
    better: str = ""
    """What `finding` says if a difference is shown."""

    @property
    def sentence(self) -> str:
        return " ".join(filter(None, (f"{self.finding}.", self.numbers, self.limits)))

    def adjusted(self, p_value: float, num_tests: int) -> Verdict:
        """Returns the verdict with a p-value that was adjusted for `num_tests` comparisons with the baseline."""
        is_shown = p_value < LEVEL
        return replace(
            self,
            p_value=p_value,
            is_shown=is_shown,
            finding=self.better if is_shown else "No difference shown",
            numbers=f"{self.numbers} Adjusted for {num_tests} comparisons (Holm): {p_text(p_value)}.",
        )


def judge(
    measures: Sequence[MeasureResult], arm: str | None, step: int, baseline: Configuration, other: Configuration
) -> Verdict:
    """Returns the verdict by the first measure that says which answers are better."""
    chosen = next((one for name in _JUDGED for one in measures if one.measure == name), None)
    if chosen is None or chosen.test is None:
        return Verdict(
            measure=None,
            is_shown=False,
            p_value=None,
            finding="Nothing was tested",
            numbers="" if chosen is None else _change(chosen, arm, step),
            limits=_why_untested(chosen),
        )
    test = chosen.test
    better = f"{(other if test.difference > 0 else baseline).name} is better"
    is_shown = test.p_value < LEVEL
    numbers = (
        f"{_change(chosen, arm, step)} {_capital(test.name)} by {test.unit}, n = {test.num_pairs}: {test.statistic_name} "
        f"{test.statistic:.3g}, {p_text(test.p_value)}, difference {test.difference:+.3f} (95 % interval {test.low:+.3f} to "
        f"{test.high:+.3f})."
    )
    return Verdict(
        measure=chosen.measure,
        is_shown=is_shown,
        p_value=test.p_value,
        finding=better if is_shown else "No difference shown",
        numbers=numbers,
        limits=_limits(chosen, baseline, other),
        better=better,
    )


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def p_text(p_value: float) -> str:
    """Formats a p-value: `p = 0.034`, `p < 0.0001`."""
    return "p < 0.0001" if p_value < 0.0001 else f"p = {p_value:.2g}"


def arm_text(arm: str | None, step: int) -> str:
    """Names an arm; that of validations with its iteration."""
    return f"{arm} at iteration {step}" if arm == "validation" else str(arm)


def _change(result: MeasureResult, arm: str | None, step: int) -> str:
    where = "" if result.measure == "training_reward" else f" ({arm_text(arm, step)})"
    return f"{_capital(LABELS[result.measure])}{where}: {result.baseline:.3f} → {result.other:.3f}."


def _why_untested(chosen: MeasureResult | None) -> str:
    if chosen is None:
        return (
            "The runs share no held-out question and no training reward. Evaluate both in the same way: midthought evaluate RUN, "
            "or training.validate_every=10 for a trainer. Recipes choose questions by training.seed: compare the same seeds."
        )
    return (
        "A test needs two questions that both answered, or two seeds in both configurations whose differences are not all equal. "
        "Recipes choose questions by training.seed: compare runs of the same seeds, and record their answers "
        "(evaluation.num_shown)."
    )


def _limits(chosen: MeasureResult, baseline: Configuration, other: Configuration) -> str:
    test = chosen.test
    assert test is not None
    if test.unit == "seed":
        return "" if test.num_pairs > 2 else "Two seeds are few: a difference must be large to be shown."
    limits = "This compares these trained policies, not their settings: other seeds may differ. Train both with the same seeds."
    if test.name.startswith("exact McNemar"):
        num_changed = round(2 * test.statistic - test.difference * test.num_pairs)
        if num_changed < 6:
            limits = (
                f"Changed answers: {num_changed}; this test needs 6 for p < 0.05. Record more questions "
                f"(evaluation.num_shown). {limits}"
            )
    return limits
