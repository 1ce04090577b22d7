"""URLs of the pages, and events that open one. All URLs are local."""

from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import gradio as gr

from app.forms import PAIR
from app.paths import PAGES
from app.widgets.elements import QUIET, hidden
from tracking.tables import Job

GO = "(to) => { if (to && to.startsWith('/') && !to.startsWith('//')) location.href = to; }"


def on_event_open(events: Any, act: Callable[..., Any], inputs: Any, message: gr.HTML) -> None:
    """On any of `events`, call `act(*inputs)`, which returns (error for `message`, URL), then open the URL unless it
    is ""."""
    target = hidden()
    for event in events if isinstance(events, list) else [events]:
        done = event(act, inputs, [message, target], **QUIET)
        done.then(None, target, None, js=GO, api_visibility="private")


def chat_link(base: str, draft: str = "") -> str:
    """`/playground?model=starter@my-heads`."""
    return f"{PAGES['playground']}?" + urlencode({"model": f"{base}@{draft}" if draft else base})


def compare_link(base: str, draft: str) -> str:
    """URL that compares a draft with its base model."""
    return f"{PAGES['compare']}?" + urlencode([("models", base), ("models", f"{base}@{draft}")])


def serve_link(base_id: str, checkpoint_id: str = "") -> str:
    """URL of the form that starts a server for this model."""
    return f"{PAGES['servers']}?servers-model={base_id}{PAIR}{checkpoint_id}"


def clone_form(job: Job) -> str:
    """URL of the form with the values of `job`; "" for other kinds."""
    if job.kind == "train":
        return f"/runs/new?clone={job.id}"
    if job.kind == "import_draft" and job.request.get("source") == "upload":  # the uploaded files no longer exist
        return f"/models/drafts?base={job.request.get('base_id', '')}"
    if job.kind == "generate_data":
        return f"/data?id={job.request.get('source_id', '')}&clone={job.id}"
    return ""
