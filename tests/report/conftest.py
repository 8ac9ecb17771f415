"""Fixtures of invented run folders, and of a browser for their pages."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browser_page import CHROMIUM, until
from invented_runs import Letters, an_episode, fill_recorded_run, fill_run

from midthought.types import Trajectory


@pytest.fixture
def make_episode() -> Callable[..., Trajectory]:
    return an_episode


@pytest.fixture
def letters() -> Letters:
    return Letters()


@pytest.fixture(scope="session")
def recorded_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tests only read it."""
    return fill_recorded_run(tmp_path_factory.mktemp("recorded") / "recorded-run")


@pytest.fixture
def run_path(tmp_path: Path) -> Path:
    return fill_run(tmp_path / "demo-seed-1")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="the dev extra is not installed")
    if CHROMIUM is None:
        pytest.skip("no chromium binary was found: the page's script was not run")
    with playwright.sync_playwright() as started:
        flags = ["--no-sandbox", "--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND"]
        browser = started.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def open_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens a page; requests and what the browser complains of are errors at the end."""
    said: list[str] = []

    def open_page(path: Path, address: str = "", **options: Any) -> Any:
        page = browser.new_page(viewport={"width": 1200, "height": 900}, **options)
        page.set_default_timeout(20_000)
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on(
            "request",
            lambda request: said.append(request.url) if not request.url.startswith(("file:", "data:,")) else None,
        )
        page.goto(path.as_uri() + address)
        until(page, "performance.getEntriesByName('ready').length")
        return page

    yield open_page
    assert said == []
