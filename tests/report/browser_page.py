"""What tests of pages in headless Chromium share."""

import shutil
import time
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def listed(page: Any) -> list[str]:
    """Arm, iteration and task of each listed episode."""
    return page.evaluate(
        "listed.numbers.map((number) => `${armOf(number)} ${EPISODES.step[number]} ${taskOf(number)[0]}`)"
    )


def inspected(page: Any) -> dict[str, str]:
    """The values that the page shows of a token."""
    pairs = "[...inspector.querySelectorAll('dl div')].map((each) => [...each.children].map((one) => one.textContent))"
    return dict(page.evaluate(pairs))


def until(page: Any, expression: str) -> Any:
    """Playwright's own waiting evaluates texts in the page, which its policy forbids."""
    ends_at = time.monotonic() + 20
    while not (value := page.evaluate(expression)):
        assert time.monotonic() < ends_at, expression
        page.wait_for_timeout(20)
    return value
