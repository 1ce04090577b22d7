"""Lists whose rows are real links of our own (`?id=…`), followed within the page where scripts run.

A plain click tells the page which row was picked and writes the address, so reload, back and "open in new tab" work.
New values keep the keyboard focus on the row that had it.
"""

from collections.abc import Callable, Collection
from typing import Any

import gradio as gr

from app.components.text import safe, tag

KEEP_FOCUS = """
let focused = '';
element.addEventListener('focusin', (event) => { focused = event.target.getAttribute('href') || ''; });
element.addEventListener('focusout', (event) => { if (event.relatedTarget) focused = ''; });
watch('value', () => {
  if (!focused || document.activeElement !== document.body) return;
  for (const link of element.querySelectorAll('a')) if (link.getAttribute('href') === focused) return link.focus();
});
"""
FOLLOW = """
const follow = (event) => {
  const link = event.target.closest('a[data-pick]');
  if (!link || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  history.pushState({}, '', link.getAttribute('href'));
  trigger('pick', {id: link.dataset.pick});
};
element.addEventListener('click', follow);
if (props.main) window.addEventListener('popstate', () => {
  trigger('pick', {id: new URLSearchParams(location.search).get('id') || ''});
});
"""


def live(elem_id: str) -> gr.HTML:
    """A block that is drawn anew while people use it: the link that had the keyboard focus keeps it."""
    return gr.HTML(elem_id=elem_id, js_on_load=KEEP_FOCUS, apply_default_css=False)


def picker(elem_id: str, main: bool = False) -> gr.HTML:
    """A list of links made by `pick`. The page's `main` one also follows the browser's back button."""
    return gr.HTML(elem_id=elem_id, js_on_load=FOLLOW + KEEP_FOCUS, main=main, apply_default_css=False)


def on_pick(listed: gr.HTML, fn: Callable[..., Any], inputs: Any, outputs: list[Any]) -> None:
    """Call `fn(id, *inputs)` when a row was picked; "" means none (back to the list)."""

    def picked(event: gr.EventData, *given: Any) -> Any:
        return fn(str(event._data.get("id", ""))[:64], *given)

    listed.pick(picked, inputs, outputs, queue=False, show_progress="hidden", api_visibility="private")


def pick(page: str, row_id: str, content: str, **attributes: object) -> str:
    """A link to row `row_id` of `page` around `content` (HTML already)."""
    return tag("a", content, href=f"/{page}?id={row_id}" if row_id else f"/{page}", data_pick=row_id, **attributes)


def table(
    columns: list[str], rows: list[list[str]], label: str, wide_first: bool = False, named: Collection[str] = ()
) -> str:
    """A table of HTML cells. The first column is narrow unless asked.

    On a narrow screen each row becomes a card, in which the cells of `named` columns carry their name and those with
    nothing to say are left out.
    """
    head = tag("tr", "".join(tag("th", safe(c), scope="col") for c in columns))
    body = "".join(
        tag("tr", "".join(_cell(c, cell, named) for c, cell in zip(columns, row, strict=True))) for row in rows
    )
    style = "sp-table sp-wide-first" if wide_first else "sp-table"
    made = tag("table", tag("thead", head) + tag("tbody", body), class_=style, aria_label=label)
    return tag("div", made, class_="sp-table-wrap")


def _cell(column: str, cell: str, named: Collection[str]) -> str:
    return tag("td", cell, data_label=column if column in named else None, class_="sp-none" if cell == "–" else None)
