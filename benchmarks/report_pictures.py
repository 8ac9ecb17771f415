"""Writes the pictures of README.md and docs/runs.md: parts of a run's report in headless Chromium.

`python -m benchmarks.report_pictures RUN docs NAME…`; `make pictures` has the runs. Look at the pictures afterwards.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

from midthought.report.html import write_report

PICTURES = {
    "report": ("", ".page", ("", ""), (1100, 1000), "light"),
    "report-curves": ("", "#curves", ("", ""), (1180, 820), "light"),
    "report-tokens": (
        "arm=train&step=1&sort=worst&color=advantage",
        "#trajectories",
        ("hover", ".span.policy .t:nth-child(6)"),
        (1180, 960),
        "light",
    ),
    "report-samples": ("arm=train&step=1&sort=spread&view=samples", "#detail", ("", ""), (1180, 860), "light"),
    "report-differences": ("arm=after&answer=lost&view=diff", "#trajectories", ("", ""), (1180, 760), "dark"),
}
"""Name: address, the element at the top, what the pointer does, width and height, colors."""


def take(browser: Any, page: Path, folder: Path, names: list[str]) -> None:
    for name in names:
        address, top, (action, target), (width, height), scheme = PICTURES[name]
        opened = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
        opened.goto(f"{page.resolve().as_uri()}#{address}")
        while not opened.evaluate("performance.getEntriesByName('ready').length"):
            opened.wait_for_timeout(20)
        opened.evaluate(
            f"document.documentElement.style.scrollBehavior = 'auto'; document.querySelector('{top}').scrollIntoView()"
        )
        opened.wait_for_timeout(200)
        if action:
            getattr(opened, action)(target)
        opened.screenshot(path=folder / f"{name}.png")
        opened.close()


def main() -> None:
    from playwright.sync_api import sync_playwright

    (run, folder), names = map(Path, sys.argv[1:3]), sys.argv[3:]
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        take(browser, write_report(run), folder, names)
        browser.close()


if __name__ == "__main__":
    main()
