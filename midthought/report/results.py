"""The results of a run's summary as HTML: the result in a sentence, cards, the table before/after, control arms.

Depends on the summary's keys, not on how they were measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from midthought.report.templates import macro

Summary = Mapping[str, Any]

CHANCE_MARGIN = 0.05
"""An arm without the tool's results counts as guessing up to this much above the best constant guess."""


class Arm(NamedTuple):
    """One row of the table: its label, and the key of its metric after training."""

    label: str
    note: str
    after: str

    @property
    def before(self) -> str:
        """The key of the metric before training. Arms that are not measured then have no such key in a summary."""
        return self.after.replace("after.", "before.", 1)


ARMS = (
    Arm("Exact match, greedy", "held-out questions that need the tool", "after.exact_match"),
    Arm("Balanced", "mean of questions with and without an answer", "after.balanced_accuracy"),
    Arm("Unfinished", "ended without an answer: at a limit, or failed", "after.unfinished"),
    Arm("Sampled", "temperature 1, as in training", "after.sampled_exact_match"),
    Arm("Tool off", "no call is answered", "after.tool_off.exact_match"),
    Arm("Results shuffled", "each call gets another question’s result", "after.shuffled.exact_match"),
    Arm("First try", "the answer before any feedback", "after.first_try"),
    Arm("Retry only", "told only that the answer is wrong", "after.none.exact_match"),
    Arm("Wrong feedback", "told something false", "after.wrong.exact_match"),
    Arm("Oracle results", "every call gets the passage that proves the answer", "after.oracle.exact_match"),
    Arm("No memory needed", "the question contains the answer", "after.no_memory.exact_match"),
    Arm("Constant guess", "the best that one fixed answer gets", "after.constant_guess"),
    Arm("Calls where needed", "share of questions", "after.call_rate_needed"),
    Arm("Calls where needless", "share of questions", "after.call_rate_needless"),
)
VALIDATION_RATES = (
    ("Success on held-out episodes", "validation/env/success_share"),
    ("Exact match on held-out tasks", "validation/exact_match"),
)


def number(summary: Summary, key: str) -> float | None:
    """Returns the metric under `key`; None if it is missing or null."""
    value = summary.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def verdict(summary: Summary) -> tuple[str, str]:
    """Returns the result of the run in one sentence, and what supports or weakens it (both `Markup` or plain text).

    If both were measured, the sentence is about sampled answers, which is what training changes; greedy ones follow.
    """
    greedy, sampled = (
        [number(summary, f"{when}.{name}") for when in ("before", "after")]
        for name in ("exact_match", "sampled_exact_match")
    )
    num_questions = number(summary, "num_questions")
    where = f" on {num_questions:,.0f} held-out questions" if num_questions else ""
    if sampled[1] is not None and (sampled[0] is not None or greedy[1] is None):
        shown = " → ".join(f"{value:.3f}" for value in greedy if value is not None)
        beside = f"Greedy: {shown}. " if greedy[1] is not None else ""
        sentence = Markup("Sampled exact match{}: {}").format(where, _change(sampled[0], sampled[1]))
        return sentence, beside + _support(summary)
    if greedy[1] is None:
        return _verdict_by_reward(summary)
    return Markup("Exact match{}: {}").format(where, _change(greedy[0], greedy[1])), _support(summary)


def _verdict_by_reward(summary: Summary) -> tuple[str, str]:
    """For a run that has a reward but no questions with and without a tool."""
    held_out, trained = number(summary, "validation/reward/mean"), number(summary, "reward/mean")
    rates = [(label, number(summary, key)) for label, key in VALIDATION_RATES]
    support = ", ".join(f"{label.lower()} {rate:.3f}" for label, rate in rates if rate is not None)
    if held_out is not None:
        return Markup("Reward of held-out episodes, greedy: <b>{:.3f}</b>").format(held_out), support
    if trained is None:
        return "This run has not been evaluated yet.", "Its results will be shown here after the last evaluation."
    sentence = Markup("Reward of the last iteration: <b>{:.3f}</b>").format(trained)
    return sentence, "No held-out episodes were evaluated: Trainer(validation=…), training.validate_every, evaluate()."


def _change(before: float | None, after: float) -> str:
    if before is None:
        return Markup("<b>{:.3f}</b>").format(after)
    gain = after - before
    return macro("change")(f"{before:.3f}", f"{after:.3f}", gain, signed(gain))


def _support(summary: Summary) -> str:
    """Whether the score depends on the tool's results, judged by the arms without them."""
    guess = number(summary, "after.constant_guess")
    arms = {
        "with the tool off": number(summary, "after.tool_off.exact_match"),
        "with shuffled results": number(summary, "after.shuffled.exact_match"),
    }
    seen = {name: value for name, value in arms.items() if value is not None}
    if not seen:
        return ""
    words = " and ".join(f"{value:.3f} {name}" for name, value in seen.items())
    score = number(summary, "after.exact_match")
    if score is not None and score <= max(*seen.values(), guess or 0.0) + CHANCE_MARGIN:
        guessed = "" if guess is None else f"; a constant guess gets {guess:.3f}"
        return f"It is {words}{guessed}: the score does not show that the tool's results are used."
    if guess is None:
        return f"It falls to {words}."
    if max(seen.values()) <= guess + CHANCE_MARGIN:
        return f"It falls to {words}; a constant guess gets {guess:.3f}: the score comes from what the tool says."
    return (
        f"But it still reaches {words}, while a constant guess gets {guess:.3f}: "
        "part of the score does not come from the tool."
    )


def cards(summary: Summary) -> str:
    """Returns the key metrics as cards; unknown ones are left out."""
    items = []
    for label, name in (
        ("Exact match", "exact_match"),
        ("Sampled, temperature 1", "sampled_exact_match"),
        ("Calls where needed", "call_rate_needed"),
        ("Calls where needless", "call_rate_needless"),
    ):
        before, after = number(summary, f"before.{name}"), number(summary, f"after.{name}")
        if after is not None:
            items.append((label, f"{after:.3f}", "" if before is None else f"from {before:.3f} before"))
    for label, key, form in (
        ("Reward, held out", "validation/reward/mean", "{:.3f}".format),
        *((label, key, "{:.3f}".format) for label, key in VALIDATION_RATES),
        ("Iterations", "iteration", "{:,.0f}".format),
        ("Whole job", "seconds", duration),
        ("Peak memory", "peak_rss_mib", lambda mib: f"{mib / 1024:.1f} GiB"),
        ("Questions", "num_questions", lambda count: f"{count:,.0f}"),
        ("Seed", "seed", lambda seed: f"{seed:.0f}"),
    ):
        value = number(summary, key)
        if value is not None:
            items.append((label, form(value), ""))
    return macro("cards")(items) if items else ""


def arms_table(summary: Summary) -> str:
    """Returns the table of all arms, with a plot of each on the scale 0 to 1; empty if nothing was evaluated."""
    rows = []
    for arm in ARMS:
        before, after = number(summary, arm.before), number(summary, arm.after)
        if arm.before == arm.after:  # measured after training only
            before = None
        if before is None and after is None:
            continue
        ends = number(summary, f"{arm.after}.low"), number(summary, f"{arm.after}.high")
        rows.append(
            {
                "label": arm.label,
                "note": arm.note,
                "before": before,
                "after": after,
                "bounds": None if None in ends else ends,
                "change": "" if before is None or after is None else signed(after - before),
            }
        )
    return macro("arms_table")(rows, any(row["bounds"] for row in rows)) if rows else ""


def more_metrics(summary: Summary) -> str:
    """Returns every metric of the summary that the cards and the table do not show, as a folded table."""
    shown = {key for arm in ARMS for key in (arm.before, arm.after)} | {
        "num_questions",
        "seconds",
        "peak_rss_mib",
        "seed",
        "iteration",
        "validation/reward/mean",
        *(key for _, key in VALIDATION_RATES),
    }
    ends = (".low", ".high")
    rest = {key: value for key, value in summary.items() if key not in shown and not key.endswith(ends)}
    return macro("more_metrics")([(key, _plain(value)) for key, value in rest.items()]) if rest else ""


def duration(seconds: float) -> str:
    """Formats seconds: `0.4 s`, `42 s`, `9 min 30 s`, `2 h 05 min`."""
    whole = round(seconds)
    if seconds < 0.95:
        return f"{seconds:.1f} s"
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def signed(value: float) -> str:
    """Formats a change with its sign, with a typographic minus: `+0.556`, `−0.020`."""
    return f"{value:+.3f}".replace("-", "−")


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(_plain(item) for item in value)
    return "–" if value is None else str(value)


def control_arms_table(summary: Mapping[str, Any], reports: Sequence[str] = ()) -> str:
    """Returns the metrics of the run and of its arms side by side; empty without arms. `reports`: arms with a report of their own
    in `arms/NAME/report.html`."""
    keys = (key.split(".") for key in summary if key.startswith("arms.") and key.endswith(".exact_match"))
    names = list(dict.fromkeys(key[1] for key in keys))
    if not names:
        return ""
    prefixes = ["after", *(f"arms.{name}" for name in names)]
    metrics = [(arm.label, arm.note, arm.after.removeprefix("after.")) for arm in ARMS]
    metrics.insert(2, ("Sampled", "temperature 1, as in training", "sampled.exact_match"))
    rows = []
    for label, note, key in metrics:
        cells = [number(summary, f"{prefix}.{key}") for prefix in prefixes]
        if any(cell is not None for cell in cells[1:]):
            rows.append((label, note, ["–" if cell is None else f"{cell:.3f}" for cell in cells]))
    seconds = [number(summary, key) for key in ("train_seconds", *(f"{each}.train_seconds" for each in prefixes[1:]))]
    shown = ["–" if spent is None else duration(spent) for spent in seconds]
    rows.append(("Training", "without evaluation and checkpoints", shown))
    heads = [("This run", ""), *((name, f"arms/{name}/report.html" if name in reports else "") for name in names)]
    return macro("control_arms")(heads, rows)
