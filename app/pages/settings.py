"""The Settings page; `?section=` opens a section.

Settings that are read at startup or open the server to others are read-only: the page shows the environment variable
that sets them and, for secrets, only whether they are set.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import partial

import gradio as gr
from sqlalchemy.engine import make_url

from app.i18n import COOKIE, LANGUAGES, N_, plural, t
from app.paths import PAGES
from app.views.manage import SMALL
from app.views.server_forms import build_servers
from app.views.settings_forms import RulesForm, build_access, build_keys, build_webhook
from app.widgets.elements import QUIET, badge, block, facts, fold, notice, on_load, page_header, section
from app.widgets.picker import table
from app.widgets.text import safe, safe_with_code, tag
from models.hub import offline
from ops.health import CHECKS, HealthPart, check
from speculoos.settings import Settings
from speculoos.store import hide_credentials

LEAD = N_("Health checks, access, servers, notifications, retention, and settings from the environment.")
OUTSIDE = N_(
    "These are read at startup. Add the line to the "
    "environment of `speculoos up` and restart it. Secrets are never shown."
)
LABELS = {
    "host": N_("Address of the pages"),
    "port": N_("Port of the pages"),
    "inference_port": N_("Port of the inference server"),
    "inference_url": N_("URL of the inference server"),
    "inference_token": N_("Token of the inference server"),
    "password": N_("Password of the pages"),
    "allowed_hosts": N_("Additional allowed hosts"),
    "hf_token": N_("Hugging Face token"),
    "device": N_("Device"),
    "dtype": N_("Precision of responses and measurements"),
    "max_upload_mb": N_("Max upload (MB)"),
    "max_rows": N_("Max rows per file"),
    "stuck_seconds": N_("Seconds after which inference counts as stuck (0: never)"),
    "metrics_token": N_("Token for metrics"),
    "webhook_hosts": N_("Webhook hosts in this network"),
    "trackers": N_("Trackers of training metrics"),
    "min_disk_mb": N_("Min free disk (MB)"),
    "min_memory_mb": N_("Min free memory (MB)"),
    "job_memory_mb": N_("Max memory per job (MB; 0: no limit)"),
    "server_ports": N_("Ports of started servers"),
    "log_format": N_("Log format"),
}
"""Setting of the section Environment → its name."""
NEEDS_TORCH = {"device"}
"""Checks that would import torch into the web process; `speculoos doctor` runs them."""


def build(settings: Settings) -> None:
    page_header(t("Settings"), t(LEAD))
    with gr.Row(elem_classes="sp-parts"):
        links = block(elem_id="settings-sections")
        for name, (_, build_part) in SECTIONS.items():
            with gr.Column(elem_id=f"settings-of-{name}"):
                build_part(settings)
    on_load(section_links, links)


def opened(request: gr.Request) -> str:
    """The section that the URL names, or the first."""
    name = request.query_params.get("section", "")
    return name if name in SECTIONS else next(iter(SECTIONS))


def section_links(request: gr.Request) -> str:
    """Links to the sections. The style sheet hides the sections whose link is not the current one."""
    links = ""
    for name, (title, _) in SECTIONS.items():
        current = "page" if name == opened(request) else None
        links += tag("a", safe(t(title)), href=f"{PAGES['settings']}?section={name}", aria_current=current)
    return tag("nav", links, class_="sp-sections", aria_label=t("Sections of the settings"))


def build_general(settings: Settings) -> None:
    section(t("Health"), t("The same checks as `speculoos doctor`."))
    health = block(elem_id="settings-health")
    again = gr.Button(t("Check again"), elem_id="settings-check", **SMALL)
    section(t("Storage"))
    block(storage_facts(settings), elem_id="settings-storage")
    section(t("Language"))
    on_load(language_choice, block(elem_id="settings-language"))
    section(t("Theme"), t("The button at the top right switches between light, dark and the system's theme."))

    def first(request: gr.Request) -> str:
        return health_table(settings) if opened(request) == "general" else ""

    on_load(first, health)
    again.click(partial(health_table, settings), None, health, **{**QUIET, "show_progress": "minimal"})


def language_choice(request: gr.Request) -> str:
    """The languages, by their own names; static/shell.js stores the chosen one."""
    chosen, options = request.cookies.get(COOKIE, ""), ""
    for name, label in {"": t("Browser's language"), **LANGUAGES}.items():
        options += tag("option", safe(label), value=name, selected=name == chosen)
    return tag("select", options, class_="sp-small-button", data_sp="language", aria_label=t("Language"))


def build_environment(settings: Settings) -> None:
    section(t("Environment"), t(OUTSIDE))
    block(limits(settings), elem_id="settings-limits")


SECTIONS = {
    "general": (N_("General and health"), build_general),
    "access": (N_("Access and keys"), lambda settings: (build_access(settings), build_keys(settings))),
    "servers": (N_("Servers and tokens"), build_servers),
    "notifications": (N_("Notifications"), build_webhook),
    "retention": (N_("Retention"), RulesForm),
    "environment": (N_("Environment"), build_environment),
}
"""Section of the page → title, and the function or class that creates its components."""


def health_table(settings: Settings) -> str:
    return health_html(check(settings, [name for name in CHECKS if name not in NEEDS_TORCH]))


def health_html(parts: Mapping[str, HealthPart]) -> str:
    failed = [name for name, part in parts.items() if not part.ok]
    hints = Counter(part.hint for part in parts.values() if part.hint)
    shared = " ".join(hint for hint, times in hints.items() if times > 1)
    sentence = t("Failed: {names}. {hints}", names=", ".join(failed), hints=shared)
    top = notice(sentence, "bad") if failed else notice(t("All checks passed."), "good")
    rows = []
    for name, part in sorted(parts.items(), key=lambda item: item[1].ok):
        mark = badge(t("OK"), "good") if part.ok else badge(t("failed"), "bad")
        is_unique = hints[part.hint] == 1
        hint = tag("span", safe_with_code(" " + part.hint), class_="sp-row-note") if is_unique else ""
        rows.append([mark, safe(name), safe(part.detail) + hint])
    return tag("div", top + table([t("State"), t("Check"), t("Result")], rows, t("Health")), class_="sp-stack")


def storage_facts(settings: Settings) -> str:
    """Paths of the home folder, the database and the models, with a link to the Storage page."""
    link = tag("a", t("Disk usage and cleanup"), href="/settings/storage", class_="sp-back")
    database = make_url(settings.database_url).render_as_string(hide_password=True)
    locations = [(t("Home"), settings.home), (t("Database"), database), (t("Models"), settings.home / "models")]
    where = facts([*locations, (t("Store"), hide_credentials(settings.store) if settings.store else "")])
    return tag("div", where + tag("div", link), class_="sp-stack")


def limits(settings: Settings) -> str:
    """Tables of the read-only settings with the environment line that changes each: first what differs from the
    default, the others folded. Secrets only as set or not set."""
    offline_row = [t("Hub access"), t("no") if offline() else t("yes"), f"HF_HUB_OFFLINE={int(offline())}"]
    changed, others = ([offline_row], []) if offline() else ([], [offline_row])
    for each in fields(Settings):
        if each.name not in LABELS:
            continue
        value, default = getattr(settings, each.name), each.default
        if each.name == "inference_url":
            default = f"http://127.0.0.1:{settings.inference_port}"
        variable = "HF_TOKEN" if each.name == "hf_token" else f"SPECULOOS_{each.name.upper()}"
        between = "-" if each.name == "server_ports" else ","
        text = between.join(map(str, value)) if isinstance(value, tuple) else "" if value is None else str(value)
        row = [t(LABELS[each.name]), text or "–", f"{variable}={text or '…'}"]
        if not each.repr:
            row = [t(LABELS[each.name]), t("set") if value else t("not set"), f"{variable}_FILE=/path/of/a/file"]
        (others if value == default else changed).append(row)
    html = _environment(changed) if changed else tag("p", t("Every setting has its default."), class_="sp-lead")
    title = plural("{n} setting at its default", "{n} settings at their defaults", len(others))
    return html + fold(title, _environment(others))


def _environment(rows: Sequence[Sequence[str]]) -> str:
    cells = [[safe(label), safe(value), tag("code", safe(line))] for label, value, line in rows]
    return table([t("Setting"), t("Value"), t("Environment")], cells, t("Environment"), True, {t("Environment")})
