"""Size and speed of `report.html`: an invented run with N recorded episodes, opened in headless Chromium.

`python -m benchmarks.report_page --episodes 500 1000 5000` prints one row each: size, seconds to write the page, first paint, and
the slowest interaction. An interaction lasts from the event until the frame that shows its result has been painted.
"""

from __future__ import annotations

import argparse
import base64
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from midthought.report.html import write_report
from midthought.report.recorded_episodes import COLUMNS
from midthought.report.run_folder import RunFolder

WORDS = (
    "the",
    "tool",
    "says",
    "that",
    "answer",
    "is",
    "found",
    "in",
    "an",
    "episode",
    "bees",
    "boats",
    "bread",
    "light",
)
GROUP_SIZE = 8
INTERACTIONS = {
    "filter": "form.elements.answer.value = 'wrong'; form.dispatchEvent(new Event('input'));",
    "sort": "form.elements.sort.value = 'spread'; form.dispatchEvent(new Event('input'));",
    "search": "form.elements.text.value = 'bees boats'; search();",
    "reset": "setState({}); showList();",
    "scroll the list": "list.scrollTop = list.scrollHeight / 3; list.dispatchEvent(new Event('scroll'));",
    "next episode": "select(neighbor(1));",
    "far episode": "select(listed.numbers[Math.floor(listed.numbers.length * 0.7)]);",
    "color": "shown.color = 'entropy'; showColors();",
    "samples side by side": "shown.view = 'samples'; show();",
    "differences": "shown.view = 'diff'; show();",
    "point at a token": "shown.view = 'episode'; show().then(() => inspect(detail.querySelector('.policy .t')));",
}
_MEASURE = """async () => {
  const start = performance.now();
  performance.mark('start');
  ACTION
  let turn;
  do { turn = shown.turn; await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
       await new Promise((done) => setTimeout(done, 0)); } while (turn !== shown.turn || !detail.firstChild);
  performance.measure('NAME', 'start');
  return performance.now() - start;
}"""

_READ_TEXTS = """async () => {
  const start = performance.now();
  await readSearchTexts(() => {});
  return performance.now() - start;
}"""


def write_run(path: Path, num_episodes: int, *, num_policy_tokens: int = 240, num_prompt_tokens: int = 120) -> Path:
    """Writes a run whose training episodes are random words with random numbers in every column."""
    noise = np.random.default_rng(0)
    with RunFolder(path).create() as run:
        for step in range(1, 201):
            run.log(
                "ppo",
                step,
                {"reward/mean": noise.normal(), "kl_reference": noise.random(), "episode/calls": noise.random()},
            )
        num_groups = -(-num_episodes // GROUP_SIZE)
        for group in range(num_groups):
            rows = [_row(noise, group, num_prompt_tokens, num_policy_tokens) for _ in range(GROUP_SIZE)]
            run.add_trajectories(rows[: num_episodes - group * GROUP_SIZE])
    return path


def _row(noise: np.random.Generator, group: int, num_prompt: int, num_policy: int) -> dict[str, Any]:
    def texts(length: int) -> list[str]:
        return [" " + WORDS[number] for number in noise.integers(0, len(WORDS), length)]

    def packed(values: Any, dtype: str) -> str:
        return base64.b64encode(np.ascontiguousarray(values, dtype=dtype).tobytes()).decode()

    half = num_policy // 2
    spans = [["prompt", num_prompt], ["policy", half], ["tool", 60], ["policy", num_policy - half]]
    count = num_prompt + num_policy + 60
    is_right = bool(noise.random() < 0.5)
    event = {
        "tool_name": "search",
        "parameters": {"query": "bees"},
        "outcome": "ok",
        "time/seconds": 0.2,
        "result": "light",
    }
    return {
        "arm": "train",
        "step": group // 4 + 1,
        "task_id": f"task-{group}",
        "question": f"What is said in episode {group} about {WORDS[group % len(WORDS)]}?",
        "answer": "bees",
        "labels": {"kind": "quote"},
        "group": group,
        "exact_match": is_right,
        "stop_reason": "answered",
        "error": None,
        "policy_version": group // 4,
        "reward": {"total": float(is_right), "parts": {"correct": float(is_right), "calls": -0.1}},
        "num_calls": 1,
        "time/tool_seconds": 0.2,
        "time/engine_seconds": float(noise.random()),
        "events": [{**event, "token": num_prompt + half - 1}],
        "spans": [{"kind": kind, "text": "", "num_tokens": length} for kind, length in spans],
        "segments": [
            {
                "spans": spans,
                "token_ids": packed(noise.integers(0, 150_000, count), "<i4"),
                "texts": texts(count),
                "policy_versions": packed(np.full(num_policy, group // 4), "<i4"),
                "in_loss": packed(np.ones(num_policy), "u1"),
                **{name: packed(noise.normal(size=num_policy), "<f4") for name in COLUMNS},
            }
        ],
    }


def measure(page: Path) -> dict[str, float]:
    """Returns milliseconds until the first paint, until the browser is ready, and of each interaction."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        opened = browser.new_page(viewport={"width": 1280, "height": 900})
        opened.goto(page.as_uri())
        while not opened.evaluate("performance.getEntriesByName('ready').length"):
            opened.wait_for_timeout(20)
        found = {
            "first paint": opened.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime"),
            "ready": opened.evaluate("performance.getEntriesByName('ready')[0].startTime"),
        }
        found["episodes"] = opened.evaluate("EPISODES.task.length")
        found["texts for the first search"] = opened.evaluate(_READ_TEXTS)
        for name, action in INTERACTIONS.items():
            found[name] = opened.evaluate(_MEASURE.replace("ACTION", action).replace("NAME", name))
        browser.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, nargs="+", default=[500, 1000, 2000, 5000])
    parser.add_argument("--tokens", type=int, default=240, help="policy tokens of an episode")
    arguments = parser.parse_args()
    for num_episodes in arguments.episodes:
        with tempfile.TemporaryDirectory() as folder:
            run = write_run(Path(folder) / "run", num_episodes, num_policy_tokens=arguments.tokens)
            start = time.perf_counter()
            page = write_report(run)
            seconds, mib = time.perf_counter() - start, page.stat().st_size / 2**20
            found = measure(page)
            shown = found.pop("episodes")
        print(
            f"{shown:,.0f} of {num_episodes:,} episodes of {arguments.tokens} policy tokens; {mib:.1f} MiB, {seconds:.1f} s"
        )
        print("milliseconds:")
        print("        " + ", ".join(f"{name} {value:.0f}" for name, value in found.items()))


if __name__ == "__main__":
    main()
