"""The page in a real browser: Chromium, headless, over loopback."""

import json
import re
import shutil
import time
from importlib import resources

import pytest

pytest.importorskip("lancedb", reason="the memory extra is not installed")
pytest.importorskip("fastapi", reason="the serve extra is not installed")
pytest.importorskip("prometheus_client", reason="the serve extra is not installed")

from serving import served

from midthought.memory.chunks import Chunk
from midthought.memory.service.auth import AccessPolicy
from midthought.memory.store import MemoryStore
from midthought.types import Task

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
TOKEN = "a-token-that-nobody-guesses"
HOSTILE = "</script><img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script> ${x}"
PAGE = resources.files("midthought.memory.service") / "page"


@pytest.fixture(scope="module")
def memory(tmp_path_factory, new_embedder):
    path = tmp_path_factory.mktemp("page") / "memory"
    lines = [("Ann", f"the tide is {number} hours late") for number in range(12)]
    lines += [("Bob", "a copper hand"), (HOSTILE, f"copper {HOSTILE}")]
    chunks = [
        Chunk(f"t_{number}", HOSTILE if number > 12 else "Tides", "t", speaker, words, "00:00:01", number)
        for number, (speaker, words) in enumerate(lines)
    ]
    MemoryStore.open(path, embedder=new_embedder()).build(chunks)
    return path


QUESTIONS = [
    Task(
        task_id=f"q{number}",
        prompt=f"How late is {number}? {HOSTILE}",
        answer=HOSTILE,
        labels={"kind": HOSTILE},
        evidence=("t_3",),
    )
    for number in range(30)
]


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="the dev extra is not installed")
    if CHROMIUM is None:
        pytest.skip("no chromium binary was found: the page's script was not run")
    with playwright.sync_playwright() as started:
        flags = ["--no-sandbox", "--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]
        browser = started.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser, memory, new_embedder):
    """Opens the page of a service; what it asks of other hosts, or complains of, is an error at the end."""
    said, running = [], []

    def open_page(path="/", **options):
        service = served(memory, new_embedder(), QUESTIONS, **options)
        running.append(service)
        url = service.__enter__().url
        page = browser.new_page()
        page.set_default_timeout(20_000)
        page.on("console", lambda message: said.append(message.text) if "status of 4" not in message.text else None)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on(
            "request", lambda request: None if request.url.startswith((url, "data:,")) else said.append(request.url)
        )
        page.goto(url + path)
        return page

    yield open_page
    for page in [page for context in browser.contexts for page in context.pages]:
        page.close()
    for service in running:
        service.__exit__(None, None, None)
    assert said == []


def until(page, expression):
    """Playwright's own waiting evaluates texts in the page, which its policy forbids."""
    ends_at = time.monotonic() + 20
    while not page.evaluate(expression):
        assert time.monotonic() < ends_at, expression
        page.wait_for_timeout(30)


def hits(page):
    until(page, "!document.querySelector('[aria-busy]') && document.getElementById('told').textContent")
    return page.locator("#hits .words").all_inner_texts()


def test_the_files_of_the_page_name_no_outside_asset():
    for name in ("page.html", "page.css", "page.js"):
        text = (PAGE / name).read_text("utf-8")
        assert not re.search(
            r"https?:|//[a-z]+\.|@import|url\(|innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text
        )
    assert not re.search(r"<script>|<style|\son[a-z]+=|\sstyle=", (PAGE / "page.html").read_text("utf-8"))


def test_a_search_shows_who_said_it_where_and_when_with_its_words_marked(open_page):
    page = open_page()
    page.fill("#query", "copper hand")
    page.press("#query", "Enter")
    assert hits(page)[0] == "a copper hand"
    first = page.locator(".hit").first
    assert first.locator(".said-by").inner_text().split("\n")[:3] == ["Bob", "Tides", "00:00:01"]
    assert first.locator("mark").all_inner_texts() == ["copper", "hand"]
    assert page.inner_text("#stats") == "14 chunks · 2 episodes · 3 speakers"


def test_what_was_said_before_and_after_is_opened_and_widened(open_page):
    page = open_page("/#search?q=5+hours&mode=full_text&k=5")
    hits(page)
    page.locator(".hit button", has_text="Before and after").first.click()
    page.wait_for_selector(".turn")
    assert page.locator(".turn p").count() == 9 and "5 hours" in page.locator(".turn.itself").inner_text()
    page.locator("button", has_text="Earlier").click()
    until(page, "document.querySelectorAll('.turn').length > 9")
    assert "0 hours" in page.locator(".turn").first.inner_text()


def test_filters_are_chosen_by_typing_stay_in_the_address_and_are_taken_back(open_page):
    page = open_page("/#search?q=copper&mode=full_text&k=10")
    assert len(hits(page)) == 2
    page.fill("#speaker", "bo")
    page.press("#speaker", "Enter")
    page.wait_for_selector("#chosen li")
    until(page, "document.querySelectorAll('.hit').length === 1")
    assert "speaker=Bob" in page.url and "mode=full_text" in page.url
    page.go_back()
    until(page, "document.querySelectorAll('.hit').length === 2")
    page.go_forward()
    until(page, "document.querySelectorAll('.hit').length === 1")
    page.click("#chosen button")
    until(page, "document.querySelectorAll('.hit').length === 2")


def test_the_keyboard_reaches_everything(open_page):
    page = open_page("/#search?q=tide&mode=full_text&k=5")
    hits(page)
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "query"
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    assert page.evaluate("[...document.querySelectorAll('.hit')].indexOf(document.activeElement)") == 0
    page.keyboard.press("Enter")
    page.wait_for_selector(".turn")
    page.keyboard.press("Escape")
    assert page.locator(".hit .context").first.is_hidden()
    assert page.evaluate("document.activeElement.className") == "hit"


def test_every_field_has_a_name_that_is_read_out(open_page):
    page = open_page()
    unnamed = page.evaluate(
        "[...document.querySelectorAll('input, select')].filter((one) => !one.labels?.length).map((one) => one.outerHTML)"
    )
    assert unnamed == []
    assert page.locator("html").get_attribute("lang") == "en"


def test_questions_are_leafed_through_and_lead_to_where_it_was_said(open_page):
    page = open_page("/#questions")
    page.wait_for_selector(".pair")
    assert page.inner_text("#counted") == "30 questions" and page.locator(".pair").count() == 20
    page.click("#next")
    until(page, "document.querySelectorAll('.pair').length === 10")
    assert page.inner_text("#place") == "21 to 30" and page.is_disabled("#next")
    page.locator(".pair button", has_text="Where it was said").first.click()
    page.wait_for_selector(".pair .turn.itself")
    assert "3 hours" in page.locator(".pair .turn.itself").inner_text()
    page.fill("#contains", "late is 7?")
    until(page, "document.querySelectorAll('.pair').length === 1")


def test_foreign_text_stays_text(open_page):
    page = open_page("/#search?q=copper&mode=full_text&k=10")
    assert any(words.endswith(HOSTILE) for words in hits(page))
    page.locator(".hit", has_text="onerror").locator("button", has_text="Only this speaker").click()
    page.wait_for_selector("#chosen li")
    page.click("[data-view=questions]")
    page.wait_for_selector(".pair")
    page.locator("summary").first.click()
    assert page.title() == "Memory · midthought"
    assert page.locator("img").count() == 0 and page.locator("script").count() == 1


def test_a_service_with_a_token_asks_for_it_once(open_page):
    page = open_page("/#search?q=copper&mode=full_text&k=10", access=AccessPolicy(token=TOKEN))
    page.wait_for_selector("#door[open]")
    page.fill("#token", "wrong")
    page.press("#token", "Enter")
    until(page, "document.getElementById('door-told').textContent.includes('not the token')")
    page.fill("#token", TOKEN)
    page.press("#token", "Enter")
    assert len(hits(page)) == 2
    page.reload()
    assert len(hits(page)) == 2 and not page.locator("#door[open]").count()
    assert json.loads(page.evaluate("JSON.stringify(Object.keys(localStorage))")) == []


def test_what_the_service_refuses_is_said(open_page):
    page = open_page()
    page.fill("#query", "x" * 4001)
    page.press("#query", "Enter")
    page.wait_for_selector("#told.failed")
    assert "4000" in page.inner_text("#told")
