"""The Train page: base, data, method, recipe, estimate, start. `?base=`, `?data=` and `?clone=` prefill the form."""

from collections.abc import Mapping
from typing import Any

import gradio as gr
from sqlalchemy.orm import Session

from app import forms, visitor
from app.i18n import t
from app.links import GO
from app.views import choices
from app.views.train_settings import SettingControls
from app.views.trainings_view import value_text
from app.views.verdict import BEST_METHOD
from app.widgets.elements import (
    QUIET,
    block,
    closed_accordion,
    fold,
    hidden,
    keep_in_address,
    notice,
    on_load,
    on_typing,
    page_header,
)
from app.widgets.fields import dropdown, one_line
from app.widgets.problems import error_text
from app.widgets.review import line, review
from app.widgets.setting_fields import box_value, entered, setting_rows
from app.widgets.text import safe, tag
from formats import FORMATS, OWN
from formats.refusals import no_server_reason
from models.methods import METHODS, SETTINGS
from models.methods.recipes import list_recipes
from speculoos.errors import SpeculoosError
from speculoos.settings import Settings
from tracking import experiments, queries
from tracking.db import reading
from tracking.tables import Base, Dataset, Experiment, Job
from workers.jobs.request import command_for
from workers.jobs.requests import Train
from workers.jobs.submit import check_and_estimate, submit_training

FEW_ROWS = 50
REVIEWED = ("epochs", "max_steps", "max_minutes", "lr", "max_length", "base_dtype", "mixed_precision", "device")
"""Settings in the review."""
PROCESSES = ("processes", "sharding")
"""Options of the job with a control in the form."""
CLONED = ("method", "base_id", "dataset_id", "more_dataset_ids", "settings", "recipe", *PROCESSES)
MAIN = ("base", "data", "method", "recipe", "name", "experiment", "measure")
"""Fields outside of the advanced settings."""
LIMITS = ("epochs", "max_steps", "max_minutes")


def build(settings: Settings) -> None:
    page_header(t("Train"), t("Train a draft to predict the base model's next tokens. The base model stays frozen."))
    TrainPage(settings).wire()


class TrainPage:
    def __init__(self, settings: Settings):
        self.settings = settings
        self.empty = block(elem_id="train-empty")
        self.target = hidden("train-target")
        with gr.Row(elem_classes="sp-train"):
            with gr.Column(scale=3, min_width=320):
                self._build_choices()
                with closed_accordion(t("Advanced settings"), elem_id="train-advanced"):
                    self.advanced = SettingControls()
                    with closed_accordion(t("Distributed training"), elem_classes="sp-settings"):
                        options = [Train.options()[name] for name in PROCESSES]
                        self.processes = setting_rows(options, "train-{}".format)
            with gr.Column(scale=2, min_width=300, elem_classes="sp-review"):
                self._build_review()
        with gr.Row(elem_classes="sp-review-bar"):
            self.line = block(elem_id="train-line")
            self.start_here = gr.Button(t("Start training"), variant="primary", elem_id="train-start-here", scale=0)
        self.fields = {name: getattr(self, name) for name in MAIN} | self.processes | self.advanced.controls
        self.values = list(self.fields.values())
        self.reviewed = [self.review, self.line]

    def _build_choices(self) -> None:
        step(1, t("Base model"), t("The model to speed up."))
        self.base = dropdown([], label=t("Base model"), show_label=False, elem_id="train-base")
        step(2, t("Data"), t("Datasets of conversations with responses of this base model."))
        self.data = dropdown([], label=t("Data"), show_label=False, elem_id="train-data", multiselect=True, value=[])
        step(3, t("Method and recipe"), t("The kind of draft, and its training settings."))
        methods = [(t(record.title), name) for name, record in METHODS.items()]
        methods = [
            (t("{title} (recommended)", title=title) if name == BEST_METHOD else title, name) for title, name in methods
        ]
        self.method = gr.Radio(methods, value=BEST_METHOD, label=t("Method"), show_label=False, elem_id="train-method")
        self.method_note = block(method_note(BEST_METHOD), elem_id="train-method-note")
        recipes = recipe_choices(BEST_METHOD)
        # of another method until the page's first values are set, when the data's change is already reviewed
        custom = {"allow_custom_value": True, "elem_id": "train-recipe"}
        self.recipe = dropdown(recipes, value=usual(BEST_METHOD), label=t("Recipe"), **custom)

    def _build_review(self) -> None:
        step(4, t("Review and start"), t("Estimated for this machine."))
        self.review = block(elem_id="train-review")
        self.name = one_line(t("Name of the draft (optional)"), "train-name", max_length=200)
        self.experiment = dropdown(
            [],
            value="",
            label=t("Experiment (optional)"),
            info=t("Name of an existing or a new group of jobs."),
            elem_id="train-experiment",
            allow_custom_value=True,
        )
        self.measure = gr.Checkbox(
            True, label=t("Evaluate on 20 built-in questions afterwards"), elem_id="train-measure"
        )
        self.message = block(elem_id="train-message")
        self.start = gr.Button(t("Start training"), variant="primary", elem_id="train-start")

    def wire(self) -> None:
        keep_in_address(self.fields, resets=("method", "recipe"), kept=MAIN)
        groups = list(self.advanced.groups.values())
        on_load(self.open_address, [*self.values, *groups, self.method_note, *self.reviewed, self.empty])
        review_update = (self.review_now, self.values, self.reviewed)
        on_typing([field for field in self.values if field not in (self.method, self.recipe)], *review_update)
        advanced = list(self.advanced.controls.values())
        for chosen, fn, outputs in (
            (self.method, self.choose_method, [self.recipe, self.method_note, *groups, *advanced]),
            (self.recipe, self.choose_recipe, advanced),
        ):
            chosen.input(fn, [self.method, self.recipe], outputs, **QUIET).then(*review_update, **QUIET)
        start_events = [self.start.click, self.start_here.click]
        gr.on(start_events, self.start_training, self.values, [self.message, self.target, self.line], **QUIET).then(
            None, self.target, None, js=GO, api_visibility="private"
        )

    def open_address(self, request: gr.Request) -> list[Any]:
        query = {key: str(value)[:2000] for key, value in request.query_params.items()}
        try:
            with reading(self.settings) as session:
                return self._initial_values(session, query)
        except SpeculoosError as error:
            count = len(self.values) + len(self.advanced.groups) + 1 + len(self.reviewed)
            return [*[gr.skip()] * count, notice(error_text(error), "bad")]

    def _initial_values(self, session: Session, query: Mapping[str, str]) -> list[Any]:
        """Values of the job to clone or the defaults, replaced by those in the URL."""
        cloned = request_of_job(session, query.get("clone", ""))
        initial = cloned if cloned and "method" not in query else request_of_address(session, query)
        source = cloned or initial  # the base model, data and processes of a clone remain with another method
        bases, sets = choices.bases(session), choices.datasets(session, "conversations")
        base = choices.valid_choice(bases, query.get("base") or source.base_id)
        chosen = query.get("data", "").split(",") if query.get("data") else source.dataset_ids
        data = [*filter(None, chosen)] or newest_data_of(session, base)
        default = initial.recipe or forms.OWN_SETTINGS
        recipe = valid_recipe(initial.method, query.get("recipe"), default)
        values = forms.recipe_values(initial.method, recipe)
        values |= {k: box_value(v) for k, v in initial.settings.items()} if recipe == default else {}
        if initial is cloned and "longer" in query:
            values |= {name: 2 * values[name] for name in LIMITS if values.get(name)}
        values |= {name: getattr(source, name) for name in PROCESSES}
        values |= entered(self.advanced.controls | self.processes, query)
        values |= {
            "base": base,
            "data": choices.valid_choices(sets, data),
            "method": initial.method,
            "recipe": recipe,
            "name": query.get("name", ""),
            "experiment": experiment_of(session, query),
            "measure": query.get("measure") != "false",
        }
        options_of = {"base": bases, "data": sets, "recipe": recipe_choices(initial.method)}
        options_of["experiment"] = experiments.names(session)
        dropdowns = {name: gr.Dropdown(options, value=values[name]) for name, options in options_of.items()}
        reviewed = self.review_now(*(values[name] for name in self.fields))
        groups, note = self.advanced.show(initial.method), method_note(initial.method)
        values |= dropdowns
        return [*(values[name] for name in self.fields), *groups, note, *reviewed, missing(bases, sets)]

    def choose_method(self, method: str, _recipe: str) -> list[Any]:
        recipe = usual(method)
        recipes = gr.Dropdown(recipe_choices(method), value=recipe)
        values = self.advanced.fill(forms.recipe_values(method, recipe))
        return [recipes, method_note(method), *self.advanced.show(method), *values]

    def choose_recipe(self, method: str, recipe: str) -> list[Any]:
        return self.advanced.fill(forms.recipe_values(method, recipe))

    def submission(self, *values: Any) -> tuple[Train, str, str, bool]:
        """The request, and what is not part of it: name, experiment, whether to evaluate the draft."""
        form = dict(zip(self.fields, values, strict=True))
        base, data, method, recipe, name, experiment, measure = (form[name] for name in MAIN)
        options, settings = {name: form[name] for name in PROCESSES}, self.advanced.named(form, method)
        request = forms.train_request(base or "", data or [], method, recipe, settings, options)
        return request, name.strip(), (experiment or "").strip(), bool(measure)

    def review_now(self, *values: Any) -> tuple[Any, Any]:
        """Estimate, warnings and command, or the error; the estimate in one line. No change for a recipe of another
        method, see `_build_choices`."""
        method, recipe = values[2:4]
        if valid_recipe(method, recipe, "") != recipe:
            return gr.skip(), gr.skip()
        try:
            return review_box(self.settings, *self.submission(*values))
        except SpeculoosError as error:
            return notice(error_text(error), "warn"), in_line(error)

    def start_training(self, *values: Any) -> tuple[str, str, Any]:
        """Submit the job: (notice, URL to open, text of the line on narrow screens)."""
        try:
            request, name, experiment, measure = self.submission(*values)
            about = {"name": name, "experiment": experiment or None, "user": visitor.user()}
            job = submit_training(request, measure=measure, settings=self.settings, **about)[0]
        except SpeculoosError as error:
            return notice(error_text(error), "bad"), "", in_line(error)
        return "", f"/runs?id={job.id}", gr.skip()


def in_line(error: SpeculoosError) -> str:
    return tag("p", safe(error_text(error)), class_="sp-review-line")


def step(number: int, title: str, text: str) -> None:
    mark = tag("span", safe(number), class_="sp-step-number", aria_hidden="true")
    texts = tag("h2", safe(title)) + tag("p", safe(text), class_="sp-lead")
    block(tag("div", mark + tag("div", texts), class_="sp-step-head"))


def method_note(method: str) -> str:
    """Trade-offs of the method, and the servers that support its drafts."""
    formats = [record for record in FORMATS.values() if record.name != OWN and not record.scheme]
    servers = [record.servers(method) for record in formats if record.layout(method)]
    served = fold(t("Servers"), tag("p", safe("; ".join(map(t, servers))), class_="sp-lead"))
    return tag("p", safe(t(METHODS[method].about)), class_="sp-lead") + (served if servers else "")


def recipe_choices(method: str) -> list[tuple[str, str]]:
    choices = [(f"{r.name}: {t(r.about)}", r.name) for r in list_recipes(method)]
    return [*choices, (t(forms.OWN_SETTINGS), forms.OWN_SETTINGS)]


def usual(method: str) -> str:
    names = [r.name for r in list_recipes(method)] or [forms.OWN_SETTINGS]
    return next((n for n in names if n.endswith("standard")), names[0])


def valid_recipe(method: str, wanted: str | None, default: str) -> str:
    return wanted if wanted in {value for _, value in recipe_choices(method)} else default


def request_of_job(session: Session, job_id: str) -> Train | None:
    """Request of a training job to clone; None if there is no such job."""
    job = session.get(Job, job_id)
    if job is None or job.kind != "train":
        return None
    fields = {key: value for key, value in job.request.items() if key in CLONED}
    names = {recipe.name for recipe in list_recipes(fields["method"])}
    return Train(**{**fields, "recipe": fields.get("recipe") if fields.get("recipe") in names else ""})


def request_of_address(session: Session, query: Mapping[str, str]) -> Train:
    """Request from the URL; the base defaults to the one that generated the responses of the first dataset."""
    sets = [session.get(Dataset, row_id) for row_id in query.get("data", "").split(",") if row_id]
    first, *more = [data.id for data in sets if data] or [""]
    writer = sets[0].base_id if sets and sets[0] else ""
    method = query["method"] if query.get("method") in METHODS else BEST_METHOD
    base = query.get("base") or writer or ""
    return Train(method=method, base_id=base, dataset_id=first, recipe=usual(method), more_dataset_ids=more)


def newest_data_of(session: Session, base_id: str | None) -> list[str]:
    """Id of the newest dataset whose responses the base model generated."""
    of_base = Dataset.kind == "conversations", Dataset.base_id == (base_id or "")
    return [data.id for data in session.scalars(queries.listed(Dataset, *of_base, ready_only=True).limit(1))]


def experiment_of(session: Session, query: Mapping[str, str]) -> str:
    """Name of the experiment in the URL (an id or a name), or of the experiment of the cloned job."""
    job, text = session.get(Job, query.get("clone", "")), query.get("experiment", "")
    row = session.get(Experiment, text or (job and job.experiment_id) or "")
    return row.name if row else text


def missing(bases: list[Any], sets: list[Any]) -> str:
    if not bases:
        return notice(t("There is no base model yet."), "warn", "/models", t("Add one"))
    if not sets:
        return notice(t("There are no conversations to train on yet."), "warn", "/data", t("Generate some"))
    return ""


def warnings(session: Session, request: Train) -> list[str]:
    """Warnings about a valid request, one sentence each."""
    base = session.get(Base, request.base_id)
    sets = [session.get(Dataset, row_id) for row_id in request.dataset_ids]
    sentences = []
    if any(data.base_id and data.base_id != base.id for data in sets):
        about = t("Not all responses were generated by “{name}”; this lowers the acceptance rate.", name=base.name)
        sentences.append(about)
    rows = sum(data.rows for data in sets)
    if rows < FEW_ROWS and all(data.state == "ready" for data in sets):
        sentences.append(t("Only {rows} conversations: enough for a test, too few for a good draft.", rows=rows))
    if unserved := no_server_reason(request.method, base.path):
        sentences.append(unserved)
    return sentences


def review_box(settings: Settings, request: Train, name: str, experiment: str, measure: bool) -> tuple[str, str]:
    """Review of a valid request, the estimate in one line. Raises BadInput or NotFound."""
    estimate = check_and_estimate(settings, request)
    flags = ["--measure"] if measure else []
    flags += ["--experiment", experiment] if experiment else []
    with reading(settings) as session:
        notes = "".join(notice(text, "warn") for text in warnings(session, request))
        command = command_for(request, queries.names(session), name, flags)
    config = request.config.to_json()
    chosen = [
        f"{t(SETTINGS[name].label)} {value_text(config[name])}"
        for name in REVIEWED
        if config.get(name) not in ("no", "", None, 0)
    ]
    notes += tag("p", safe(" · ".join(chosen)), class_="sp-hint")
    return tag("div", notes + review(estimate, command), class_="sp-stack"), line(estimate)
