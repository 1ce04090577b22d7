"""Sections of the Settings page that change something: access and the visitor's name on jobs, notifications of finished
jobs, retention times, API keys of the inference server."""

from collections.abc import Callable
from functools import partial
from typing import Any

import gradio as gr

from app.forms import whole_number
from app.i18n import N_, t
from app.views.manage import SMALL
from app.visitor import visitor_of
from app.widgets.elements import QUIET, block, notice, on_load, section
from app.widgets.fields import dropdown, one_line
from app.widgets.formatting import ago
from app.widgets.picker import table
from app.widgets.problems import error_text, show_errors
from app.widgets.text import safe, tag
from speculoos import webhook
from speculoos.errors import SpeculoosError
from speculoos.people import access_warning
from speculoos.settings import Settings
from tracking import keys
from tracking.db import reading, writing
from tracking.logins import Sessions, Visitor
from tracking.names import LONGEST_USER, check_user
from tracking.retention_rules import RETENTION, chosen_rules, save_rules

OPEN = N_("Open without login at {address}; no other user has an account on this machine.")
EXAMPLE = "https://chat.example.org/hooks/…"
TEST = {"text": "Test message of Speculoos: finished jobs will be reported here.", "job": None}
ACTIVE = N_("Finished jobs are sent to {host}: one POST with the job's name, state and link.")
KEEPING = N_("Older items are removed once an hour. 0 keeps them forever; empty uses the configured value.")
KEYS = N_("For programs that use the inference server: one key per program, which can be revoked separately.")
NONE_YET = N_("No keys yet. Programs on this machine can also use the token in {path}.")
MADE = N_("Created “{name}”. Copy the key now: it is not stored and cannot be shown again.")


def build_access(settings: Settings) -> None:
    section(t("Access"))
    state = block(elem_id="settings-access")

    def opened(request: gr.Request) -> str:
        return access_notice(settings, visitor_of(request))

    on_load(opened, state)
    if settings.requires_login:
        _build_name(Sessions(settings))


def access_notice(settings: Settings, visitor: Visitor | None) -> str:
    """How people log in, or a warning that access is not protected."""
    if warning := access_warning(settings):
        return notice(warning, "warn")
    if settings.requires_login:
        day = f"{visitor.ends_at:%Y-%m-%d}" if visitor else ""
        until = t("Your login is valid until {day}, or until you log out.", day=day) if visitor else ""
        by_link = t("Open to everyone with a link of `speculoos login-link`.")
        sentence = t("Open to everyone with the password.") if settings.password else by_link
        return notice(f"{sentence} {until}", "good")
    return notice(t(OPEN, address=f"{settings.host}:{settings.port}"), "good")


def _build_name(sessions: Sessions) -> None:
    with gr.Row(equal_height=True, elem_classes="sp-manage"):
        name = one_line(t("Your name on jobs"), "settings-user", max_length=LONGEST_USER)
    save = gr.Button(t("Save name"), elem_id="settings-user-save", **SMALL)
    message = block(elem_id="settings-user-message")

    def shown(request: gr.Request) -> str:
        visitor = visitor_of(request)
        return visitor.user if visitor else ""

    def save_name(text: str, request: gr.Request) -> str:
        return rename(sessions, visitor_of(request), text)

    on_load(shown, name)
    save.click(save_name, name, message, **QUIET)


@show_errors()
def rename(sessions: Sessions, visitor: Visitor | None, text: str) -> str:
    user = check_user(text)
    if visitor:
        sessions.rename(visitor, user)
    return notice(t("Your next jobs show “{name}”.", name=user) if user else t("Your next jobs show no name."), "good")


def build_webhook(settings: Settings) -> None:
    section(t("Notifications"), t("For jobs that succeed or fail at least one minute after they were submitted."))
    with gr.Row(equal_height=True, elem_classes="sp-manage"):
        url = one_line(t("Webhook URL"), "webhook-url", placeholder=EXAMPLE, type="password", max_length=2000)
    with gr.Row(elem_classes="sp-buttons"):
        save = gr.Button(t("Save"), variant="primary", elem_id="webhook-keep", **SMALL)
        test = gr.Button(t("Send test"), elem_id="webhook-test", **SMALL)
        delete_button = gr.Button(t("Delete"), variant="stop", elem_id="webhook-forget", **SMALL)
    message = block(elem_id="webhook-message")
    on_load(partial(webhook_state, settings), message)
    for event in (save.click, url.submit):
        event(partial(save_webhook, settings), url, [message, url], **QUIET)
    send, delete = partial(webhook.post_to_webhook, settings, TEST), partial(webhook.delete_webhook, settings)
    test.click(partial(run_and_notify, send, t("The test was accepted.")), None, message, **QUIET)
    delete_button.click(partial(run_and_notify, delete, t("Deleted; nothing is sent.")), None, message, **QUIET)


@show_errors()
def webhook_state(settings: Settings) -> str:
    """Whether a webhook is stored, and its host. The URL itself is never shown: it may contain a token."""
    host = webhook.webhook_host(settings)
    return notice(t(ACTIVE, host=host), "good") if host else notice(t("No webhook is stored: nothing is sent."), "info")


@show_errors(gr.skip())
def save_webhook(settings: Settings, url: str) -> tuple[str, Any]:
    webhook.store_webhook(settings, url or "")
    return webhook_state(settings), ""


@show_errors()
def run_and_notify(act: Callable[[], None], message: str) -> str:
    """Run `act`. A notice with `message`, or the error."""
    act()
    return notice(message, "good")


class RulesForm:
    """The fields of the retention times, inside the current Blocks."""

    def __init__(self, settings: Settings):
        self.settings = settings
        section(t("Retention"), t(KEEPING))
        with gr.Row(elem_classes="sp-settings"):
            fields = [self._field(name) for name in RETENTION]
        message = block(elem_id="rules-message")
        save = gr.Button(t("Save"), variant="primary", elem_id="rules-save", **SMALL)
        on_load(self.values, fields)
        save.click(self.submit, fields, message, **QUIET)

    def _field(self, name: str) -> gr.Textbox:
        placeholder = t("{n:,} (configured)", n=getattr(self.settings, name))
        return one_line(t(RETENTION[name]), f"rule-{name}", placeholder=placeholder, min_width=220)

    def values(self) -> list[str]:
        """The saved value of each rule, "" for the default."""
        with reading(self.settings) as session:
            saved = chosen_rules(session)
        return [str(saved.get(name, "")) for name in RETENTION]

    @show_errors()
    def submit(self, *values: Any) -> str:
        texts = dict(zip(RETENTION, values, strict=True))
        save_rules(self.settings, {name: whole_number(RETENTION[name], value) for name, value in texts.items()})
        return notice(t("Saved. They take effect at the next hourly cleanup."), "good")


def build_keys(settings: Settings) -> None:
    section(t("API keys"), t(KEYS))
    listed = block(elem_id="keys-list")
    with gr.Row(equal_height=True, elem_classes="sp-manage"):
        name = one_line(t("New key for"), "keys-name", placeholder=t("user or program"), max_length=120, scale=2)
        revocable = dropdown([], label=t("Key to revoke"), value=None, elem_id="keys-doomed", scale=2)
    with gr.Row(elem_classes="sp-buttons"):
        make = gr.Button(t("Create key"), variant="primary", elem_id="keys-make", **SMALL)
        revoke = gr.Button(t("Revoke"), variant="stop", elem_id="keys-revoke", **SMALL)
    message = block(elem_id="keys-message")
    secret = one_line(t("The new key"), "keys-secret", interactive=False, visible=False, buttons=["copy"])
    shown = [listed, revocable]
    on_load(partial(keys_view, settings), shown)
    for event in (make.click, name.submit):
        event(partial(make_key, settings), name, [message, secret, name, *shown], **QUIET)
    revoke.click(partial(revoke_key, settings), revocable, [message, secret, *shown], **QUIET)


@show_errors(gr.skip())
def keys_view(settings: Settings) -> list[Any]:
    with reading(settings) as session:
        live = keys.list_keys(session)
    choices = gr.Dropdown([(f"{key.name} ({key.hint}…)", key.id) for key in live], value=None)
    if not live:
        return [tag("p", safe(t(NONE_YET, path=settings.inference_token_file)), class_="sp-lead"), choices]
    cells = [(key.name, f"{key.hint}…", ago(key.created_at), ago(key.last_used_at)) for key in live]
    columns = [t("Name"), t("Starts with"), t("Created"), t("Last used")]
    return [table(columns, [[*map(safe, row)] for row in cells], t("Keys"), True, columns[2:]), choices]


def make_key(settings: Settings, name: str) -> list[Any]:
    """Create a key: notice, secret, emptied name, `keys_view`. The secret is shown only this once."""
    try:
        with writing(settings) as session:
            key, secret = keys.make_key(session, name or "")
    except SpeculoosError as error:
        return [notice(error_text(error), "bad"), gr.Textbox("", visible=False), name, *keys_view(settings)]
    message = notice(t(MADE, name=key.name), "good")
    return [message, gr.Textbox(secret, visible=True), "", *keys_view(settings)]


def revoke_key(settings: Settings, key_id: str | None) -> list[Any]:
    """Revoke a key: notice, hidden secret, `keys_view`."""
    try:
        with writing(settings) as session:
            revoked = keys.revoke(session, key_id or "").name
        message = notice(t("Revoked “{name}”; it no longer works.", name=revoked), "good")
    except SpeculoosError as error:
        message = notice(error_text(error) if key_id else t("Choose the key to revoke first."), "bad")
    return [message, gr.Textbox("", visible=False), *keys_view(settings)]
