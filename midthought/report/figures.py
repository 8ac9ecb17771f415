"""The figures of a run's summary as HTML: the verdict in a sentence, cards, and the table before/after.

It knows the summary's keys and nothing of how they were measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

Summary = Mapping[str, Any]

CHANCE_MARGIN = 0.05
"""How far above the best constant guess an arm without the tool's words may lie and still count as guessing."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One row of the table: where its figures stand in the summary and what it shows."""

    label: str
    note: str
    before: str | None
    after: str | None


ARMS = (
    Arm("Exact match, greedy", "held-out questions that need the tool", "before.exact_match", "after.exact_match"),
    Arm("Sampled", "temperature 1, as in training", "before.sampled_exact_match", "after.sampled_exact_match"),
    Arm("Tool off", "no call is answered", "before.tool_off.exact_match", "after.tool_off.exact_match"),
    Arm(
        "Results shuffled",
        "each call gets another question’s result",
        "before.shuffled.exact_match",
        "after.shuffled.exact_match",
    ),
    Arm("First try", "the answer before any feedback", "before.first_try", "after.first_try"),
    Arm("Retry only", "told only that the answer is wrong", "before.none.exact_match", "after.none.exact_match"),
    Arm("Wrong feedback", "told something false", "before.wrong.exact_match", "after.wrong.exact_match"),
    Arm(
        "Oracle results",
        "every call gets the passage that proves the answer",
        "before.oracle.exact_match",
        "after.oracle.exact_match",
    ),
    Arm(
        "No memory needed",
        "the answer stands in the question",
        "before.no_memory.exact_match",
        "after.no_memory.exact_match",
    ),
    Arm("Constant guess", "the best that one fixed answer gets", None, "after.constant_guess"),
    Arm("Control", "supervised training for the same time, no PPO", None, "control.exact_match"),
    Arm("Calls where needed", "share of questions", "before.call_rate_needed", "after.call_rate_needed"),
    Arm("Calls where needless", "share of questions", "before.call_rate_needless", "after.call_rate_needless"),
)


VALIDATION_RATES = (
    ("Success on held-out episodes", "validation/env/success_share"),
    ("Exact match on held-out tasks", "validation/exact_match"),
)


def number(summary: Summary, key: str | None) -> float | None:
    """The figure under `key`; None where it is not there or null."""
    value = summary.get(key) if key else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def interval(summary: Summary, key: str) -> tuple[float, float] | None:
    """The confidence interval of `key`: `KEY_interval: [low, high]`, or `KEY.low` and `KEY.high`."""
    pair = summary.get(f"{key}_interval") or summary.get(f"{key}.interval")
    if isinstance(pair, list) and len(pair) == 2 and None not in pair:
        return float(pair[0]), float(pair[1])
    low, high = number(summary, f"{key}.low"), number(summary, f"{key}.high")
    return None if low is None or high is None else (low, high)


def verdict(summary: Summary) -> tuple[str, str]:
    """What the run came to, in one sentence (HTML), and what supports or weakens it, in plain words (HTML).

    Where both were measured the sentence is about sampled answers, which is what training changes; greedy ones follow.
    """
    greedy = number(summary, "before.exact_match"), number(summary, "after.exact_match")
    if greedy[1] is None:
        return _verdict_by_reward(summary)
    sampled = number(summary, "before.sampled_exact_match"), number(summary, "after.sampled_exact_match")
    num_questions = number(summary, "num_questions")
    where = f" on {num_questions:,.0f} held-out questions" if num_questions else ""
    if None in sampled:
        return f"Exact match{where}: {_change(*greedy)}", _support(summary)
    return (
        f"Sampled exact match{where}: {_change(*sampled)}",
        f"Greedy: {'' if greedy[0] is None else f'{greedy[0]:.3f} → '}{greedy[1]:.3f}. {_support(summary)}",
    )


def _verdict_by_reward(summary: Summary) -> tuple[str, str]:
    """For a run that has a reward but no questions with and without a tool."""
    held_out, trained = number(summary, "validation/reward/mean"), number(summary, "reward/mean")
    rates = [(label, number(summary, key)) for label, key in VALIDATION_RATES]
    support = ", ".join(f"{label.lower()} {rate:.3f}" for label, rate in rates if rate is not None)
    if held_out is not None:
        return f"Reward of held-out episodes, greedy: <b>{held_out:.3f}</b>", support
    if trained is not None:
        return f"Reward of the last iteration: <b>{trained:.3f}</b>", "Nothing was held out to evaluate it on."
    return "This run has not been evaluated yet.", "Its figures will stand here once the last evaluation is done."


def _change(before: float | None, after: float | None) -> str:
    if before is None or after is None:
        return f"<b>{after:.3f}</b>"
    gain = after - before
    return (
        f"<b>{before:.3f}</b> <span class='arrow' aria-label='to'>→</span> <b>{after:.3f}</b> "
        f"<span class='gain {'up' if gain > 0 else 'down'}'>{signed(gain)}</span>"
    )


def _support(summary: Summary) -> str:
    """Whether the score comes from what the tool said, judged by the arms that take its words away."""
    guess = number(summary, "after.constant_guess")
    arms = {
        "with the tool off": number(summary, "after.tool_off.exact_match"),
        "with shuffled results": number(summary, "after.shuffled.exact_match"),
    }
    seen = {name: value for name, value in arms.items() if value is not None}
    if not seen:
        return ""
    words = " and ".join(f"{value:.3f} {name}" for name, value in seen.items())
    if guess is None:
        return f"It falls to {words}."
    if max(seen.values()) <= guess + CHANCE_MARGIN:
        return f"It falls to {words}; a constant guess gets {guess:.3f}: the score comes from what the tool says."
    return (
        f"But it still reaches {words}, where a constant guess gets {guess:.3f}: "
        "part of the score is not owed to the tool."
    )


def cards(summary: Summary) -> str:
    """The key figures as cards; those that are not known are left out."""
    shown = [
        _rate_card(summary, "Exact match", "exact_match"),
        _rate_card(summary, "Sampled, temperature 1", "sampled_exact_match"),
        _rate_card(summary, "Calls where needed", "call_rate_needed"),
        _rate_card(summary, "Calls where needless", "call_rate_needless"),
    ]
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
        shown.append("" if value is None else _card(label, form(value), ""))
    body = "".join(shown)
    return f'<dl class="cards">{body}</dl>' if body else ""


def _rate_card(summary: Summary, label: str, name: str) -> str:
    before, after = number(summary, f"before.{name}"), number(summary, f"after.{name}")
    if after is None:
        return ""
    return _card(label, f"{after:.3f}", "" if before is None else f"from {before:.3f} before")


def _card(label: str, value: str, foot: str) -> str:
    foot = f"<small>{escape(foot)}</small>" if foot else ""
    return f"<div><dt>{escape(label)}</dt><dd>{escape(value)}{foot}</dd></div>"


def arms_table(summary: Summary) -> str:
    """The table of all arms, with a plot of each on the scale 0 to 1; empty where nothing was evaluated."""
    rows = [arm for arm in ARMS if number(summary, arm.before) is not None or number(summary, arm.after) is not None]
    if not rows:
        return ""
    with_intervals = any(arm.after and interval(summary, arm.after) for arm in rows)
    heads = ["Before", "After", *(["95 % interval"] if with_intervals else []), "Change"]
    head = "".join(f'<th scope="col" class="num">{name}</th>' for name in heads)
    body = "".join(_arm_row(summary, arm, with_intervals) for arm in rows)
    return (
        '<div class="scroll"><table class="arms"><caption>Shares between 0 and 1. '
        '<span class="key"><i class="dot hollow"></i> before</span> <span class="key"><i class="dot"></i> after</span>'
        f"{'<span class=key><i class=whisker></i> 95 % interval</span>' if with_intervals else ''}</caption>"
        f'<thead><tr><th scope="col">Arm</th>{head}<th scope="col" class="plot">0<span>1</span></th></tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _arm_row(summary: Summary, arm: Arm, with_intervals: bool) -> str:
    before, after = number(summary, arm.before), number(summary, arm.after)
    bounds = interval(summary, arm.after) if arm.after else None
    change = "" if before is None or after is None else signed(after - before)
    cells = [_rate(before), _rate(after)]
    if with_intervals:
        cells.append(f"{bounds[0]:.3f}–{bounds[1]:.3f}" if bounds else "")
    numbers = "".join(f'<td class="num">{cell}</td>' for cell in [*cells, change])
    label = f'<th scope="row">{escape(arm.label)}<small>{escape(arm.note)}</small></th>'
    return f'<tr>{label}{numbers}<td class="plot">{_dumbbell(before, after, bounds)}</td></tr>'


def _dumbbell(before: float | None, after: float | None, bounds: tuple[float, float] | None) -> str:
    """Before and after as dots on a line from 0 to 1, 200 × 20; hidden from screen readers, the cells say it all."""

    def x(value: float) -> str:
        return f"{6 + 188 * min(max(value, 0.0), 1.0):.1f}"

    marks = '<line class="axis" x1="6" x2="194" y1="10" y2="10"/>'
    if bounds is not None:
        marks += f'<line class="bounds" x1="{x(bounds[0])}" x2="{x(bounds[1])}" y1="10" y2="10"/>'
    if before is not None and after is not None:
        marks += f'<line class="way" x1="{x(before)}" x2="{x(after)}" y1="10" y2="10"/>'
    if before is not None:
        marks += f'<circle class="before" cx="{x(before)}" cy="10" r="4"/>'
    if after is not None:
        marks += f'<circle class="after" cx="{x(after)}" cy="10" r="4.5"/>'
    return f'<svg viewBox="0 0 200 20" aria-hidden="true">{marks}</svg>'


def more_figures(summary: Summary) -> str:
    """Every figure of the summary that the cards and the table do not show, as a folded table."""
    shown = {key for arm in ARMS for key in (arm.before, arm.after)} | {
        "num_questions",
        "seconds",
        "peak_rss_mib",
        "seed",
        "iteration",
        "validation/reward/mean",
        *(key for _, key in VALIDATION_RATES),
    }
    ends = (".low", ".high", "_interval", ".interval")
    rest = {key: value for key, value in summary.items() if key not in shown and not key.endswith(ends)}
    if not rest:
        return ""
    rows = "".join(
        f'<tr><th scope="row"><code>{escape(key)}</code></th><td class="num">{escape(_plain(value))}</td></tr>'
        for key, value in rest.items()
    )
    return (
        "<details><summary>More figures</summary><div class=scroll><table class=plain>"
        "<caption class=unseen>Further figures of summary.json</caption>"
        f"<thead><tr><th scope=col>Key</th><th scope=col class=num>Value</th></tr></thead><tbody>{rows}</tbody>"
        "</table></div></details>"
    )


def duration(seconds: float) -> str:
    """Seconds as people say them: `0.4 s`, `42 s`, `9 min 30 s`, `2 h 05 min`."""
    whole = round(seconds)
    if seconds < 0.95:
        return f"{seconds:.1f} s"
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def signed(value: float) -> str:
    """A change with its sign, the minus as a minus: `+0.556`, `−0.020`."""
    return f"{value:+.3f}".replace("-", "−")


def _rate(value: float | None) -> str:
    return '<span class="none">–</span>' if value is None else f"{value:.3f}"


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(_plain(item) for item in value)
    return "–" if value is None else str(value)
