"""Header of every page: brand, navigation, theme switch and the status strip."""

from app.widgets.elements import block
from app.widgets.text import safe, tag
from speculoos.settings import Settings

NAV = (
    ("Home", "/"),
    ("Models", "/models"),
    ("Data", "/data"),
    ("Train", "/train"),
    ("Jobs", "/jobs"),
    ("Playground", "/playground"),
    ("Compare", "/compare"),
    ("Checkpoints", "/checkpoints"),
    ("Evaluations", "/evaluations"),
    ("Storage", "/storage"),
    ("Settings", "/settings"),
)
TAB_PAGES = (("Experiments", "/experiments"), ("Compare trainings", "/trainings"))
"""Pages without a link in the bar; they are reached from Jobs, which is marked instead."""
TABS = (("Jobs", "/jobs"), ("Experiments", "/experiments"))
MARK = (
    '<svg viewBox="0 0 32 32" width="26" height="26" aria-hidden="true"><rect x="2" y="7" width="28" height="18" rx="5"'
    ' fill="currentColor"/><path d="M8 16h4m3 0h4m3 0h2" stroke="var(--sp-surface)" stroke-width="3"'
    ' stroke-linecap="round"/></svg>'
)


def frame(current: str, settings: Settings) -> None:
    """Bar and status strip of the page at path `current`, inside the current Blocks. A script (static/changes.js) fills
    and updates the strip from `/api/changes`."""
    block(bar(current, settings.asks_login))
    block(tag("div", "", data_sp="strip"), elem_id="strip")


def page_id(path: str) -> str:
    return f"page-{path.strip('/') or 'home'}"


def bar(current: str, can_log_out: bool = False) -> str:
    """Brand, links to all pages, the theme switch and, with logins, a button to log out."""
    links = "".join(tag("a", safe(label), href=path, aria_current=_mark(path, current)) for label, path in NAV)
    brand = tag("a", MARK + tag("span", "Speculoos"), href="/", class_="sp-brand")
    switch = tag("button", "", class_="sp-theme", type="button", data_sp="theme", aria_label="Color theme")
    nav = tag("nav", links, class_="sp-nav", aria_label="Pages", data_sp="nav")
    out = tag("button", "Log out", class_="sp-small-button", type="submit")
    leave = tag("form", out, method="post", action="/logout", class_="sp-leave") if can_log_out else ""
    skip = tag("a", "Skip to the page", href=f"#{page_id(current)}", class_="sp-skip")
    return tag("div", skip + brand + nav + switch + leave, class_="sp-top")


def tabs(current: str) -> None:
    """Tabs of the pages related to Jobs. A page that needs URL parameters has a tab only while it is open."""
    shown = [page for page in dict.fromkeys((*TABS, *TAB_PAGES)) if page in TABS or page[1] == current]
    links = "".join(
        tag("a", safe(label), href=path, aria_current="page" if path == current else None) for label, path in shown
    )
    block(tag("nav", links, class_="sp-tabs", aria_label="Jobs and experiments"))


def _mark(path: str, current: str) -> str | None:
    """aria-current of a link: "page" for the current page, "true" for Jobs on a page of TAB_PAGES."""
    is_parent = path == "/jobs" and current in {page for _, page in TAB_PAGES}
    return "page" if path == current else "true" if is_parent else None
