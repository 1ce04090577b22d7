"""The frame of every page: brand, the six sections, search, theme switch, the tabs of a section and the status bar."""

from app.i18n import t
from app.paths import NEEDS_ROWS, PAGES, SECTIONS, section_of
from app.theme import asset
from app.widgets.text import safe, tag

ICONS = (
    "M4 5h16v11H9l-4 3v-3H4z",
    "M12 3l8 4.5v9L12 21l-8-4.5v-9zM4 7.5l8 4.5 8-4.5M12 12v9",
    "M4 6h16M4 12h16M4 18h10",
    "M7 4l12 8-12 8z",
    "M5 20V10M12 20V4M19 20v-7",
    "M4 7h9m5 0h2M4 17h2m5 0h9M15.5 4.5v5M8.5 14.5v5",
)
"""Paths of the icons of SECTIONS that the bar shows on a phone, in a box of 24 × 24."""


def bar(page: str, can_log_out: bool = False) -> str:
    """Brand, links to the sections, search, glossary and theme buttons and, with logins, a button to log out."""
    section = section_of(page)
    links = ""
    for (name, pages), drawing in zip(SECTIONS.items(), ICONS, strict=True):
        path = tag("path", "", d=drawing)
        icon = tag("svg", path, viewBox="0 0 24 24", class_="sp-nav-icon", aria_hidden="true")
        first = next(iter(pages))
        current = None if name != section else "page" if page == first else "true"
        links += tag("a", icon + safe(t(name)), href=PAGES[first], aria_current=current)
    at_home = "page" if page == "home" else None
    mark = f'<img src="{asset("icon.svg")}" alt="" width="26" height="26">'
    brand = tag("a", mark + tag("span", "Speculoos"), href="/", class_="sp-brand", aria_current=at_home)
    nav = tag("nav", links, class_="sp-nav", aria_label=t("Sections"))
    find = t("Search") + tag("kbd", t("Ctrl K"), aria_hidden="true")
    tools = tag("button", find, class_="sp-find-button", type="button", data_sp="find")
    tools += tag("button", "?", class_="sp-theme", type="button", data_sp="words", aria_label=t("Glossary"))
    tools += tag("button", "", class_="sp-theme", type="button", data_sp="theme", aria_label=t("Color theme"))
    if can_log_out:
        out = tag("button", t("Log out"), class_="sp-small-button", type="submit")
        tools += tag("form", out, method="post", action="/logout", class_="sp-leave")
    skip = tag("a", t("Skip to the page"), href=f"#page-{page}", class_="sp-skip")
    return tag("div", skip + brand + nav + tag("div", tools, class_="sp-tools"), class_="sp-top")


def tabs(page: str) -> str:
    """Links to the pages of the same section; "" if there are no others."""
    section = section_of(page)
    pages = SECTIONS.get(section, {})
    if len(pages) < 2:
        return ""
    links = "".join(
        tag("a", safe(t(label)), href=PAGES[name], aria_current="page" if name == page else None)
        for name, label in pages.items()
        if name == page or name not in NEEDS_ROWS
    )
    return tag("nav", links, class_="sp-tabs", aria_label=t("Pages of {section}", section=t(section)))
