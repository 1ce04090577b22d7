"""The Settings page: health checks, access, notifications, retention, storage, API keys, servers, and
settings from the environment.

Settings that are read at startup, open the server to others or are secret are read-only: the page shows the environment
variable that sets them and, for secrets, only whether they are set.
"""

from collections.abc import Mapping
from functools import partial

import gradio as gr
from sqlalchemy.engine import make_url

from app.views.manage import SMALL
from app.views.settings_forms import RulesForm, build_access, build_keys, build_webhook
from app.widgets.elements import QUIET, badge, block, facts, notice, on_load, page_header, section
from app.widgets.picker import table
from app.widgets.text import safe, safe_with_code, tag
from models.hub import offline
from ops.health import CHECKS, HealthPart, check
from speculoos.settings import TRACKERS, Settings
from speculoos.store import hide_credentials

LEAD = "Health checks, notifications, retention, API keys, and settings from the environment."
OUTSIDE = (
    "These are read at startup or protect this server, so they cannot be changed on a page. Add the line to the "
    "environment of `speculoos up` and restart it. Secrets are never shown."
)
NEEDS_TORCH = {"device"}
"""Checks that would import torch into the web process; `speculoos doctor` runs them."""


def build(settings: Settings) -> None:
    page_header("Settings", LEAD)
    section("Health", "The same checks as `speculoos doctor`.")
    health = block(elem_id="settings-health")
    again = gr.Button("Check again", elem_id="settings-check", **SMALL)
    build_access(settings)
    build_webhook(settings)
    RulesForm(settings)
    section("Storage")
    block(storage_facts(settings), elem_id="settings-storage")
    section(
        "API keys", "For programs that use the inference server: one key per program, which can be revoked separately."
    )
    build_keys(settings)
    section(
        "Endpoints",
        "OpenAI-compatible servers for generating training data. Pages refer to them by name, never by URL.",
    )
    block(endpoints(settings), elem_id="settings-endpoints")
    section(
        "Servers of hidden states",
        "Servers that run a base model for training runs. Pages refer to them by name, never by URL.",
    )
    block(state_servers(settings), elem_id="settings-state-servers")
    section("Environment", OUTSIDE)
    block(limits(settings), elem_id="settings-limits")
    section("Theme", "The button at the top right switches between light, dark and the system's theme.")
    on_load(partial(health_table, settings), health)
    again.click(partial(health_table, settings), None, health, **{**QUIET, "show_progress": "minimal"})


def health_table(settings: Settings) -> str:
    return health_html(check(settings, [name for name in CHECKS if name not in NEEDS_TORCH]))


def health_html(parts: Mapping[str, HealthPart]) -> str:
    failed = [name for name, part in parts.items() if not part.ok]
    top = notice(f"Failed: {', '.join(failed)}.", "bad") if failed else notice("All checks passed.", "good")
    rows = []
    for name, part in sorted(parts.items(), key=lambda item: item[1].ok):
        mark = badge("OK", "good") if part.ok else badge("failed", "bad")
        hint = tag("span", safe_with_code(" " + part.hint), class_="sp-row-note") if part.hint else ""
        rows.append([mark, safe(name), safe(part.detail) + hint])
    return tag("div", top + table(["State", "Check", "Result"], rows, "Health"), class_="sp-stack")


def storage_facts(settings: Settings) -> str:
    """Paths of the home folder, the database and the models, with a link to the Storage page."""
    link = tag("a", "Disk usage and cleanup", href="/settings/storage", class_="sp-back")
    database = make_url(settings.database_url).render_as_string(hide_password=True)
    locations = [("Home", settings.home), ("Database", database), ("Models", settings.home / "models")]
    where = facts([*locations, ("Store", hide_credentials(settings.store) if settings.store else "")])
    return tag("div", where + tag("div", link), class_="sp-stack")


def endpoints(settings: Settings) -> str:
    """Each endpoint's name and the variable of its key; never the key."""
    example = '[endpoints.mine]\nurl = "https://example.org/v1"\nmodel = "some-model"\nkey_env = "MINE_API_KEY"'
    rows = [[safe(name), safe(e.model or "chosen per request"), key_badge(e)] for name, e in settings.endpoints.items()]
    return table(["Name", "Model", "Key"], rows, "Endpoints") if rows else none_yet(settings, example)


def state_servers(settings: Settings) -> str:
    """Each server's name, kind, and the variable of its token; never the token."""
    example = '[hidden_states.mine]\nurl = "http://127.0.0.1:7862"\nkey_env = "MINE_TOKEN"'
    rows = [[safe(name), safe(s.kind), key_badge(s)] for name, s in settings.state_servers.items()]
    return table(["Name", "Kind", "Token"], rows, "Servers of hidden states") if rows else none_yet(settings, example)


def none_yet(settings: Settings, example: str) -> str:
    lead = tag("p", safe(f"None yet. Add one to {settings.home / 'settings.toml'}:"), class_="sp-lead")
    return lead + tag("code", safe(example), class_="sp-command")


def key_badge(endpoint) -> str:  # noqa: ANN001 (speculoos.settings.Endpoint or HiddenStatesServer)
    if not endpoint.key_env:
        return safe("none needed")
    words, tone = ("is set", "good") if endpoint.key else ("is not set", "bad")
    return badge(f"{endpoint.key_env} {words}", tone)


def limits(settings: Settings) -> str:
    """Table of the read-only settings with the environment line that changes each; secrets only as set or not set."""
    limit = settings.stuck_seconds
    stuck = f"{limit} s without progress" if limit else "never"
    trackers = ", ".join(map(TRACKERS.get, settings.trackers)) or "none (these pages only)"
    secrets = (
        ("Hub token, for gated models", "HF_TOKEN", settings.hf_token),
        ("Password of the pages", "SPECULOOS_PASSWORD", settings.password),
        ("Token of the inference server", "SPECULOOS_INFERENCE_TOKEN", settings.inference_token),
        ("Token for metrics", "SPECULOOS_METRICS_TOKEN", settings.metrics_token),
    )
    values = [
        *((words, "set" if value else "not set", f"{name}_FILE=/path/of/a/file") for words, name, value in secrets),
        ("Address of the pages", f"{settings.host}:{settings.port}", f"SPECULOOS_PORT={settings.port}"),
        ("Inference server", settings.inference_url, f"SPECULOOS_INFERENCE_PORT={settings.inference_port}"),
        ("Device", settings.device, f"SPECULOOS_DEVICE={settings.device}"),
        ("Precision of responses and measurements", settings.dtype, f"SPECULOOS_DTYPE={settings.dtype}"),
        ("Largest upload", f"{settings.max_upload_mb} MB", f"SPECULOOS_MAX_UPLOAD_MB={settings.max_upload_mb}"),
        ("Rows read from one file", f"{settings.max_rows:,}", f"SPECULOOS_MAX_ROWS={settings.max_rows}"),
        ("Memory of one job, MB", _floor(settings.job_memory_mb), "SPECULOOS_JOB_MEMORY_MB=…"),
        ("Free disk below which jobs pause, MB", _floor(settings.min_disk_mb), "SPECULOOS_MIN_DISK_MB=…"),
        ("Free memory below which jobs pause, MB", _floor(settings.min_memory_mb), "SPECULOOS_MIN_MEMORY_MB=…"),
        ("Inference counts as stuck after", stuck, f"SPECULOOS_STUCK_SECONDS={limit}"),
        ("Log format", settings.log_format, f"SPECULOOS_LOG_FORMAT={settings.log_format}"),
        ("Hub access", "no" if offline() else "yes", f"HF_HUB_OFFLINE={int(offline())}"),
        ("Additional allowed hosts", *_listed("SPECULOOS_ALLOWED_HOSTS", settings.allowed_hosts)),
        ("Webhook hosts in this network", *_listed("SPECULOOS_WEBHOOK_HOSTS", settings.webhook_hosts)),
        ("Trackers of training metrics", trackers, f"SPECULOOS_TRACKERS={','.join(settings.trackers)}"),
    ]
    rows = [[safe(words), safe(value), tag("code", safe(line))] for words, value, line in values]
    return table(["Setting", "Value", "Environment"], rows, "Environment", True, {"Environment"})


def _floor(megabytes: int | None) -> str:
    return "by the machine" if megabytes is None else f"{megabytes:,}" if megabytes else "none"


def _listed(name: str, hosts: tuple[str, ...]) -> tuple[str, str]:
    return ", ".join(hosts) or "none", f"{name}={','.join(hosts)}"
