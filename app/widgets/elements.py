"""Elements of every page: header, notice, empty state, tiles, facts, hidden fields. They escape text."""

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal

import gradio as gr
from gradio.context import Context

from app.i18n import t
from app.widgets.terms import label as labelled
from app.widgets.text import safe, safe_with_code, tag

Tone = Literal["info", "good", "warn", "bad"]
QUIET = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
"""Options of an event that bypasses the queue, shows no spinner and is not part of the API."""
LOADING = "(...values) => { window.speculoos.loading(); return values; }"
LOADED = "() => { window.speculoos.loaded(); }"
HIDDEN = "sp-hidden"
SIGNS = {"info": "i", "good": "✓", "warn": "!", "bad": "×"}


def block(html: str = "", **options) -> gr.HTML:
    """`gr.HTML` without Gradio's text styles. `html` must be escaped already."""
    return gr.HTML(html, apply_default_css=False, **options)


def hidden(elem_id: str | None = None) -> gr.Textbox:
    """A hidden text of a page, such as the open row's id. The style sheet hides it: Gradio's `visible="hidden"` is lost
    when the surrounding column is shown again."""
    return gr.Textbox(elem_id=elem_id, elem_classes=HIDDEN, container=False, show_label=False)


def closed_accordion(title: str, **options: Any) -> gr.Accordion:
    """A closed accordion whose fields are on the page from the start.

    With `open=False` Gradio creates the fields when the accordion is opened and one animation frame later resets
    them to their initial values, so input in between is lost. It tests for `false` only, so 0 closes the accordion
    without this problem.
    """
    return gr.Accordion(title, open=0, **options)  # type: ignore[arg-type]


def page_header(title: str, lead: str) -> gr.HTML:
    """The page's title and one sentence about its purpose."""
    html = tag("h1", safe(title)) + tag("p", safe(lead), class_="sp-lead")
    return block(tag("header", html, class_="sp-page-header"))


def stop_button(elem_id: str) -> gr.Button:
    """Disabled until the page's script finds something that can be stopped (app/static/dom.js: allow)."""
    return gr.Button(t("Stop"), variant="stop", elem_id=elem_id, interactive=False, scale=0, min_width=80, size="md")


def section(title: str, lead: str = "") -> gr.HTML:
    """A heading inside a page."""
    lead_html = tag("p", safe_with_code(lead), class_="sp-lead") if lead else ""
    return block(tag("h2", safe(title), class_="sp-section") + lead_html)


def link_button(label: str, to: str, main: bool = False, **attributes: object) -> str:
    """A link that looks like a button; `main` highlights it."""
    return tag("a", safe(label), href=to, class_="sp-button" if main else "sp-button sp-quiet", **attributes)


def notice(
    text: str, tone: Tone = "info", link: str = "", link_text: str = "", more: Iterable[tuple[str, str, str]] = ()
) -> str:
    """One sentence in a colored strip with a sign, and `more` sentences with links; `link` must be a URL of this
    application."""
    parts = []
    for sentence, to, name in ((text, link, link_text), *more):
        parts += [safe_with_code(sentence), tag("a", safe(name or to), href=to) if to else ""]
    sign = tag("span", SIGNS[tone], class_="sp-sign", aria_hidden="true")
    role = "alert" if tone == "bad" else "status"
    return tag("div", sign + tag("span", " ".join(parts).rstrip()), class_=f"sp-notice sp-{tone}", role=role)


def empty_state(title: str, text: str, link: str = "", link_text: str = "") -> str:
    """Text of an empty list: what it will contain and how to add it."""
    action = link_button(link_text, link, main=True) if link else ""
    return tag("div", tag("h2", safe(title)) + tag("p", safe(text)) + action, class_="sp-empty")


def detail_head(name: str, beside: str = "") -> str:
    """Name of the open row, as the page's title; `beside`: badges and notes as HTML."""
    return tag("div", tag("h1", safe(name), class_="sp-detail-title") + beside, class_="sp-detail-head")


def fold(title: str, html: str) -> str:
    """Closed details; "" without content."""
    return tag("details", tag("summary", safe(title)) + html, class_="sp-fold") if html else ""


def row_note(text: object) -> str:
    """Small text below or beside a name; "" for an empty text."""
    return tag("span", safe(text), class_="sp-row-note") if text else ""


def tiles(items: Iterable[tuple[str, object, str]]) -> str:
    """A row of values: name above, value large, note small."""
    html = ""
    for name, value, note in items:
        content = tag("span", labelled(name), class_="sp-tile-label") + tag("span", safe(value), class_="sp-tile-value")
        html += tag("div", content + (tag("span", safe(note), class_="sp-tile-note") if note else ""), class_="sp-tile")
    return tag("div", html, class_="sp-tiles")


def facts(items: Iterable[tuple[str, object]]) -> str:
    """A definition list: name and value, both escaped. Rows whose value is empty are left out."""
    rows = (tag("dt", labelled(k)) + tag("dd", safe(v)) for k, v in items if v not in ("", None))
    return tag("dl", "".join(rows), class_="sp-facts")


def badge(text: str, tone: Tone | str = "") -> str:
    """A word in a rounded box, such as a job's state."""
    return tag("span", safe(text), class_=f"sp-badge sp-{tone}" if tone else "sp-badge")


def progress_bar(done: float, total: float | None, label: str) -> str:
    """A bar with its label in words. Without `total` it shows motion only."""
    if not total:
        return tag("div", tag("progress") + tag("span", safe(label)), class_="sp-progress")
    bar = tag("progress", value=done, max=total, aria_label=label or t("progress"))
    return tag("div", bar + tag("span", safe(label or f"{done / total:.0%}")), class_="sp-progress")


def on_load(fn, outputs) -> None:
    """Run `fn` when the current page is opened. A `gr.Request` parameter of `fn` receives the page's query string.

    The page becomes visible after all these events finish (static/early.js), so its layout does not move."""
    event = Context.root_block.load(fn, None, outputs, js=LOADING, **QUIET)
    event.then(None, None, None, js=LOADED, api_visibility="private")


def loads() -> int:
    """Number of events of the current Blocks that run when a page is opened."""
    return sum(any(event == "load" for _, event in fn.targets) for fn in Context.root_block.fns.values())


def on_typing(controls, fn, inputs, outputs, js: str | None = None):
    """Run `fn` when the user changes any of `controls`: one event for all, so that the results keep their order.

    Clearing a dropdown of several values sends no `input` event, so these use `change`."""
    events = [control.change if getattr(control, "multiselect", None) else control.input for control in controls]
    return gr.on(events, fn, inputs, outputs, js=js, trigger_mode="always_last", **QUIET)


def on_changes(fields, fn, outputs) -> None:
    """Run `fn(*fields)` when any of `fields` changes for any reason, including pasted text and set values."""
    gr.on([field.change for field in fields], fn, fields, outputs, **QUIET, trigger_mode="always_last")


def keep_in_address(fields: Mapping[str, Any], resets: Collection[str] = (), kept: Collection[str] = ()) -> None:
    """Write what the user enters into `fields` to parameters of the URL, so that a reload keeps it. A change of a field
    in `resets` removes the other parameters but `kept`, since it gives these fields new values."""
    for name, field in fields.items():
        others = [other for other in fields if other != name and other not in kept] if name in resets else []
        js = f"(value) => {{ window.speculoos.keep({json.dumps(name)}, value, {json.dumps(others)}); }}"
        field.input(None, field, None, js=js, api_visibility="private")


LISTEN = "element.addEventListener('sp-stale', () => trigger('stale', {}));"


def on_change(page: str, fn, inputs=None, outputs=None, *, chosen: str, seen: str) -> None:
    """Run `fn` when the rows that `page` shows have changed.

    A script (static/changes.js) requests the page's signature from `/api/changes`, less often while nothing changes,
    and compares it with the hidden text `seen`; `chosen` is the id of the hidden text with the open row's id. Such a
    request costs a tenth of a Gradio event. `fn` returns gr.skip() if nothing changed.
    """
    mark = tag("span", "", data_sp="changes", data_page=page, data_chosen=chosen, data_seen=seen)
    listener = gr.HTML(mark, js_on_load=LISTEN, apply_default_css=False, elem_classes=HIDDEN)
    listener.stale(fn, inputs, outputs, **QUIET)
