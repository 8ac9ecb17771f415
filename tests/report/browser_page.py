"""What tests of pages in headless Chromium share."""

from __future__ import annotations

import shutil
import time
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def until(page: Any, expression: str) -> Any:
    """Playwright's own waiting evaluates texts in the page, which its policy forbids."""
    ends_at = time.monotonic() + 20
    while not (value := page.evaluate(expression)):
        assert time.monotonic() < ends_at, expression
        page.wait_for_timeout(20)
    return value
