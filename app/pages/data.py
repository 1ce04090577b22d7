"""The Data page: imported prompts and generated conversations; `?id=` opens one dataset."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import gradio as gr
from sqlalchemy import select
from sqlalchemy.orm import Session

from app import visitor
from app.i18n import N_, plural, t
from app.links import on_event_open
from app.store_downloads import download_notice, files_of
from app.views import data_view
from app.views.generate_form import GenerateForm, is_for
from app.views.import_form import ImportForm
from app.views.job_view import making
from app.views.manage import SMALL, build_list, note_line, row
from app.widgets.elements import (
    QUIET,
    badge,
    block,
    closed_accordion,
    hidden,
    link_button,
    notice,
    on_load,
    on_typing,
    page_header,
    section,
)
from app.widgets.fields import one_line
from app.widgets.list_page import Listing, signature_of
from app.widgets.list_query import ListQuery, filtered_query
from app.widgets.picker import live, pager
from app.widgets.problems import show_errors
from app.widgets.text import safe, tag
from models import data_rows
from speculoos.settings import Settings
from tracking import listing, queries
from tracking.db import reading
from tracking.paging import page as page_of
from tracking.tables import Base, Dataset, Job
from workers.jobs.builtin import BUILT_IN, BuiltIn, added_sets
from workers.jobs.submit import add_built_in

SHOWN = {N_("All"): "", N_("Prompts"): "prompts", N_("Conversations"): "conversations"}
MAX_PAGES = 10_000
MAX_SEARCH_LENGTH = 200


def table(session: Session, list_query: ListQuery, offset: str = "") -> str:
    """A page of the list of datasets under the filter of `list_query`."""
    kind = SHOWN.get(list_query.filter)
    query = queries.listed(Dataset, *([Dataset.kind == kind] if kind else []))
    shown = page_of(session, filtered_query(query, list_query), offset)
    count = plural("{range} dataset", "{range} datasets", shown.total, range=shown.range)
    listed = data_view.data_table(shown.rows, list_query.is_filtered, count)
    return listed + pager("data", shown, list_query)


def hint(session: Session, query: Mapping[str, str]) -> str:
    """Notice about the next step after a link from a model (`?base=`)."""
    base = session.get(Base, query["base"]) if query.get("base") else None
    return notice(t("Choose prompts for “{name}”, or import some.", name=base.name)) if base else ""


def row_signature(session: Session, data_id: str) -> str:
    """Changes with the dataset; while it is pending, also with its job and the queue. Other changes do not refresh
    the open page."""
    query = select(Dataset.name, Dataset.state, Dataset.rows, Dataset.note, Job.version, Job.state)
    row = session.execute(query.outerjoin(Job, Job.id == Dataset.job_id).where(Dataset.id == data_id)).one_or_none()
    if row and row[1] == "pending":
        return f"{row}{listing.signature(session)}"
    return str(row and (*row[:4], row[5]))


SIGNATURE = signature_of(Dataset)
DATA = Listing("data", Dataset, "dataset", table, SIGNATURE, tuple(SHOWN), hint, row_signature=row_signature)


def build(settings: Settings) -> None:
    page_header(t("Data"), t("Prompts, and the base model's responses to them, which drafts are trained on."))
    build_list(settings, DATA, DataPanel, lambda settings: (BuiltInSets(settings), ImportForm(settings)))


class BuiltInSets:
    """The included datasets, each with a button that adds it; open if there is no dataset yet."""

    def __init__(self, settings: Settings):
        self.settings = settings
        with closed_accordion(t("Sample datasets"), elem_id="data-builtin") as box:
            offers, buttons = [], []
            for name, built_in in BUILT_IN.items():
                with gr.Row(elem_classes="sp-offer"):
                    offers.append(block(offer(built_in), elem_id=f"data-offer-{name}"))
                    buttons.append(gr.Button(t("Add"), elem_id=f"data-add-{name}", **SMALL))
            message = block(elem_id="data-message-builtin")
        on_load(self.opened, [box, *offers])
        for name, button in zip(BUILT_IN, buttons, strict=True):
            on_event_open(button.click, partial(self.add, name), None, message)

    def opened(self) -> list[Any]:
        """Open the form if there is no dataset; mark the sets that are already added."""
        with reading(self.settings) as session:
            added, has_data = added_sets(session), session.scalar(select(Dataset.id).limit(1))
        offers = [offer(built_in, added.get(name, "")) for name, built_in in BUILT_IN.items()]
        return [gr.skip() if has_data else gr.Accordion(open=True), *offers]

    @show_errors("")
    def add(self, name: str) -> tuple[str, str]:
        """Add a set unless it exists: (notice, URL to open)."""
        dataset_id, job = add_built_in(name, user=visitor.user(), settings=self.settings)
        url = f"/data?id={dataset_id}"
        if job:
            return "", url
        return notice(t("“{name}” was added before.", name=name), "info", url, t("Open")), ""


def offer(built_in: BuiltIn, dataset_id: str = "") -> str:
    """HTML of a set: title, size, description, and a link if it is already added."""
    count = tag(
        "span", safe(plural("{n:,} row", "{n:,} rows", built_in.rows) + f", {built_in.name}"), class_="sp-row-note"
    )
    link = badge(t("Added"), "good") + tag("a", t("Open"), href=f"/data?id={dataset_id}") if dataset_id else ""
    head = tag("h2", safe(t(built_in.title)), class_="sp-offer-title") + count + link
    return tag("div", tag("div", head, class_="sp-link-row") + tag("p", safe(t(built_in.lead)), class_="sp-lead"))


class DataPanel:
    """Details of one dataset: progress, counts, rows left out, first rows, and the forms that generate responses."""

    def __init__(self, settings: Settings, chosen: gr.Textbox):
        self.head = live("dataset-head")
        self.generate = GenerateForm(settings, chosen)
        self.facts = block(elem_id="dataset-facts")
        self.distributions = block(elem_id="dataset-distributions")
        self.bad = block(elem_id="dataset-bad")
        section(t("Rows"))
        self.rows = RowsBrowser(settings, chosen)
        figures = [self.head, self.facts, self.distributions, self.bad]
        self.live = [*figures, *self.rows.live, self.generate.box]
        self.outputs = [*self.generate.outputs, self.rows.search]
        self.generate.follow(self.facts)

    def live_view(self, session: Session, data: Dataset) -> list[Any]:
        facts, distributions = data_view.details(data, queries.names(session)), data_view.distributions(data)
        figures = [head(session, data), facts, distributions, data_view.bad_rows(data)]
        box = gr.Accordion(visible=is_for(data))
        return [*figures, *self.rows.view(session, data), box]

    def view(self, session: Session, data: Dataset | None, query: Mapping[str, str]) -> list[Any]:
        return [*self.generate.view(session, data, query), ""]


def head(session: Session, data: Dataset) -> str:
    job = session.get(Job, data.job_id or "")
    parts = [data_view.title(data), note_line(data), data_view.state(data, job, making(session, job)), next_step(data)]
    return tag("div", "".join(parts), class_="sp-stack", data_state=data.state)


def next_step(data: Dataset) -> str:
    links = ""
    if data.kind == "conversations" and data.state != "failed":
        link = f"/runs/new?data={data.id}" + (f"&base={data.base_id}" if data.base_id else "")
        links = link_button(t("Train a draft"), link, main=True)
    if data.state == "ready":
        links += "".join(
            link_button(t(label), f"/api/datasets/{data.id}/{layout}", download=True, title=t(about))
            for layout, label, about in DOWNLOADS
        )
    return tag("div", links, class_="sp-link-row") if links else ""


DOWNLOADS = (
    ("messages", N_("Download JSONL"), N_("One row per line: messages with role and content")),
    ("conversations", N_("Download ShareGPT"), N_("One row per line: conversations with from and value")),
)


class RowsBrowser:
    """The rows of a dataset, with paging and search. `chosen` is the hidden text with its id; `live` is redrawn when
    it changes."""

    def __init__(self, settings: Settings, chosen: gr.Textbox):
        self.settings = settings
        self.search = one_line(t("Search rows"), "dataset-find", max_length=MAX_SEARCH_LENGTH)
        self.preview = block(elem_id="dataset-preview")
        with gr.Row(elem_classes="sp-buttons"):
            before = gr.Button(t("← Previous"), elem_id="dataset-before", visible=False, **SMALL)
            after = gr.Button(t("Next →"), elem_id="dataset-after", visible=False, **SMALL)
        positions = hidden("dataset-positions")
        self.live = [self.preview, before, after, positions]
        inputs = [chosen, self.search, positions]
        on_typing([self.search], lambda data_id, search: self._shown(data_id, search, ""), inputs[:2], self.live)
        after.click(self._shown, inputs, self.live, **QUIET)
        before.click(self._back, inputs, self.live, **QUIET)

    def _back(self, data_id: str, search: str, positions: str) -> list[Any]:
        return self._shown(data_id, search, ",".join(positions.split(",")[:-2]))

    @show_errors(gr.skip(), gr.skip(), gr.skip())
    def _shown(self, data_id: str, search: str, positions: str) -> list[Any]:
        with reading(self.settings) as session:
            return self.view(session, row(session, Dataset, "dataset", data_id), search or "", positions)

    def view(self, session: Session, data: Dataset, search: str = "", positions: str = "") -> list[Any]:
        """Values of `live`: the rows after the last of `positions` (the pages shown before), and the paging buttons."""
        if data.state == "ready" and (waits := download_notice(session, self.settings, data)):
            return [notice(waits, "info"), gr.Button(visible=False), gr.Button(visible=False), ""]
        shown = positions.split(",")[:MAX_PAGES] if positions else []
        folder = files_of(self.settings).path(data) if data.path else self.settings.home / "datasets" / data.id
        rows = data_rows.rows_from(folder, shown[-1] if shown else "", search[:MAX_SEARCH_LENGTH])
        masks = {} if search.strip() or shown else data_rows.masked_rows(folder)
        html = data_view.preview(rows.rows, masks, search)
        if not rows.whole:
            early = t("Searched {size} MB; “Next” continues the search.", size=data_rows.MOST_READ >> 20)
            html += tag("p", safe(early), class_="sp-lead")
        return [html, gr.Button(visible=bool(shown)), gr.Button(visible=bool(rows.next)), ",".join([*shown, rows.next])]
