"""Fixtures of the browser tests: one workbench for the session, a page that records what must not happen."""

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
    """The web server of a home that has some of everything. Tests leave its rows as they are."""
    made = furnish(tmp_path_factory.mktemp("furnished") / "home")
    yield made
    made.bench.end()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One headless Chromium for the session. Fails, never skips, if no browser starts."""
    with sync_playwright() as playwright:
        made = launch(playwright)
        if made is None:
            pytest.fail(HELP)
        yield made
        made.close()


@pytest.fixture(scope="session")
def axe() -> str:
    """The script of axe-core."""
    return (files("axe_playwright_python") / "axe.min.js").read_text()


@pytest.fixture(scope="session")
def wrong() -> list[str]:
    """What the pages of the session's context did that must not happen; emptied before each test."""
    return []


@pytest.fixture(scope="session")
def context(browser: Browser, wrong: list[str]) -> Iterator[BrowserContext]:
    """One for the session: its cache saves each page the scripts of the frame, half of a page's load."""
    made = browser.new_context(viewport=VIEWPORT)
    made.set_default_timeout(TIMEOUT_MS)
    watch(made, wrong)
    yield made
    made.close()


@pytest.fixture
def page(context: BrowserContext, wrong: list[str]) -> Iterator[Page]:
    """An empty page; the test fails if a console shows an error, a script breaks, a dialog opens, or a request leaves
    this machine. Cookies and stored values are forgotten after it.

    It is the same tab in all tests: its process has compiled the scripts, a third of a page's load.
    """
    made = context.pages[0] if context.pages else context.new_page()
    made.set_viewport_size(VIEWPORT)
    made.emulate_media(color_scheme="light", reduced_motion="no-preference")
    made.mouse.move(-1, -1)
    wrong.clear()
    yield made
    devtools = context.new_cdp_session(made)
    for opened in context.pages:
        if is_local(opened.url):
            origin = "{0.scheme}://{0.netloc}".format(urlsplit(opened.url))
            devtools.send("Storage.clearDataForOrigin", {"origin": origin, "storageTypes": "all"})
    devtools.detach()
    context.clear_cookies()
    if is_local(made.url):
        made.evaluate("sessionStorage.clear()")
    made.goto("about:blank")
    for opened in context.pages[1:]:
        opened.close()
    assert not wrong, wrong


def watch(context: BrowserContext, wrong: list[str]) -> None:
    """Note console errors, script errors, dialogs and requests to elsewhere of all pages in `wrong`.

    A network interface that comes or goes (containers starting) makes Chromium drop requests, loopback's too: not ours.
    """
    context.on("console", lambda m: wrong.append(f"console: {m.text}") if is_error(m) else None)
    context.on("weberror", lambda e: wrong.append(f"script: {e.error}"))
    context.on("dialog", lambda d: (wrong.append(f"dialog: {d.message}"), d.dismiss()))
    context.on("request", lambda r: wrong.append(f"outside: {r.url}") if not is_local(r.url) else None)


def is_error(message: ConsoleMessage) -> bool:
    return message.type == "error" and "ERR_NETWORK_CHANGED" not in message.text


def is_local(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in ("data", "blob") or parts.hostname in ("127.0.0.1", "localhost")
