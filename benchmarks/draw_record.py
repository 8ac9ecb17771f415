"""Draws an episode of a recorded run, token by token: `python -m benchmarks.draw_record RUN docs/record.svg`.

Takes the first training episode that has a call and a right answer. The prompt is cut to its last tokens.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import NamedTuple

from midthought.report.recorded_episodes import read_recording

WIDTH, PER_CHARACTER, ROW, BOX = 980, 7.3, 58, 22
FILL = {"prompt": "#e5e7eb", "tool": "#fde68a", "policy": "#bfdbfe", "reply": "#e5e7eb"}
NUM_PROMPT_TOKENS = 24


class RecordedToken(NamedTuple):
    text: str
    author: str
    advantage: float
    sampled_logprob: float


def main(run: str, target: str) -> None:
    episodes = read_recording(run, arms=["train"])
    segment = next(each.segments[-1] for each in episodes if each.segments and each.facts["events"] and each.right)
    numbers = (segment.columns["advantages"], segment.columns["sampled_logprobs"])
    tokens = list(map(RecordedToken, segment.texts, segment.authors, *numbers))
    first = next(place for place, token in enumerate(tokens) if token.author != "prompt")
    shown = tokens[max(0, first - NUM_PROMPT_TOKENS) :]
    drawn = list(boxes(shown))
    height = 44 + ROW * (drawn[-1][1] + 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="monospace" font-size="12">'
    ]
    parts += ['<rect width="100%" height="100%" fill="#ffffff"/>', *legend()]
    parts += [draw(token, x, 44 + ROW * line, width) for token, (x, line, width) in zip(shown, drawn, strict=True)]
    Path(target).write_text("\n".join([*parts, "</svg>", ""]), "utf-8")


def legend() -> Iterator[str]:
    words = (("prompt", "prompt"), ("policy", "policy: in the loss"), ("tool", "tool result: not in the loss"))
    for place, (author, text) in enumerate(words):
        x = 10 + 210 * place
        yield f'<rect x="{x}" y="10" width="14" height="14" rx="3" fill="{FILL[author]}"/><text x="{x + 20}" y="21">{text}</text>'
    yield '<text x="700" y="21" fill="#475569">below a token: probability, advantage</text>'


def boxes(tokens: list[RecordedToken]) -> Iterator[tuple[float, int, float]]:
    """Left edge, line and width of each token's box."""
    x, line, author = 10.0, 0, tokens[0].author
    for token in tokens:
        width = max(len(visible(token)) * PER_CHARACTER + 8, 42 if token.author == "policy" else 14)
        is_new_line = token.author != author or (token.author == "policy" and token.text.startswith("\n"))
        if x + width > WIDTH - 10 or (is_new_line and x > 10):
            x, line = 10.0, line + 1
        yield x, line, width
        x, author = x + width + 3, token.author


def visible(token: RecordedToken) -> str:
    return token.text.replace("\n", "⏎").replace(" ", "·") or "·"


def draw(token: RecordedToken, x: float, y: float, width: float) -> str:
    box = f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BOX}" rx="3" fill="{FILL[token.author]}"/>'
    text = f'<text x="{x + 4:.1f}" y="{y + 15}" fill="#0f172a">{escape(visible(token))}</text>'
    if token.author != "policy":
        return box + text
    color = "#15803d" if token.advantage > 0 else "#b91c1c"
    values = (
        f'<text x="{x + 2:.1f}" y="{y + 33}" font-size="9" fill="#475569">{2.718281828**token.sampled_logprob:.2f}</text>'
        f'<text x="{x + 2:.1f}" y="{y + 44}" font-size="9" fill="{color}">{token.advantage:+.2f}</text>'
    )
    return box + text + values


if __name__ == "__main__":
    main(*sys.argv[1:])
