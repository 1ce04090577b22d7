"""Section of the Settings page: notifications of finished jobs to a webhook."""

from collections.abc import Callable
from typing import Any

import gradio as gr

from app.views.manage import SMALL
from app.widgets.elements import QUIET, block, notice, on_load, section
from app.widgets.fields import one_line
from app.widgets.problems import show_errors
from speculoos import webhook
from speculoos.settings import Settings

LEAD = "For jobs that succeed or fail at least one minute after they were submitted."
EXAMPLE = "https://chat.example.org/hooks/…"
TEST = {"text": "Test message of Speculoos: finished jobs will be reported here.", "job": None}
ACTIVE = "Finished jobs are sent to {host}: one POST with the job's name, state and link."
INACTIVE = "No webhook is stored: nothing is sent."


def build(settings: Settings) -> None:
    section("Notifications", LEAD)
    with gr.Row(equal_height=True, elem_classes="sp-manage"):
        url = one_line("Webhook URL", "webhook-url", placeholder=EXAMPLE, type="password", max_length=2000)
    with gr.Row(elem_classes="sp-buttons"):
        keep = gr.Button("Save", variant="primary", elem_id="webhook-keep", **SMALL)
        test = gr.Button("Send test", elem_id="webhook-test", **SMALL)
        forget = gr.Button("Delete", variant="stop", elem_id="webhook-forget", **SMALL)
    message = block(elem_id="webhook-said")
    on_load(lambda: state(settings), message)
    for event in (keep.click, url.submit):
        event(lambda text: save_webhook(settings, text), url, [message, url], **QUIET)
    test.click(
        lambda: run_and_notify(lambda: webhook.post_to_webhook(settings, TEST), "The test was accepted."),
        None,
        message,
        **QUIET,
    )
    forget.click(
        lambda: run_and_notify(lambda: webhook.delete_webhook(settings), "Deleted; nothing is sent."),
        None,
        message,
        **QUIET,
    )


@show_errors()
def state(settings: Settings) -> str:
    """Whether a webhook is stored, and its host. The URL itself is never shown: it may contain a token."""
    host = webhook.webhook_host(settings)
    return notice(ACTIVE.format(host=host), "good") if host else notice(INACTIVE, "info")


@show_errors(gr.skip())
def save_webhook(settings: Settings, url: str) -> tuple[str, Any]:
    """Store a URL: the notice, and the field, emptied on success."""
    webhook.store_webhook(settings, url or "")
    return state(settings), ""


@show_errors()
def run_and_notify(act: Callable[[], None], words: str) -> str:
    """Run `act`. A notice with `words`, or the error."""
    act()
    return notice(words, "good")
