"""The settings page: what was set from outside, where things lie, whether every process is well, and API keys.

Only the keys can be changed here.
"""

from collections.abc import Mapping

import gradio as gr
from sqlalchemy.engine import make_url

from app.views import access, api_keys
from app.views.manage import SMALL
from app.widgets.elements import QUIET, badge, block, facts, notice, on_load, page_header, section
from app.widgets.picker import table
from app.widgets.text import safe, tag
from speculoos.settings import Settings
from upkeep.health import CHECKS, Part, check

LEAD = "Set in the environment and in settings.toml in the home folder, then read at the start; nothing here is secret."
NEEDS_TORCH = {"device"}
"""Checks that would bring torch into the web process; `speculoos doctor` makes them."""


def build(settings: Settings) -> None:
    """Wire the page inside the current Blocks."""
    page_header("Settings", LEAD)
    section("Health", "The same checks as `speculoos doctor`.")
    health = block(elem_id="settings-health")
    again = gr.Button("Check again", elem_id="settings-check", **SMALL)
    access.build(settings)
    section("Storage")
    block(storage_facts(settings), elem_id="settings-storage")
    section("API keys", "For programs that ask the inference server: one key for each, to be revoked alone.")
    api_keys.build(settings)
    section("Endpoints", "OpenAI-compatible servers that may write training data. Pages choose a name, never a URL.")
    block(endpoints(settings), elem_id="settings-endpoints")
    section("Tokens and limits")
    block(limits(settings), elem_id="settings-limits")
    section("Look", "The button at the top right changes between light, dark and the system's choice.")
    on_load(lambda: health_table(settings), None, health)
    again.click(lambda: health_table(settings), None, health, **{**QUIET, "show_progress": "minimal"})


def health_table(settings: Settings) -> str:
    """Every part, ill ones first."""
    parts = check(settings, [name for name in CHECKS if name not in NEEDS_TORCH])
    return health_html(parts)


def health_html(parts: Mapping[str, Part]) -> str:
    """The checks as a table, and one sentence on top."""
    ill = [name for name, part in parts.items() if not part.ok]
    top = notice(f"Not well: {', '.join(ill)}.", "bad") if ill else notice("Every part is well.", "good")
    rows = [_part(name, part) for name, part in sorted(parts.items(), key=lambda item: item[1].ok)]
    return tag("div", top + table(["State", "Part", "What was found"], rows, "Health"), class_="sp-stack")


def _part(name: str, part: Part) -> list[str]:
    mark = badge("well", "good") if part.ok else badge("not well", "bad")
    hint = tag("span", safe(" " + part.hint), class_="sp-row-note") if part.hint else ""
    return [mark, safe(name), safe(part.detail) + hint]


def storage_facts(settings: Settings) -> str:
    """Where things lie; what they cost is on a page of its own."""
    link = tag("a", "What each thing costs, and cleaning up", href="/storage", class_="sp-back")
    where = facts([("Home", settings.home), ("Database", database(settings)), ("Models", settings.home / "models")])
    return tag("div", where + tag("div", link), class_="sp-stack")


def database(settings: Settings) -> str:
    """The database's address without its password."""
    return make_url(settings.database_url).render_as_string(hide_password=True)


def endpoints(settings: Settings) -> str:
    """Each endpoint's name and where its key comes from; never the key."""
    if not settings.endpoints:
        example = '[endpoints.mine]\nurl = "https://example.org/v1"\nmodel = "some-model"\nkey_env = "MINE_API_KEY"'
        where = tag("p", safe(f"None yet. In {settings.home / 'settings.toml'}:"), class_="sp-lead")
        return where + tag("code", safe(example), class_="sp-command")
    rows = [
        [safe(name), safe(e.model or "asked for each time"), key_badge(e)] for name, e in settings.endpoints.items()
    ]
    return table(["Name", "Model", "Key"], rows, "Endpoints")


def key_badge(endpoint) -> str:  # noqa: ANN001 (speculoos.settings.Endpoint)
    """Whether the key's variable is set."""
    if not endpoint.key_env:
        return safe("none needed")
    return (
        badge(f"{endpoint.key_env} is set", "good") if endpoint.key else badge(f"{endpoint.key_env} is not set", "bad")
    )


def limits(settings: Settings) -> str:
    """Whether secrets are set, never what they are; and what is bounded."""
    return facts(
        [
            ("Hub token (HF_TOKEN)", set_words(settings.hf_token) + "; for gated models"),
            ("Password of the pages", set_words(settings.password)),
            ("Token of the inference server", set_words(settings.inference_token)),
            ("Token for metrics", set_words(settings.metrics_token)),
            ("Pages listen at", f"{settings.host}:{settings.port}"),
            ("Inference server", settings.inference_url),
            ("Computes on", settings.device),
            ("Largest upload", f"{settings.max_upload_mb} MB"),
            ("Most rows of a prompt file", f"{settings.max_rows:,}"),
            ("Further hosts allowed", ", ".join(settings.allowed_hosts)),
        ]
    )


def set_words(value: str) -> str:
    """A secret is set, or not."""
    return "set" if value else "not set"
