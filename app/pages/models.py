"""The Models page: base models, their details, and a form to add one; `?id=` opens one."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import gradio as gr
from sqlalchemy.orm import Session

from app import visitor
from app.forms import SOURCES, fetch_request
from app.i18n import N_, plural, t
from app.links import chat_link, on_event_open, serve_link
from app.paths import PAGES
from app.views import checkpoint_rows, export_rows, targets
from app.views.data_view import state_badge
from app.views.job_forms import JobForm
from app.views.job_view import making
from app.views.manage import SMALL, build_list, note_line
from app.views.plan_view import PlanForm
from app.widgets.elements import (
    QUIET,
    badge,
    block,
    closed_accordion,
    detail_head,
    facts,
    link_button,
    notice,
    page_header,
    section,
)
from app.widgets.fields import one_line
from app.widgets.formatting import ago, count, size
from app.widgets.list_page import Listing, signature_of
from app.widgets.list_query import ListQuery, empty_list_html, filtered_query
from app.widgets.picker import live, pager, pick
from app.widgets.problems import show_errors
from app.widgets.setting_fields import setting_control
from app.widgets.text import safe, tag
from ops.starter import ensure_starter
from speculoos.settings import Settings
from tracking import queries
from tracking.db import writing
from tracking.paging import page as page_of
from tracking.tables import Base, Job
from workers.jobs.requests import Quantize
from workers.jobs.submit import submit

SOURCE_NAMES = {"folder": N_("local folder"), "gguf": N_("GGUF file"), "quantized": N_("quantized here")}
"""Source of a model → its name, if it is another; `starter` and `hub` are theirs."""
DRAFTS_LISTED, DRAFTS_SHOWN = 5, 50
"""Maximum number of drafts of a model in the list and on its page."""
NO_DRAFTS = N_("No drafts yet.")
QUANTIZE = N_("Creates a base model with rounded weights, for serving. Its drafts need its own responses.")
HINTS = {
    "hub": ("owner/name", N_("From the Hugging Face Hub; gated models need a token: see Settings.")),
    "folder": ("/path/to/folder", N_("A folder on this server with config.json, weights and tokenizer.")),
    "gguf": ("/path/to/model.gguf", N_("Converted once to safetensors.")),
    "starter": ("", ""),
}


def table(session: Session, list_query: ListQuery, offset: str = "") -> str:
    """A page of the list of models."""
    shown = page_of(session, filtered_query(queries.listed(Base), list_query), offset)
    if not shown.rows:
        how_to_add = t("Add one above: a Hub id, a folder, a GGUF file or the starter model.")
        return empty_list_html(list_query, "model", how_to_add)
    drafts = checkpoint_rows.drafts_of(session, [base.id for base in shown.rows], DRAFTS_LISTED)
    listed = "".join(card(base, drafts.get(base.id, "")) for base in shown.rows)
    return tag("div", listed, class_="sp-models") + pager("models", shown, list_query)


def signature(session: Session) -> str:
    return f"{signature_of(Base)(session)}.{checkpoint_rows.signature(session)}.{export_rows.signature(session)}"


MODELS = Listing("models", Base, "model", table, signature)


def build(settings: Settings) -> None:
    page_header(t("Models"), t("Base models and the drafts that speed them up."))
    build_list(settings, MODELS, ModelPanel, build_add)


def build_add(settings: Settings) -> None:
    with closed_accordion(t("Add a model"), elem_id="models-add", elem_classes="sp-action"):
        sources = [(t(label), kind) for kind, label in SOURCES.items()]
        source = gr.Radio(sources, value="hub", label=t("Source"), elem_id="models-source")
        with gr.Row():
            placeholder, info = HINTS["hub"]
            location = one_line(t("Location"), "models-location", placeholder=placeholder, info=t(info), scale=3)
            name = one_line(t("Name (optional)"), "models-new-name", info=t("Name shown on pages."), scale=2)
        message = block(elem_id="models-message")
        add = gr.Button(t("Add model"), variant="primary", elem_id="models-submit", **SMALL)
    source.change(hint, source, location, **QUIET)
    values = [source, location, name]
    on_event_open([add.click, location.submit], partial(add_model, settings), values, message)


def hint(source: str) -> Any:
    placeholder, info = HINTS[source]
    return gr.Textbox(placeholder=placeholder, info=t(info), visible=source != "starter")


@show_errors("")
def add_model(settings: Settings, source: str, location: str, name: str) -> tuple[str, str]:
    """Submit the download job, or add the installed starter: (error notice, URL)."""
    request = fetch_request(settings, source, location)
    if request.source == "starter":
        with writing(settings) as session:
            if installed := ensure_starter(session, settings):
                return "", f"/models?id={installed.id}"
    job = submit(request, name=name.strip(), user=visitor.user(), settings=settings)
    return "", f"/models?id={job.request['base_id']}"


class ModelPanel:
    def __init__(self, settings: Settings, chosen: gr.Textbox):
        self.head = live("model-head")
        self.facts = block(elem_id="model-facts")
        section(t("Drafts"))
        self.drafts = live("model-drafts")
        section(t("Supported methods"))
        self.methods = block(elem_id="model-methods")
        self.plan = PlanForm(settings, chosen)
        with closed_accordion(t("Quantize"), elem_id="quantize", visible=False) as self.quantize:
            block(tag("p", safe(t(QUANTIZE)), class_="sp-lead"))
            scheme = setting_control(Quantize.options()["scheme"], "quantize-scheme")
            JobForm(settings, "quantize", t("Quantize"), {"base_id": chosen, "scheme": scheme}, Quantize, named=True)
        self.live = [self.head, self.facts, self.drafts, self.methods]
        self.outputs = [*self.plan.outputs, self.quantize]

    def live_view(self, session: Session, base: Base) -> list[Any]:
        parts = [detail_head(base.name, state_badge(base)), note_line(base), state(session, base), uses(session, base)]
        head = tag("div", "".join(parts), class_="sp-stack", data_state=base.state)
        supported = methods(base) or tag("p", t("Known after the download."), class_="sp-lead")
        drafts = checkpoint_rows.drafts_of(session, [base.id], DRAFTS_SHOWN).get(base.id)
        return [head, details(base), drafts or tag("p", safe(t(NO_DRAFTS)), class_="sp-lead"), supported]

    def view(self, session: Session, base: Base | None, query: Mapping[str, str]) -> list[Any]:
        plain = base is not None and base.state == "ready" and not (base.card or {}).get("quantization")
        return [*self.plan.view(session, base, query), gr.Accordion(visible=plain)]


def card(base: Base, drafts: str) -> str:
    """A model of the list with the table of its `drafts`."""
    marks = state_badge(base) + badge(t(SOURCE_NAMES.get(base.source, base.source)))
    name = pick("models", base.id, safe(base.name), class_="sp-card-title") + tag("span", marks)
    lines = tag("div", name, class_="sp-detail-head") + tag("div", safe(line(base)), class_="sp-card-line")
    if base.note:
        lines += tag("div", safe(base.note), class_="sp-card-line")
    if base.state == "ready":
        lines += drafts or tag("div", safe(t(NO_DRAFTS)) + " " + train_link(base), class_="sp-card-line")
    return tag("section", lines, class_="sp-card")


def train_link(base: Base) -> str:
    return tag("a", t("Train one"), href=f"{PAGES['train']}?base={base.id}", class_="sp-back")


def line(base: Base) -> str:
    """`LlamaForCausalLM · 135 M parameters · float32`."""
    card = base.card or {}
    parameters = t("{count} parameters", count=count(card["parameters"])) if card.get("parameters") else ""
    parts = (card.get("architecture"), parameters, card.get("quantization") or card.get("dtype"))
    return " · ".join(filter(None, parts)) or base.location


def state(session: Session, base: Base) -> str:
    """Progress or error of the job that makes the model; "" for a ready model."""
    if base.state == "ready":
        return ""
    job = session.get(Job, base.job_id or "")
    return making(session, job) or notice(t("This model could not be added. Add it again."), "bad")


def uses(session: Session, base: Base) -> str:
    if base.state != "ready":
        return ""
    draft = targets.default_draft(targets.draft_choices(session, base.name))
    links = (
        link_button(t("Chat"), chat_link(base.name, draft), main=True),
        link_button(t("Generate training data"), f"/data?base={base.id}"),
        link_button(t("Train a draft"), f"/runs/new?base={base.id}"),
        link_button(t("Import a draft"), f"/models/drafts?base={base.id}"),
        link_button(t("Serve"), serve_link(base.id)),
    )
    return tag("div", "".join(links), class_="sp-link-row")


def methods(base: Base) -> str:
    """Draft methods that the base model supports, and why it does not support others."""
    rows = ""
    for name, reason in ((base.card or {}).get("methods") or {}).items():
        mark = badge(t("Incompatible"), "bad") if reason else badge(t("Compatible"), "good")
        rows += tag("li", mark + tag("b", safe(checkpoint_rows.method_title(name))) + tag("span", safe(reason)))
    return tag("ul", rows, class_="sp-methods") if rows else ""


def own_layers(card: Mapping[str, Any]) -> str:
    """The model's own multi-token prediction layers, and whether they draft; "" without."""
    mtp = card.get("mtp") or {}
    if not mtp:
        return ""
    drafts = mtp.get("reason") or t("Choose it as the draft in the Playground; it needs no training.")
    return f"{plural('{n} layer', '{n} layers', mtp.get('layers', 1))}. {drafts}"


def source_text(base: Base) -> str:
    name = t(SOURCE_NAMES.get(base.source, base.source))
    return name if base.location == base.source else f"{name}: {base.location}"


def details(base: Base) -> str:
    card = base.card or {}
    memory = card.get("memory") or {}
    heads, kv_heads, longest = (card.get(key) for key in ("heads", "kv_heads", "max_length"))
    template = {True: t("yes"), False: t("none (not a chat model)")}.get(card.get("chat_template"))
    in_memory = (t("{size} in {dtype}", size=size(bytes_), dtype=dtype) for dtype, bytes_ in memory.items())
    return facts(
        [
            (t("Architecture"), card.get("architecture")),
            (t("Parameters"), f"{card['parameters']:,}" if card.get("parameters") else ""),
            (t("Layers"), card.get("layers")),
            (t("Hidden size"), card.get("hidden_size")),
            (t("Attention heads"), heads and t("{heads} ({kv_heads} key-value)", heads=heads, kv_heads=kv_heads)),
            (t("Vocabulary"), f"{card['vocabulary']:,}" if card.get("vocabulary") else ""),
            (t("Context length"), plural("{n:,} token", "{n:,} tokens", longest) if longest else ""),
            (t("Data type"), card.get("dtype")),
            (t("Quantization"), card.get("quantization")),
            (t("Size on disk"), size(card["size_bytes"]) if card.get("size_bytes") else ""),
            (t("Memory needed"), ", ".join(in_memory)),
            (t("Multi-token prediction"), own_layers(card)),
            (t("Chat template"), template),
            (t("License"), card.get("licence") or (t("not stated") if card else "")),
            (t("Source"), source_text(base)),
            (t("Folder"), base.path),
            (t("Weights sha256"), base.weights_sha256),
            (t("Tokenizer sha256"), base.tokenizer_sha256),
            (t("Added"), ago(base.created_at)),
        ]
    )
