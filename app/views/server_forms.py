"""Section of the Settings page for the hub token and the servers of settings.toml. Secrets are write-only."""

from functools import partial
from typing import Any
from urllib.parse import urlsplit

import gradio as gr

from app.i18n import N_, t
from app.views.manage import SMALL
from app.widgets.elements import QUIET, badge, block, notice, on_load, section
from app.widgets.fields import dropdown, one_line
from app.widgets.picker import table
from app.widgets.problems import show_errors
from app.widgets.text import safe, tag
from speculoos import servers
from speculoos.errors import BadInput
from speculoos.settings import Endpoint, Settings, stored_secret

SERVERS = N_("Other pages refer to them by name. The next job uses changes, without a restart. Keys are never shown.")
KINDS = {
    "endpoints": N_("OpenAI-compatible, for data and evaluations"),
    "hidden_states/speculoos": N_("Hidden states: speculoos features serve"),
    "hidden_states/vllm": N_("Hidden states: vLLM"),
}
TOKEN = "HF_TOKEN"
SECRET = {"type": "password", "max_length": servers.LONGEST_SECRET}


def build_servers(settings: Settings) -> None:
    """The forms; on a shared server only what is set."""
    section(t("Hugging Face token"), t("For gated models and datasets of the Hugging Face Hub. The next job uses it."))
    hub_message = block(elem_id="hub-message")
    on_load(partial(hub_state, settings), hub_message)
    if not settings.is_shared:
        token = one_line(t("Token"), "hub-token", placeholder="hf_…", **SECRET)
        save, delete = _buttons("hub", t("Save token"), t("Delete token"))
        gr.on([save.click, token.submit], partial(save_token, settings), token, [hub_message, token], **QUIET)
        delete.click(partial(delete_token, settings), None, hub_message, **QUIET)
    section(t("Servers"), t(SERVERS))
    listed, message = block(elem_id="servers-list"), block(elem_id="servers-message")
    if settings.is_shared:
        on_load(lambda: [servers_view(settings)[0], notice(t(servers.SHARED))], [listed, message])
        return
    chosen = dropdown([], label=t("Server"), elem_id="servers-chosen")
    with gr.Row(elem_classes="sp-settings"):
        kind = dropdown([(t(label), key) for key, label in KINDS.items()], label=t("Kind"), elem_id="servers-kind")
        name = one_line(t("Name"), "servers-name", max_length=64)
        url = one_line(t("URL (several equal servers: separate by spaces)"), "servers-url", max_length=4000)
    with gr.Row(elem_classes="sp-settings"):
        model = one_line(t("Model name in requests (optional)"), "servers-model", max_length=200)
        key = one_line(t("Key (empty: unchanged)"), "servers-key", **SECRET)
    save, delete = _buttons("servers", t("Save server"), t("Delete server"))
    fields, shown = [kind, name, url, model, key], [listed, chosen]
    on_load(partial(servers_view, settings), shown)
    chosen.input(partial(fill, settings), chosen, fields, **QUIET)
    save.click(partial(save_server, settings), fields, [message, key, *shown], **QUIET)
    delete.click(partial(delete_server, settings), chosen, [message, key, *shown], **QUIET)


def _buttons(prefix: str, save_label: str, delete_label: str) -> tuple[gr.Button, gr.Button]:
    with gr.Row(elem_classes="sp-buttons"):
        save_button = gr.Button(save_label, variant="primary", elem_id=f"{prefix}-keep", **SMALL)
        return save_button, gr.Button(delete_label, variant="stop", elem_id=f"{prefix}-forget", **SMALL)


def hub_state(settings: Settings) -> str:
    if servers.from_environment(TOKEN):
        return notice(t(servers.FROM_ENVIRONMENT, name=TOKEN), "good")
    is_set = stored_secret(settings.home, TOKEN)
    return notice(t("The token is set."), "good") if is_set else notice(t("No token is set."))


@show_errors("")
def save_token(settings: Settings, token: str) -> tuple[str, str]:
    servers.store_secret(settings, TOKEN, token)
    return hub_state(settings), ""


@show_errors()
def delete_token(settings: Settings) -> str:
    servers.delete_secret(settings, TOKEN)
    return hub_state(settings)


@show_errors(gr.skip())
def servers_view(settings: Settings) -> tuple[str, Any]:
    """Table of the servers, and the choices of the dropdown."""
    known_servers = servers.known_servers(settings)
    rows = [
        [safe(server.name), safe(t(KINDS[kind_of(server)])), safe(server.model or "–"), key_badge(server)]
        for server in known_servers.values()
    ]
    columns = [t("Name"), t("Kind"), t("Model"), t("Key")]
    html = table(columns, rows, t("Servers")) if rows else tag("p", t("None yet."), class_="sp-lead")
    return html, gr.Dropdown(
        [(t("New server"), ""), *((server.name, key) for key, server in known_servers.items())], value=""
    )


def kind_of(server: servers.Server) -> str:
    return "endpoints" if isinstance(server, Endpoint) else f"hidden_states/{server.kind}"


def key_badge(server: servers.Server) -> str:
    if not server.key_env:
        return safe(t("none needed"))
    label, tone = (t("is set"), "good") if server.key else (t("is not set"), "bad")
    return badge(f"{server.key_env} {label}", tone)


def fill(settings: Settings, chosen: str) -> list[str]:
    """Values of the fields for the chosen server. The key stays empty, and a URL with a password too."""
    server = servers.known_servers(settings).get(chosen)
    if server is None:
        return [next(iter(KINDS)), "", "", "", ""]
    urls = [server.url] if isinstance(server.url, str) else server.url
    url = " ".join(each for each in urls if "@" not in urlsplit(each).netloc)
    return [kind_of(server), server.name, url, server.model, ""]


@show_errors(*[gr.skip()] * 3)
def save_server(settings: Settings, kind: str, name: str, url: str, model: str, key: str) -> list[Any]:
    """Add or change a server: notice, emptied key, `servers_view`."""
    if kind not in KINDS:
        raise BadInput("Choose the kind of the server.")
    section, _, protocol = kind.partition("/")
    values = {"model": model.strip(), **({"kind": protocol} if protocol else {})}
    servers.save_server(settings, section, name.strip(), url, key.strip(), **values)
    return [notice(t("Saved."), "good"), "", *servers_view(settings)]


@show_errors(*[gr.skip()] * 3)
def delete_server(settings: Settings, chosen: str) -> list[Any]:
    """Remove the chosen server: notice, emptied key, `servers_view`."""
    if chosen not in servers.known_servers(settings):
        raise BadInput("Choose the server to delete first.")
    servers.delete_server(settings, *chosen.split("/"))
    return [notice(t("Deleted."), "good"), "", *servers_view(settings)]
