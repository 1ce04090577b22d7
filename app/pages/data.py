"""The Data page: imported prompts and generated conversations; `?id=` opens one data set."""

from collections.abc import Mapping
from typing import Any

import gradio as gr
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.views import data_view
from app.views.built_in_sets import BuiltInSets
from app.views.generate_form import GenerateForm
from app.views.import_form import ImportForm
from app.views.manage import Manage, note_line
from app.views.rows_browser import RowsBrowser
from app.widgets.elements import block, link_button, notice, page_header, section
from app.widgets.list_page import Listing, ListPage, signature_of
from app.widgets.list_query import ListQuery, filtered_query
from app.widgets.picker import live, pager
from app.widgets.text import tag
from ops.homes import names
from speculoos.settings import Settings
from tracking import listing, queries
from tracking.paging import page as page_of
from tracking.tables import Base, Dataset, Job

SHOWN = {"All": "", "Prompts": "prompts", "Conversations": "conversations"}


def table(session: Session, which: ListQuery, place: str = "") -> str:
    """A page of the list of data sets under the filter `which`."""
    kind = SHOWN.get(which.which)
    query = queries.listed(Dataset, *([Dataset.kind == kind] if kind else []))
    rows_page = page_of(session, filtered_query(query, which), place)
    return data_view.data_table(rows_page.rows, filtered=which.is_filtered) + pager("data", rows_page, which)


def hint(session: Session, query: Mapping[str, str]) -> str:
    """Notice about the next step after a link from a model (`?base=`)."""
    base = session.get(Base, query["base"]) if query.get("base") else None
    return notice(f"Choose prompts for “{base.name}”, or import some.", "info") if base else ""


def row_signature(session: Session, data_id: str) -> str:
    """Changes with the data set; while it is pending, also with its job and the queue. Other changes do not refresh
    the open page."""
    query = select(Dataset.name, Dataset.state, Dataset.rows, Dataset.note, Job.version, Job.state)
    row = session.execute(query.outerjoin(Job, Job.id == Dataset.job_id).where(Dataset.id == data_id)).one_or_none()
    if row and row[1] == "pending":
        return f"{row}{listing.signature(session)}"
    return str(row and (*row[:4], row[5]))


SIGNATURE = signature_of(Dataset)
DATA = Listing("data", Dataset, "data set", table, SIGNATURE, tuple(SHOWN), hint, row_signature=row_signature)


def build(settings: Settings) -> None:
    page_header(
        "Data", "Import prompts and generate the base model's responses to them. A draft is trained on these responses."
    )
    page = ListPage(settings, DATA)
    with page.listing():
        BuiltInSets(settings)
        ImportForm(settings)
    with page.opened():
        panel = DataPanel(settings, page.chosen)
    page.wire(panel)
    panel.manage.wire(*page.again)


class DataPanel:
    """Details of one data set: progress, counts, rows left out, first rows, and the forms that generate answers."""

    def __init__(self, settings: Settings, chosen: gr.Textbox):
        self.settings = settings
        self.head = live("dataset-head")
        self.generate = GenerateForm(settings, chosen)
        self.facts = block(elem_id="dataset-facts")
        self.distributions = block(elem_id="dataset-distributions")
        self.bad = block(elem_id="dataset-bad")
        self.manage = Manage(settings, Dataset, "data set", "dataset", chosen)
        section("Rows")
        self.rows = RowsBrowser(settings, chosen)
        figures = [self.head, self.facts, self.distributions, self.bad]
        self.live = [*figures, *self.rows.live, *self.generate.live]
        self.outputs = [*self.live, *self.generate.outputs[1:], *self.manage.outputs, self.rows.find]
        self.generate.follow(self.facts)

    def live_view(self, session: Session, data: Dataset) -> list[Any]:
        facts, distributions = data_view.details(data, names(session)), data_view.distributions(data)
        figures = [head(session, data), facts, distributions, data_view.bad_rows(data)]
        return [*figures, *self.rows.live_view(session, data), *self.generate.live_view(data)]

    def view(self, session: Session, data: Dataset | None, query: Mapping[str, str]) -> list[Any]:
        live = self.live_view(session, data) if data else [gr.skip()] * len(self.live)
        generate, *generating = self.generate.view(session, data, query)
        return [*live[:-1], generate, *generating, *self.manage.view(data), ""]


def head(session: Session, data: Dataset) -> str:
    """Name, state, and the next step."""
    job = session.get(Job, data.job_id) if data.job_id else None
    waits = listing.Queues(session).waits_for(job) if job else ""
    parts = [data_view.title(data), note_line(data), data_view.state(data, job, waits), next_step(data)]
    return tag("div", "".join(parts), class_="sp-stack", data_state=data.state)


def next_step(data: Dataset) -> str:
    links = ""
    if data.kind == "conversations" and data.state != "failed":
        link = f"/train?data={data.id}" + (f"&base={data.base_id}" if data.base_id else "")
        links = link_button("Train a draft on it", link, main=True)
    if data.state == "ready":
        links += "".join(
            link_button(label, f"/api/datasets/{data.id}/{layout}", download=True, title=about)
            for layout, label, about in DOWNLOADS
        )
    return tag("div", links, class_="sp-link-row") if links else ""


DOWNLOADS = (
    ("messages", "Download JSONL", "One row per line: messages with role and content"),
    ("conversations", "Download ShareGPT", "One row per line: conversations with from and value"),
)
