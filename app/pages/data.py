"""The data page: prompts that came in, conversations that were generated; `?id=` opens one."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gradio as gr
from sqlalchemy.orm import Session

from app import previews, visitor
from app.forms import import_request
from app.links import go
from app.views import choices, data_view
from app.views.generate_form import GenerateForm
from app.views.job_panel import names
from app.views.manage import SMALL, Manage, note_line, sentence
from app.widgets.accordion import closed_accordion
from app.widgets.elements import QUIET, block, notice, page_header, section
from app.widgets.hidden import hidden
from app.widgets.list_page import Listing, ListPage, signature_of
from app.widgets.picker import live, pager
from app.widgets.text import safe, tag
from speculoos.errors import SpeculoosError
from speculoos.settings import Settings
from tracking import listing, queries
from tracking.db import reading
from tracking.paging import page as page_of
from tracking.tables import Base, Dataset, Job
from workers.ask.quickstart import PROMPTS, PROMPTS_NAME
from workers.ask.requests import ImportPrompts
from workers.ask.submit import submit

SHOWN = {"All": "", "Prompts": "prompts", "Conversations": "conversations"}
TYPES = [".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet"]
PROMPTS_ONLY = "The prompts: a model answers them here"
ANSWERED = "The answers too: data to train on"
KINDS = (PROMPTS_ONLY, ANSWERED)
EQUAL = "The model that wrote the answers, or one equal to it: a draft learns to guess its words."
IMPORT_SHAPES = (
    "conversations with from/value or role/content, messages, prompt, question, "
    "Alpaca's instruction/input, MT-Bench's turns; as JSONL, JSON, CSV or parquet"
)


def table(session: Session, which: str, place: str = "") -> str:
    """A page of the list of data sets under the filter `which`."""
    shown = page_of(session, queries.dataset_query(SHOWN.get(which, "")), place)
    return data_view.data_table(shown.rows, filtered=which != "All") + pager("data", shown)


def hint(session: Session, query: Mapping[str, str]) -> str:
    """What to do for someone who comes from a model."""
    base = session.get(Base, query["base"]) if query.get("base") else None
    return notice(f"Choose the prompts that “{base.name}” shall answer, or import some.", "info") if base else ""


DATA = Listing("data", Dataset, "data set", table, signature_of(Dataset), tuple(SHOWN), hint)


def build(settings: Settings) -> None:
    """Wire the page inside the current Blocks."""
    page_header(
        "Data", "Import prompts, then let the base model answer them: a draft learns to guess that model's words."
    )
    page = ListPage(settings, DATA)
    with page.listing():
        build_import(settings)
    with page.opened():
        panel = DataPanel(settings, page.chosen)
    page.wire(panel)
    panel.manage.wire(*page.again)


def build_import(settings: Settings) -> None:
    """The form that imports a file."""
    with closed_accordion("Import a file", elem_id="data-import"):
        block(tag("p", safe(f"Understood: {IMPORT_SHAPES}. At most {settings.max_upload_mb} MB."), class_="sp-lead"))
        with gr.Row():
            upload = gr.File(
                label="Upload a file", file_types=TYPES, type="filepath", elem_id="data-upload", height=150
            )
            with gr.Column():
                path = gr.Textbox(
                    label="or a file on this server",
                    placeholder="/path/to/prompts.jsonl",
                    elem_id="data-path",
                    max_lines=1,
                )
                with gr.Row():
                    name = gr.Textbox(label="Name (optional)", max_lines=1, max_length=200, elem_id="data-new-name")
                    limit = gr.Textbox(label="Rows at most", placeholder="all", elem_id="data-limit", min_width=110)
        with gr.Row(equal_height=True):
            kind = gr.Radio(list(KINDS), value=PROMPTS_ONLY, label="What to keep", elem_id="data-kind", scale=2)
            base = gr.Dropdown([], label="Answered by", elem_id="data-answered-by", visible=False, info=EQUAL)
        said = block(elem_id="data-said-import")
        with gr.Row(elem_classes="sp-buttons"):
            start = gr.Button("Import", variant="primary", elem_id="data-submit", **SMALL)
            sample = gr.Button("Use the built-in prompts", elem_id="data-sample", **SMALL)
        target = hidden("data-target")
    kind.change(lambda chosen: answerers(settings, chosen), kind, base, **QUIET)
    form = [upload, path, limit, name, kind, base]
    start.click(lambda *values: import_file(settings, *values), form, [said, target], **QUIET).then(
        None, target, None, js=go(), api_visibility="private"
    )
    sample.click(lambda: import_sample(settings), None, [said, target], **QUIET).then(
        None, target, None, js=go(), api_visibility="private"
    )


def answerers(settings: Settings, kind: str) -> Any:
    """The box of base models, shown where answers are kept."""
    if kind != ANSWERED:
        return gr.Dropdown(visible=False)
    with reading(settings) as session:
        options = choices.bases(session)
    return gr.Dropdown(options, value=choices.first(options), visible=True)


def import_file(
    settings: Settings, upload: str | None, path: str, limit: str, name: str, kind: str, base_id: str | None
) -> tuple[str, str]:
    """Submit the job: (notice, where to go)."""
    answered_by = (base_id or "") if kind == ANSWERED else None
    return submitted(
        lambda: submit(
            import_request(settings, upload, path, limit, answered_by),
            name=name.strip(),
            user=visitor.user(),
            settings=settings,
        )
    )


def import_sample(settings: Settings) -> tuple[str, str]:
    """Prompts for someone who has none at hand: the ones the quickstart uses."""
    return submitted(
        lambda: submit(
            ImportPrompts(str(PROMPTS), original_name=f"{PROMPTS_NAME}.jsonl"), user=visitor.user(), settings=settings
        )
    )


def submitted(submit_it: Callable[[], Job]) -> tuple[str, str]:
    """(notice, where to go) of an import that is submitted now."""
    try:
        return "", f"/data?id={submit_it().request['dataset_id']}"
    except SpeculoosError as error:
        return notice(sentence(error), "bad"), ""


class DataPanel:
    """One data set: how making it goes, counts, rows left out, its first rows, and answering it."""

    def __init__(self, settings: Settings, chosen: gr.Textbox):
        self.settings = settings
        self.head = live("dataset-head")
        self.generate = GenerateForm(settings, chosen)
        self.facts = block(elem_id="dataset-facts")
        self.distributions = block(elem_id="dataset-distributions")
        self.bad = block(elem_id="dataset-bad")
        with closed_accordion("Name, note, delete", elem_id="dataset-manage"):
            self.manage = Manage(settings, Dataset, "data set", "dataset", chosen)
        section("First rows")
        self.preview = block(elem_id="dataset-preview")
        self.live = [self.head, self.facts, self.distributions, self.bad, self.preview]
        self.outputs = [*self.live, *self.generate.outputs, *self.manage.outputs]

    def live_view(self, session: Session, data: Dataset) -> list[Any]:
        """Values of `live`."""
        folder = Path(data.path) if data.path else self.settings.home / "datasets" / data.id
        masked = previews.masked_rows(folder)
        plain = [] if masked else previews.message_rows(folder)
        shown = data_view.preview(masked, plain)
        facts, distributions = data_view.details(data, names(session)), data_view.distributions(data)
        return [head(session, data), facts, distributions, data_view.bad_rows(data), shown]

    def view(self, session: Session, data: Dataset | None, query: Mapping[str, str]) -> list[Any]:
        """Values of `outputs` for a newly opened data set."""
        live = self.live_view(session, data) if data else [gr.skip()] * len(self.live)
        return [*live, *self.generate.view(session, data, query), *self.manage.view(data)]


def head(session: Session, data: Dataset) -> str:
    """Name, state, and the next step."""
    job = session.get(Job, data.job_id) if data.job_id else None
    waits = listing.Queues(session).waits_for(job) if job else ""
    parts = [data_view.title(data), note_line(data), data_view.state(data, job, waits), next_step(data)]
    return tag("div", "".join(parts), class_="sp-stack", data_state=data.state)


def next_step(data: Dataset) -> str:
    """What conversations are for."""
    if data.kind != "conversations" or data.state == "failed":
        return ""
    link = f"/train?data={data.id}" + (f"&base={data.base_id}" if data.base_id else "")
    return tag("div", tag("a", "Train a draft on it", href=link, class_="sp-button"), class_="sp-link-row")
