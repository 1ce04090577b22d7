"""Form that imports a file or a hub dataset: source, what to keep, preview of rows and files."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gradio as gr

from app import visitor
from app.forms import hub_location, import_file, import_request
from app.i18n import N_, plural, t
from app.links import on_event_open
from app.views import choices
from app.views.data_view import plain_row
from app.views.manage import SMALL
from app.widgets.elements import QUIET, block, closed_accordion, keep_in_address, notice, on_load, on_typing
from app.widgets.fields import dropdown, one_line, upload_box
from app.widgets.problems import show_errors
from app.widgets.setting_fields import entered
from app.widgets.text import safe, tag
from models.hub_data import beginning, look_up
from speculoos.errors import BadInput
from speculoos.limited import ChildError, LimitExceeded, run_limited
from speculoos.settings import Settings
from speculoos.suites import SUITES
from tracking.db import reading
from workers.jobs.submit import submit

PROMPTS_ONLY, ANSWERED, SUITE = "prompts", "answered", "suite"
KINDS = {
    PROMPTS_ONLY: N_("Prompts only: generate the responses here"),
    ANSWERED: N_("Prompts and responses: training data"),
    SUITE: N_("Questions of a suite: to evaluate drafts"),
}
FORMS = N_("Its own file; without one it is downloaded from the Hub if available.")
SHAPES = N_("messages, ShareGPT, prompts, Alpaca or MT-Bench, as JSONL, JSON, CSV or parquet")
LOOK_SECONDS, LOOK_MEMORY = 10.0, 2 << 30
Fields = Sequence[str | None]
PREVIEW, IMPORT_PROBLEM = "corpus.import_preview:preview", "corpus.import_preview:import_problem"
"""Functions that read the first rows, in a child process with limits because files are untrusted."""
STRICT = N_("A suite is read in its own format; the import reports every line that differs.")
RECOGNIZED = N_("detected")
FIELDS = {
    "prompt": N_("Column of the prompt"),
    "answer": N_("Column of the response"),
    "messages": N_("Column of the messages"),
}
"""Fields that a column of the file can be mapped to (corpus.rows) → label."""


class ImportForm:
    def __init__(self, settings: Settings):
        self.settings = settings
        with closed_accordion(
            t("Import a file or Hub dataset"), elem_id="data-import", elem_classes="sp-action"
        ) as box:
            formats = t("Formats: {shapes}. Max {size} MB.", shapes=t(SHAPES), size=settings.max_upload_mb)
            block(tag("p", safe(formats), class_="sp-lead"))
            with gr.Row():
                upload = upload_box(label=t("File"), elem_id="data-upload", height=230)
                with gr.Column():
                    path = one_line(t("Or a file on this server"), "data-path", placeholder="/path/to/prompts.jsonl")
                    hub = one_line(t("Or a dataset on the Hub"), "data-hub", placeholder="owner/name, owner/name:train")
                    with gr.Row():
                        name = one_line(t("Name (optional)"), "data-new-name", max_length=200)
                        limit = one_line(t("Max rows"), "data-limit", placeholder=t("all"), min_width=110)
            with gr.Row(equal_height=True):
                kinds = [(t(label), each) for each, label in KINDS.items()]
                kind = gr.Radio(kinds, value=PROMPTS_ONLY, label=t("Import"), elem_id="data-kind", scale=2)
                hidden = {"visible": False, "info": t("The model that generated the responses, or an equal one.")}
                base = gr.Dropdown([], label=t("Response model"), elem_id="data-answered-by", **hidden)
                suites = [(" · ".join(filter(None, (each.title, each.licence))), each.name) for each in SUITES.values()]
                suite = dropdown(
                    suites, value=suites[0][1], label=t("Suite"), elem_id="data-suite", visible=False, info=t(FORMS)
                )
            with gr.Row(visible=False, elem_id="data-fields") as mapping:
                detected, fields = [(t(RECOGNIZED), "")], []
                for field, label in FIELDS.items():
                    fields.append(dropdown(detected, value="", label=t(label), elem_id=f"data-field-{field}"))
            message = block(elem_id="data-message-import")
            with gr.Row(elem_classes="sp-buttons"):
                start = gr.Button(t("Import"), variant="primary", elem_id="data-submit", **SMALL)
                first = gr.Button(t("Preview rows"), elem_id="data-first", **SMALL)
        source = [upload, path, hub, kind, *fields]
        seen = [message, mapping, *fields]
        chosen = [base, suite, mapping]
        kind.input(self.chosen, kind, chosen, **QUIET)
        gr.on([first.click, path.submit, hub.submit], self.first_rows, source, seen, **QUIET)
        upload.upload(self.first_rows, source, seen, **QUIET)
        on_typing((kind, *fields), self.first_again, source, message)
        form = [upload, path, limit, name, kind, base, hub, suite, *fields]
        on_event_open(start.click, self.submitted, form, message)
        self.url_fields = {field.elem_id: field for field in (path, hub, name, limit, kind)}
        self.columns = [field.elem_id for field in fields]
        keep_in_address({field.elem_id: field for field in (*self.url_fields.values(), base, suite, *fields)})
        on_load(self.opened, [box, *self.url_fields.values(), *chosen, *fields])

    def opened(self, request: gr.Request) -> list[Any]:
        """The form as the URL holds it, then opened."""
        query = request.query_params
        entered_values = entered(self.url_fields, query)
        box = gr.Accordion(open=True) if entered_values else gr.skip()
        values = [entered_values.get(name, gr.skip()) for name in self.url_fields]
        kind, columns = entered_values.get("data-kind", PROMPTS_ONLY), [query.get(name, "") for name in self.columns]
        base, suite, mapping = self.chosen(kind, query.get("data-answered-by", ""), query.get("data-suite", ""))
        mapping = gr.Row(visible=True) if any(columns) else mapping
        fields = [gr.Dropdown([(name, name)], value=name) if name else gr.skip() for name in columns]
        return [box, *values, base, suite, mapping, *fields]

    def chosen(self, kind: str, base_id: str = "", suite: str = "") -> tuple[Any, Any, Any]:
        """Dropdowns of base models (if responses are kept) and suites; the columns of a suite cannot be mapped."""
        mapping, base = gr.Row(visible=False) if kind == SUITE else gr.skip(), gr.Dropdown(visible=False)
        if kind == ANSWERED:
            with reading(self.settings) as session:
                options = choices.bases(session)
            base = gr.Dropdown(options, value=choices.valid_choice(options, base_id), visible=True)
        value = {"value": suite} if suite in SUITES else {}
        return base, gr.Dropdown(visible=kind == SUITE, **value), mapping

    @show_errors(*[gr.skip()] * (1 + len(FIELDS)), tone="warn")
    def first_rows(self, upload: str | None, path: str, hub: str, kind: str, *fields: str | None) -> list[Any]:
        """The first rows as the import would read them, and the columns of the file; for a hub dataset, of its first
        file."""
        if kind == SUITE:
            return [notice(t(STRICT), "info"), gr.Row(visible=False), *[gr.skip()] * len(FIELDS)]
        result = self._look(upload, path, hub, kind, fields)
        options = [(t(RECOGNIZED), ""), *((name, name) for name in result["columns"])]
        selected = [field if field in result["columns"] else "" for field in fields]
        row = gr.Row(visible=bool(result["columns"]))
        return [preview_html(result), row, *(gr.Dropdown(options, value=value) for value in selected)]

    def first_again(self, upload: str | None, path: str, hub: str, kind: str, *fields: str | None) -> str:
        """The first rows with the current mapping; "" without a file."""
        return self.first_rows(upload, path, hub, kind, *fields)[0] if upload or path.strip() or hub.strip() else ""

    def _look(self, upload: str | None, path: str, hub: str, kind: str, fields: Fields) -> dict[str, Any]:
        with TemporaryDirectory() as folder:
            if upload or path.strip() or not hub.strip():
                file = import_file(self.settings, upload, path)
            else:
                token = self.settings.current().hf_token
                name, content = beginning(look_up(hub_location(hub), token), token)
                file = Path(folder) / f"first-file{Path(name).suffix.lower()}"
                file.write_bytes(content)
            try:
                return limited(PREVIEW, file, kind, fields)
            except (LimitExceeded, ChildError):
                raise BadInput(f"{file.name}: the preview took too long; the import may still work.") from None

    @show_errors("")
    def submitted(self, upload: str | None, path: str, limit: str, name: str, kind: str, *more: Any) -> tuple[str, str]:
        """Submit the job: (error notice, URL of the dataset). `more`: base, Hub dataset, suite, columns."""
        base_id, hub, suite, *fields = more
        answered_by = (base_id or "") if kind == ANSWERED else None
        suite = (suite or "") if kind == SUITE else ""
        if kind != SUITE and (upload or path.strip()):
            require_rows(import_file(self.settings, upload, path), kind, fields)
        request = import_request(self.settings, upload, path, limit, answered_by, hub, suite, mapping_of(fields))
        job = submit(request, name=name.strip(), user=visitor.user(), settings=self.settings)
        return "", f"/data?id={job.request['dataset_id']}"


def require_rows(file: Path, kind: str, fields: Fields = ()) -> None:
    """Raise BadInput if the import would drop every row. Files that take too long to check are accepted."""
    try:
        cause = limited(IMPORT_PROBLEM, file, kind, fields)
    except (LimitExceeded, ChildError):
        return
    if cause:
        raise BadInput(
            f"{file.name}: every row would be left out, so nothing was imported ({cause.rstrip('.')}); choose "
            "another kind or other columns, or correct the file."
        )


def limited(work: str, file: Path, kind: str, fields: Fields) -> Any:
    """Result of PREVIEW or IMPORT_PROBLEM for a file. Raises LimitExceeded or ChildError."""
    return run_limited(work, str(file), kind == ANSWERED, mapping_of(fields), seconds=LOOK_SECONDS, memory=LOOK_MEMORY)


def mapping_of(fields: Fields) -> dict[str, str]:
    """Field → column, for the fields with a selected column."""
    return {name: column for name, column in zip(FIELDS, fields, strict=False) if column}


def preview_html(result: dict[str, Any]) -> str:
    bad = sum("reason" in row for row in result["rows"])
    sentence = plural("Preview of the first {n} row.", "Preview of the first {n} rows.", len(result["rows"]))
    left_out = " " + t("{n} of them would be left out.", n=bad) if bad else ""
    html = notice(sentence + left_out, "warn" if bad else "info")
    for row in result["rows"]:
        line = t("line {n}", n=row["line"])
        problem = f"{line.capitalize()}: {row.get('reason')}"
        html += notice(problem, "bad") if "reason" in row else plain_row(row | {"id": line})
    return tag("div", html, class_="sp-stack", id="data-first-rows")
