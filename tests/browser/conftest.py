"""Fixtures of the browser tests: one workbench for the session, a page that records errors."""

from collections.abc import Iterator
from importlib.resources import files
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect, sync_playwright

from tests.browser.furnished import Furnished, furnish
from tests.browser.workbench import Workbench, add_base, add_heads, make_workbench
from tests.tools.browser import HELP, launch
from tests.tools.databases import Databases

TIMEOUT_MS = 120_000  # on a machine under load a form that looks at a model takes half a minute
VIEWPORT = {"width": 1280, "height": 900}
expect.set_options(timeout=TIMEOUT_MS)


@pytest.fixture(scope="session")
def workbench(tmp_path_factory: pytest.TempPathFactory, databases: Databases) -> Iterator[Workbench]:
    """Web and inference server of a home with base `tiny` and its checkpoint `heads`. Other tests may add rows."""
    bench = make_workbench(tmp_path_factory.mktemp("workbench") / "home", DATABASE_URL=databases.url())
    add_heads(bench, add_base(bench), "heads")
    try:
        bench.start("inference", "web")
        yield bench
    finally:
        bench.end()


@pytest.fixture(scope="session")
def furnished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Furnished]:
    """The web server of a home that has rows of every kind. Tests do not change its rows."""
    furnished_home = furnish(tmp_path_factory.mktemp("furnished") / "home")
    yield furnished_home
    furnished_home.bench.end()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One headless Chromium for the session. Fails, never skips, if no browser starts."""
    with sync_playwright() as playwright:
        chromium = launch(playwright)
        if chromium is None:
            pytest.fail(HELP)
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def axe() -> str:
    """The script of axe-core."""
    return (files("axe_playwright_python") / "axe.min.js").read_text()


@pytest.fixture(scope="session")
def page_errors() -> list[str]:
    """Errors, dialogs and outside requests of the pages of the session's context; emptied before each test."""
    return []


@pytest.fixture(scope="session")
def context(browser: Browser, page_errors: list[str]) -> Iterator[BrowserContext]:
    """One context for the session: its cache holds the scripts of the frame, which take half of a page's load."""
    new_context = browser.new_context(viewport=VIEWPORT)
    new_context.set_default_timeout(TIMEOUT_MS)
    watch(new_context, page_errors)
    yield new_context
    new_context.close()


@pytest.fixture
def page(context: BrowserContext, page_errors: list[str]) -> Iterator[Page]:
    """An empty page; the test fails if a console shows an error, a script breaks, a dialog opens, or a request leaves
    this machine. Cookies and stored values are deleted after the test.

    All tests share one tab: its process has compiled the scripts, which takes a third of a page's load.
    """
    tab = context.pages[0] if context.pages else context.new_page()
    tab.set_viewport_size(VIEWPORT)
    tab.emulate_media(color_scheme="light", reduced_motion="no-preference")
    tab.mouse.move(-1, -1)
    page_errors.clear()
    yield tab
    devtools = context.new_cdp_session(tab)
    for opened in context.pages:
        if is_local(opened.url):
            origin = "{0.scheme}://{0.netloc}".format(urlsplit(opened.url))
            devtools.send("Storage.clearDataForOrigin", {"origin": origin, "storageTypes": "all"})
    devtools.detach()
    context.clear_cookies()
    if is_local(tab.url):
        tab.evaluate("sessionStorage.clear()")
    tab.goto("about:blank")
    for opened in context.pages[1:]:
        opened.close()
    assert not page_errors, page_errors


def watch(context: BrowserContext, page_errors: list[str]) -> None:
    """Append console errors, script errors, dialogs and outside requests of all pages to `page_errors`.

    When a network interface appears or disappears (containers starting), Chromium drops requests, also to loopback.
    Such an error is ignored.
    """
    context.on("console", lambda m: page_errors.append(f"console: {m.text}") if is_error(m) else None)
    context.on("weberror", lambda e: page_errors.append(f"script: {e.error}"))
    context.on("dialog", lambda d: (page_errors.append(f"dialog: {d.message}"), d.dismiss()))
    context.on("request", lambda r: page_errors.append(f"outside: {r.url}") if not is_local(r.url) else None)


def is_error(message: ConsoleMessage) -> bool:
    return message.type == "error" and "ERR_NETWORK_CHANGED" not in message.text


def is_local(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in ("data", "blob") or parts.hostname in ("127.0.0.1", "localhost")
