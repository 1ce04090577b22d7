"""The settings page: whether every process is well, who is told of ended jobs, what is kept for how long, limits of
work, where things lie, API keys, and what was set from outside.

What is read at the start, opens the server to others or is a secret is shown with the line that changes it, or as set.
"""

from collections.abc import Mapping

import gradio as gr
from sqlalchemy.engine import make_url

from app.views import access, api_keys, ended_form
from app.views.manage import SMALL
from app.views.rules_form import RulesForm
from app.widgets.elements import QUIET, badge, block, facts, notice, on_load, page_header, section
from app.widgets.picker import table
from app.widgets.text import coded, safe, tag
from models.hub import offline
from ops.health import CHECKS, HealthPart, check
from speculoos.settings import TRACKERS, Settings
from speculoos.store import shown
from tracking import rules

LEAD = "How everything is, who hears of it, what may be changed while it runs, and what was set from outside."
KEEPING = "Older things are removed once an hour. 0 keeps them for ever; empty: as it was set from outside."
LIMITS = (
    "Of every machine that works for this home. Empty: as it was set from outside there; what an operator set for a "
    "machine's disk and memory can be made stricter here, never weaker."
)
OUTSIDE = (
    "Read once, at the start, or what guards this server, so nothing of it can be changed from a page: put the line "
    "into the environment of `speculoos up` and start it again. What is secret is never shown."
)
NEEDS_TORCH = {"device"}
"""Checks that would bring torch into the web process; `speculoos doctor` makes them."""


def build(settings: Settings) -> None:
    """Wire the page inside the current Blocks."""
    page_header("Settings", LEAD)
    section("Health", "The same checks as `speculoos doctor`.")
    health = block(elem_id="settings-health")
    again = gr.Button("Check again", elem_id="settings-check", **SMALL)
    access.build(settings)
    ended_form.build(settings)
    RulesForm(settings, "rules", rules.KEEPING, "What is kept for how long", KEEPING, "from the next round on")
    RulesForm(settings, "limits", rules.LIMITS, "Limits of work", LIMITS, "within seconds, imports from the next one")
    section("Storage")
    block(storage_facts(settings), elem_id="settings-storage")
    section("API keys", "For programs that ask the inference server: one key for each, to be revoked alone.")
    api_keys.build(settings)
    section("Endpoints", "OpenAI-compatible servers that may write training data. Pages choose a name, never a URL.")
    block(endpoints(settings), elem_id="settings-endpoints")
    section("Servers of hidden states", "Where trainings may have a base run; they choose a name, never a URL.")
    block(state_servers(settings), elem_id="settings-state-servers")
    section("Set from outside", OUTSIDE)
    block(limits(settings), elem_id="settings-limits")
    section("Look", "The button at the top right changes between light, dark and the system's choice.")
    on_load(lambda: health_table(settings), health)
    again.click(lambda: health_table(settings), None, health, **{**QUIET, "show_progress": "minimal"})


def health_table(settings: Settings) -> str:
    """Every part, ill ones first."""
    return health_html(check(settings, [name for name in CHECKS if name not in NEEDS_TORCH]))


def health_html(parts: Mapping[str, HealthPart]) -> str:
    """The checks as a table, and one sentence on top."""
    ill = [name for name, part in parts.items() if not part.ok]
    top = notice(f"Not well: {', '.join(ill)}.", "bad") if ill else notice("Every part is well.", "good")
    rows = [_part(name, part) for name, part in sorted(parts.items(), key=lambda item: item[1].ok)]
    return tag("div", top + table(["State", "Part", "What was found"], rows, "Health"), class_="sp-stack")


def _part(name: str, part: HealthPart) -> list[str]:
    mark = badge("well", "good") if part.ok else badge("not well", "bad")
    hint = tag("span", coded(" " + part.hint), class_="sp-row-note") if part.hint else ""
    return [mark, safe(name), safe(part.detail) + hint]


def storage_facts(settings: Settings) -> str:
    """Where things lie; what they cost is on a page of its own."""
    link = tag("a", "What each thing costs, and cleaning up", href="/storage", class_="sp-back")
    places = [("Home", settings.home), ("Database", database(settings)), ("Models", settings.home / "models")]
    where = facts([*places, *([("Store", shown(settings.store))] if settings.store else [])])
    return tag("div", where + tag("div", link), class_="sp-stack")


def database(settings: Settings) -> str:
    """The database's address without its password."""
    return make_url(settings.database_url).render_as_string(hide_password=True)


def endpoints(settings: Settings) -> str:
    """Each endpoint's name and where its key comes from; never the key."""
    if not settings.endpoints:
        example = '[endpoints.mine]\nurl = "https://example.org/v1"\nmodel = "some-model"\nkey_env = "MINE_API_KEY"'
        return none_yet(settings, example)
    rows = [
        [safe(name), safe(e.model or "asked for each time"), key_badge(e)] for name, e in settings.endpoints.items()
    ]
    return table(["Name", "Model", "Key"], rows, "Endpoints")


def state_servers(settings: Settings) -> str:
    """Each server's name, kind, and where its token comes from; never the token."""
    if not settings.state_servers:
        return none_yet(settings, '[hidden_states.mine]\nurl = "http://127.0.0.1:7862"\nkey_env = "MINE_TOKEN"')
    rows = [[safe(name), safe(s.kind), key_badge(s)] for name, s in settings.state_servers.items()]
    return table(["Name", "Kind", "Token"], rows, "Servers of hidden states")


def none_yet(settings: Settings, example: str) -> str:
    """How the first one is named."""
    where = tag("p", safe(f"None yet. In {settings.home / 'settings.toml'}:"), class_="sp-lead")
    return where + tag("code", safe(example), class_="sp-command")


def key_badge(endpoint) -> str:  # noqa: ANN001 (speculoos.settings.Endpoint or StateServer)
    """Whether the key's variable is set."""
    if not endpoint.key_env:
        return safe("none needed")
    return (
        badge(f"{endpoint.key_env} is set", "good") if endpoint.key else badge(f"{endpoint.key_env} is not set", "bad")
    )


def limits(settings: Settings) -> str:
    """Whether secrets are set, never what they are; what is read at the start, with the line that changes it."""
    rows = [[safe(words), safe(value), tag("code", safe(line))] for words, value, line in outside(settings)]
    return table(["What", "In force", "Line that sets it"], rows, "Set from outside", True, {"Line that sets it"})


def outside(settings: Settings) -> list[tuple[str, str, str]]:
    """(what, in force, line for the environment) of what cannot be changed here."""
    patience = settings.stuck_seconds
    stuck = f"{patience} s without a sign of life" if patience else "never"
    told = ", ".join(map(TRACKERS.get, settings.trackers)) or "these pages alone"
    secret = [
        (words, "set" if value else "not set", f"{name}_FILE=/path/of/a/file")
        for words, name, value in secrets(settings)
    ]
    return [
        *secret,
        ("Pages listen at", f"{settings.host}:{settings.port}", f"SPECULOOS_PORT={settings.port}"),
        ("Inference server", settings.inference_url, f"SPECULOOS_INFERENCE_PORT={settings.inference_port}"),
        ("Computes on", settings.device, f"SPECULOOS_DEVICE={settings.device}"),
        ("Precision of answers and measurements", settings.dtype, f"SPECULOOS_DTYPE={settings.dtype}"),
        ("Largest upload", f"{settings.max_upload_mb} MB", f"SPECULOOS_MAX_UPLOAD_MB={settings.max_upload_mb}"),
        ("Inference is stuck after", stuck, f"SPECULOOS_STUCK_SECONDS={patience}"),
        ("Log lines", settings.log_format, f"SPECULOOS_LOG_FORMAT={settings.log_format}"),
        ("The hub is asked", "no" if offline() else "yes", f"HF_HUB_OFFLINE={int(offline())}"),
        ("Further hosts allowed", *_listed("SPECULOOS_ALLOWED_HOSTS", settings.allowed_hosts)),
        ("Webhooks inside this network", *_listed("SPECULOOS_WEBHOOK_HOSTS", settings.webhook_hosts)),
        ("Metrics of trainings go to", told, f"SPECULOOS_TRACKERS={','.join(settings.trackers)}"),
    ]


def _listed(name: str, hosts: tuple[str, ...]) -> tuple[str, str]:
    return ", ".join(hosts) or "none", f"{name}={','.join(hosts)}"


def secrets(settings: Settings) -> list[tuple[str, str, str]]:
    """(what, variable, value) of each; of the value nothing is shown but whether it is set."""
    return [
        ("Hub token, for gated models", "HF_TOKEN", settings.hf_token),
        ("Password of the pages", "SPECULOOS_PASSWORD", settings.password),
        ("Token of the inference server", "SPECULOOS_INFERENCE_TOKEN", settings.inference_token),
        ("Token for metrics", "SPECULOOS_METRICS_TOKEN", settings.metrics_token),
    ]
