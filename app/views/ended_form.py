"""Who is told when a long job has ended, on the Settings page: this browser, and an address that takes a message."""

from collections.abc import Callable
from typing import Any

import gradio as gr

from app.views.manage import SMALL
from app.widgets.elements import QUIET, block, notice, on_load, section
from app.widgets.fields import one_line
from app.widgets.problems import saying_errors
from app.widgets.text import tag
from speculoos import webhook
from speculoos.settings import Settings

LEAD = "Of jobs that ended by themselves, well or badly, a minute or more after they were asked for."
EXAMPLE = "https://chat.example.org/hooks/…"
TEST = {"text": "A test of Speculoos: jobs that have ended will be told of here.", "job": None}
TOLD = "Ends are told to {host}: one POST with the job's name, state and link."
NOBODY = "No address is kept: nothing is sent."


def build(settings: Settings) -> None:
    """Wire the section inside the current Blocks."""
    section("When a job has ended", LEAD)
    block(tag("div", "", data_sp="notify", class_="sp-link-row"), elem_id="settings-notify")  # static/notify.js
    with gr.Row(equal_height=True, elem_classes="sp-manage"):
        url = one_line("Address of a webhook", "webhook-url", placeholder=EXAMPLE, type="password", max_length=2000)
    with gr.Row(elem_classes="sp-buttons"):
        keep = gr.Button("Keep this address", variant="primary", elem_id="webhook-keep", **SMALL)
        test = gr.Button("Send a test", elem_id="webhook-test", **SMALL)
        forget = gr.Button("Forget it", variant="stop", elem_id="webhook-forget", **SMALL)
    said = block(elem_id="webhook-said")
    on_load(lambda: state(settings), said)
    for event in (keep.click, url.submit):
        event(lambda given: kept(settings, given), url, [said, url], **QUIET)
    test.click(lambda: done(lambda: webhook.send(settings, TEST), "It took the test."), None, said, **QUIET)
    forget.click(lambda: done(lambda: webhook.forget(settings), "Forgotten; nothing is sent."), None, said, **QUIET)


@saying_errors()
def state(settings: Settings) -> str:
    """Whether an address is kept, and of which host; never the address: it may hold a token."""
    host = webhook.host(settings)
    return notice(TOLD.format(host=host), "good") if host else notice(NOBODY, "info")


@saying_errors(gr.skip())
def kept(settings: Settings, url: str) -> tuple[str, Any]:
    """Keep an address: what came of it, and the field, emptied when it went well."""
    webhook.keep(settings, url or "")
    return state(settings), ""


@saying_errors()
def done(act: Callable[[], None], words: str) -> str:
    """Do it, and say so or why not."""
    act()
    return notice(words, "good")
