"""API keys of the inference server on the Settings page: create (shown once), list without secrets, revoke."""

from typing import Any

import gradio as gr

from app.views.manage import SMALL
from app.widgets.elements import QUIET, block, notice, on_load
from app.widgets.fields import dropdown, one_line
from app.widgets.formatting import ago
from app.widgets.picker import table
from app.widgets.problems import error_text, show_errors
from app.widgets.text import safe, tag
from speculoos.errors import SpeculoosError
from speculoos.settings import Settings
from tracking import keys
from tracking.db import reading, writing

NONE_YET = "No keys yet. Programs on this machine can also use the token in {path}."
MADE = "Created “{name}”. Copy the key now: it is not stored and cannot be shown again."


def build(settings: Settings) -> None:
    listed = block(elem_id="keys-list")
    with gr.Row(equal_height=True, elem_classes="sp-manage"):
        name = one_line("New key for", "keys-name", placeholder="user or program", max_length=120, scale=2)
        doomed = dropdown([], label="Key to revoke", value=None, elem_id="keys-doomed", scale=2)
    with gr.Row(elem_classes="sp-buttons"):
        make = gr.Button("Create key", variant="primary", elem_id="keys-make", **SMALL)
        revoke = gr.Button("Revoke", variant="stop", elem_id="keys-revoke", **SMALL)
    message = block(elem_id="keys-said")
    secret = one_line("The new key", "keys-secret", interactive=False, visible=False, buttons=["copy"])
    shown = [listed, doomed]
    on_load(lambda: view(settings), shown)
    for event in (make.click, name.submit):
        event(lambda text: make_key(settings, text), name, [message, secret, name, *shown], **QUIET)
    revoke.click(lambda chosen: revoke_key(settings, chosen), doomed, [message, secret, *shown], **QUIET)


@show_errors(gr.skip())
def view(settings: Settings) -> list[Any]:
    with reading(settings) as session:
        live = keys.list_keys(session)
    choices = gr.Dropdown([(f"{key.name} ({key.hint}…)", key.id) for key in live], value=None)
    if not live:
        return [tag("p", safe(NONE_YET.format(path=settings.inference_token_file)), class_="sp-lead"), choices]
    lines = [
        [safe(key.name), tag("code", safe(key.hint + "…")), safe(ago(key.created_at)), safe(ago(key.last_used_at))]
        for key in live
    ]
    return [
        table(["Name", "Starts with", "Created", "Last used"], lines, "Keys", True, {"Created", "Last used"}),
        choices,
    ]


def make_key(settings: Settings, name: str) -> list[Any]:
    """Create a key: notice, secret, emptied name, `view`. The secret is shown only this once."""
    try:
        with writing(settings) as session:
            key, secret = keys.make_key(session, name or "")
    except SpeculoosError as error:
        return [notice(error_text(error), "bad"), gr.Textbox("", visible=False), name, *view(settings)]
    message = notice(MADE.format(name=key.name), "good")
    return [message, gr.Textbox(secret, visible=True), "", *view(settings)]


def revoke_key(settings: Settings, key_id: str | None) -> list[Any]:
    """Revoke a key: notice, hidden secret, `view`."""
    try:
        with writing(settings) as session:
            message = notice(f"Revoked “{keys.revoke(session, key_id or '').name}”; it no longer works.", "good")
    except SpeculoosError as error:
        message = notice(error_text(error) if key_id else "Choose the key to revoke first.", "bad")
    return [message, gr.Textbox("", visible=False), *view(settings)]
