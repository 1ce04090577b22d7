"""Lists whose rows are links (`?id=…`) that a script opens without reloading the page.

A plain click writes the URL and sends an event, so reload, back and "open in new tab" work. The query of the list stays
in the URL of a row. New values keep the keyboard focus on the row that had it.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import gradio as gr

from app.i18n import t
from app.paths import PAGES
from app.widgets.bulk import BULK_SCRIPT
from app.widgets.elements import QUIET
from app.widgets.list_query import ListQuery, list_url
from app.widgets.terms import label as labelled
from app.widgets.text import safe, tag
from tracking.paging import Page

KEEP_FOCUS = """
let focused = '';
element.addEventListener('focusin', (event) => { focused = event.target.getAttribute('href') || ''; });
element.addEventListener('focusout', (event) => { if (event.relatedTarget) focused = ''; });
const unfolded = new Set();
element.addEventListener('toggle', ({target}) => {
  if (target.isConnected) unfolded[target.open ? 'add' : 'delete'](target.firstElementChild.textContent);
}, true);
watch('value', () => {
  for (const part of element.querySelectorAll('details')) part.open = unfolded.has(part.firstElementChild.textContent);
  if (!focused || document.activeElement !== document.body) return;
  for (const link of element.querySelectorAll('a')) if (link.getAttribute('href') === focused) return link.focus();
});
"""
FOLLOW = """
const follow = (event) => {
  const link = event.target.closest('a[data-pick], a[data-offset]');
  if (!link || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  const to = new URL(link.href), here = new URL(location.href).searchParams;
  for (const key of link.dataset.pick ? ['show', 'find', 'order', 'of', 'from', 'base'] : ['base']) {
    if (here.has(key) && !to.searchParams.has(key)) to.searchParams.set(key, here.get(key));
  }
  history.pushState({}, '', to);
  trigger('pick', {});
  if (link.dataset.offset !== undefined) element.scrollIntoView({block: 'start'});
};
element.addEventListener('click', follow);
if (props.main) window.addEventListener('popstate', () => trigger('pick', {}));
"""
MANY_COLUMNS = 6
"""A list with as many columns has a menu that hides columns (static/tables.js)."""


def live(elem_id: str) -> gr.HTML:
    """A block that is redrawn while it is in use: the link with the keyboard focus keeps it."""
    return gr.HTML(elem_id=elem_id, js_on_load=KEEP_FOCUS, apply_default_css=False)


def picker(elem_id: str, main: bool = False, bulk: bool = False) -> gr.HTML:
    """A list of links created by `pick`. The `main` list of a page also follows the browser's back button; `bulk`: rows
    have checkboxes."""
    script = FOLLOW + KEEP_FOCUS + (BULK_SCRIPT if bulk else "")
    return gr.HTML(elem_id=elem_id, js_on_load=script, main=main, apply_default_css=False)


def on_pick(listed: gr.HTML, query: gr.Textbox, fn: Callable[[str], Any], outputs: list[Any]) -> None:
    """Call `fn(query)` with the query of the URL when a link changed it.

    The URL is read when the event is sent, into the hidden text `query`: of the events during a running one Gradio
    sends the last, but with the data of the first.
    """
    listed.pick(fn, query, outputs, js="() => [window.location.search]", trigger_mode="always_last", **QUIET)


def pick(page: str, row_id: str, content: str, **attributes: object) -> str:
    """A link to row `row_id` of `page`, or to the list; `content` is HTML."""
    path = PAGES[page]
    defaults = {"href": f"{path}?id={row_id}" if row_id else path, "data_pick": row_id}
    return tag("a", content, **{**defaults, **attributes})


def pager(name: str, page: Page[Any], query: ListQuery) -> str:
    """Which rows of page `name` are shown, with links to those before and after; "" if all are shown."""
    return pager_links(page, lambda offset: list_url(name, offset, query))


def pager_links(page: Page[Any], address_of: Callable[[str], str]) -> str:
    """A pager; `address_of(row)` returns the URL of the list from a row on."""
    if page.newer is None and page.older is None:
        return ""
    links = []
    for text, offset in zip((t("← Previous"), t("Next →")), (page.newer, page.older), strict=True):
        to = {"href": address_of(offset), "data_offset": offset} if offset is not None else {"aria_disabled": "true"}
        links.append(tag("span" if offset is None else "a", safe(text), class_="sp-small-button", **to))
    html = links[0] + tag("span", safe(page.range)) + links[1]
    return tag("nav", html, class_="sp-pager", aria_label=t("Pages of this list"))


def table(
    columns: list[str],
    rows: list[list[str]],
    label: str,
    wide_first: bool = False,
    named: Collection[str] = (),
    heads: Mapping[str, str] | None = None,
    count: str = "",
    matrix: bool = False,
    tools: str = "",
) -> str:
    """A table of HTML cells; `wide_first` widens the first column, `heads` are HTML heads of some columns, `count` is a
    text above a list and `tools` HTML beside it. A click anywhere on a row opens its `sp-row-name`. A table without
    links and buttons takes the keyboard focus itself, so that it can be scrolled.

    On a narrow screen each row becomes a card: cells of `named` columns show the column's name, empty cells are hidden.
    A `matrix` stays a table there and scrolls sideways beside its first column.
    """
    named_heads = [(heads or {}).get(column) or labelled(column) for column in columns]
    head = tag("tr", "".join(tag("th", title, scope="col") if title else tag("td") for title in named_heads))
    body = "".join(
        tag("tr", "".join(_cell(c, cell, named) for c, cell in zip(columns, row, strict=True))) for row in rows
    )
    style = f"sp-table{' sp-wide-first' * wide_first}{' sp-matrix' * matrix}"
    columns_of, menu = f"{label}, {len(columns)}", bool(count) and len(columns) >= MANY_COLUMNS
    html = tag("thead", head) + tag("tbody", body)
    html = tag("table", html, class_=style, aria_label=label, data_columns=columns_of if menu else None)
    tabindex = None if "<a " in body or "<button" in body else "0"
    button = tag("button", t("Columns"), type="button", class_="sp-small-button", popovertarget="sp-columns")
    bar = tag("span", safe(count)) + tag("span", tools + (button if menu else ""), class_="sp-links")
    above = tag("div", bar, class_="sp-table-bar") if count else ""
    return above + tag("div", html, class_="sp-table-wrap", tabindex=tabindex)


def _cell(column: str, cell: str, named: Collection[str]) -> str:
    return tag("td", cell, data_label=column if column in named else None, class_="sp-none" if cell == "–" else None)
