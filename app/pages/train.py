"""The train page: base, data, method and recipe, what it will take, start. `?base=`, `?data=`, `?clone=` fill it in."""

from collections.abc import Mapping
from typing import Any

import gradio as gr
from sqlalchemy.orm import Session

from app import forms, visitor
from app.links import go
from app.views import choices
from app.views.manage import sentence
from app.views.train_settings import SettingControls
from app.widgets.accordion import closed_accordion
from app.widgets.elements import QUIET, block, notice, on_load, on_typing, page_header
from app.widgets.fields import dropdown
from app.widgets.hidden import hidden
from app.widgets.review import review
from app.widgets.text import safe, tag
from methods import METHODS
from methods.recipes import list_recipes
from speculoos.errors import BadInput, SpeculoosError
from speculoos.settings import Settings
from tracking.db import reading
from tracking.tables import Base, Dataset, Job
from workers.ask import estimates
from workers.ask.checks import require_method
from workers.ask.command_line import command_for
from workers.ask.requests import Train
from workers.ask.submit import submit

FEW_ROWS = 50
FIRST = next(iter(METHODS))
"""The method a newcomer meets."""


def build(settings: Settings) -> None:
    """Wire the page inside the current Blocks."""
    page_header("Train", "Teach a draft to guess what the base would say next. The base itself stays as it is.")
    TrainPage(settings).wire()


class TrainPage:
    """The form, step by step on the left; what it comes to on the right."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self.empty = block(elem_id="train-empty")
        with gr.Row(elem_classes="sp-train"):
            with gr.Column(scale=3, min_width=320):
                self._build_choices()
                with closed_accordion("Advanced settings", elem_id="train-advanced"):
                    self.advanced = SettingControls()
            with gr.Column(scale=2, min_width=300, elem_classes="sp-review"):
                self._build_review()
        self.main = [self.base, self.data, self.method, self.recipe]
        self.values = [*self.main, self.name, *self.advanced.inputs]

    def _build_choices(self) -> None:
        step(1, "Base", "The model to make faster.")
        self.base = dropdown([], label="Base", show_label=False, elem_id="train-base")
        step(2, "Data", "Conversations whose answers this base wrote.")
        self.data = dropdown([], label="Data", show_label=False, elem_id="train-data")
        step(3, "Method and recipe", "What kind of draft, and how thoroughly it learns.")
        named = [(method.title, name) for name, method in METHODS.items()]
        self.method = gr.Radio(named, value=FIRST, label="Method", show_label=False, elem_id="train-method")
        self.method_note = block(method_note(FIRST), elem_id="train-method-note")
        recipes = recipe_choices(FIRST)
        self.recipe = dropdown(recipes, value=usual(FIRST), label="Recipe", elem_id="train-recipe")

    def _build_review(self) -> None:
        step(4, "Review and start", "What it takes on this machine.")
        self.review = block(elem_id="train-review")
        self.name = gr.Textbox(label="Name of the draft (optional)", max_lines=1, max_length=200, elem_id="train-name")
        self.said = block(elem_id="train-said")
        self.start = gr.Button("Start training", variant="primary", elem_id="train-start")
        self.target = hidden("train-target")

    def wire(self) -> None:
        """Loading, filling in, the review that follows every change, the start."""
        groups = list(self.advanced.groups.values())
        filled = [*self.main, self.name, *self.advanced.inputs]
        on_load(self.open_address, None, [*filled, *groups, self.method_note, self.review, self.empty])
        seen = (self.review_now, self.values, self.review)
        on_typing((self.base, self.data, self.name, *self.advanced.inputs), *seen)
        chosen = [self.recipe, self.method_note, *groups, *self.advanced.inputs]
        self.method.input(self.choose_method, self.method, chosen, **QUIET).then(*seen, **QUIET)
        self.recipe.input(self.choose_recipe, [self.method, self.recipe], self.advanced.inputs, **QUIET).then(
            *seen, **QUIET
        )
        self.start.click(self.start_training, self.values, [self.said, self.target], **QUIET).then(
            None, self.target, None, js=go(), api_visibility="private"
        )

    def open_address(self, request: gr.Request) -> list[Any]:
        """Fill the form in as the address asks."""
        query = {key: str(value)[:200] for key, value in request.query_params.items()}
        try:
            with reading(self.settings) as session:
                return self._opened(session, query)
        except SpeculoosError as error:
            width = len(self.values) + len(self.advanced.groups) + 2
            return [*[gr.skip()] * width, notice(sentence(error), "bad")]

    def _opened(self, session: Session, query: Mapping[str, str]) -> list[Any]:
        start = request_of_job(session, query.get("clone", "")) or request_of_address(session, query)
        bases, sets = choices.bases(session), choices.datasets(session, "conversations")
        base, data = choices.first(bases, start.base_id), choices.first(sets, start.dataset_id)
        recipe = start.recipe or forms.OWN_SETTINGS
        values = forms.recipe_values(start.method, start.recipe) | {k: forms.box(v) for k, v in start.settings.items()}
        main = [
            gr.Dropdown(bases, value=base),
            gr.Dropdown(sets, value=data),
            start.method,
            gr.Dropdown(recipe_choices(start.method), value=recipe),
            "",
        ]
        filled = self.advanced.fill(values)
        seen = self.review_now(base, data, start.method, recipe, "", *filled)
        shown = self.advanced.show(start.method)
        return [*main, *filled, *shown, method_note(start.method), seen, missing(bases, sets)]

    def choose_method(self, method: str) -> list[Any]:
        """Another method: its recipes, its settings."""
        recipe = usual(method)
        recipes = gr.Dropdown(recipe_choices(method), value=recipe)
        values = self.advanced.fill(forms.recipe_values(method, recipe))
        return [recipes, method_note(method), *self.advanced.show(method), *values]

    def choose_recipe(self, method: str, recipe: str) -> list[Any]:
        """Another recipe's settings."""
        return self.advanced.fill(forms.recipe_values(method, recipe))

    def request(self, base: str, data: str, method: str, recipe: str, *values: Any) -> Train:
        """What the form asks for."""
        return forms.train_request(base or "", data or "", method, recipe, self.advanced.named(values, method))

    def review_now(self, base: str, data: str, method: str, recipe: str, name: str, *values: Any) -> str:
        """Estimate, warnings and command, or what is missing."""
        try:
            request = self.request(base, data, method, recipe, *values)
            with reading(self.settings) as session:
                return review_box(session, self.settings, request, name)
        except SpeculoosError as error:
            return notice(sentence(error), "warn")

    def start_training(
        self, base: str, data: str, method: str, recipe: str, name: str, *values: Any
    ) -> tuple[str, str]:
        """Submit the job: (notice, where to go)."""
        try:
            request = self.request(base, data, method, recipe, *values)
            with reading(self.settings) as session:
                check(session, request)
            job = submit(request, name=name.strip(), user=visitor.user(), settings=self.settings)
        except SpeculoosError as error:
            return notice(sentence(error), "bad"), ""
        return "", f"/jobs?id={job.id}"


def step(number: int, title: str, text: str) -> None:
    """The head of a numbered part of the form."""
    mark = tag("span", safe(number), class_="sp-step-number", aria_hidden="true")
    words = tag("h2", safe(title)) + (tag("p", safe(text), class_="sp-lead") if text else "")
    block(tag("div", mark + tag("div", words), class_="sp-step-head"))


def method_note(method: str) -> str:
    """The method's trade-offs in a line."""
    return tag("p", safe(METHODS[method].about), class_="sp-lead")


def recipe_choices(method: str) -> list[tuple[str, str]]:
    """Recipes of a method, with what they are about."""
    choices = [(f"{r.name}: {r.about}", r.name) for r in list_recipes(method)]
    return [*choices, (forms.OWN_SETTINGS, forms.OWN_SETTINGS)]


def usual(method: str) -> str:
    """The recipe a newcomer should take."""
    names = [r.name for r in list_recipes(method)]
    return next((n for n in names if n.endswith("standard")), names[0] if names else forms.OWN_SETTINGS)


def request_of_job(session: Session, job_id: str) -> Train | None:
    """The request of a training job to do again with changes."""
    job = session.get(Job, job_id) if job_id else None
    if job is None or job.kind != "train":
        return None
    keys = ("method", "base_id", "dataset_id", "settings", "recipe")
    fields = {k: job.request[k] for k in keys if k in job.request}
    names = {r.name for r in list_recipes(fields["method"])}
    return Train(**{**fields, "recipe": fields.get("recipe") if fields.get("recipe") in names else ""})


def request_of_address(session: Session, query: Mapping[str, str]) -> Train:
    """What the address asks for; data decides its base unless one is named."""
    data = session.get(Dataset, query.get("data", "")) if query.get("data") else None
    base = query.get("base") or (data.base_id if data else "") or ""
    method = query["method"] if query.get("method") in METHODS else FIRST
    return Train(method, base, data.id if data else "", recipe=usual(method))


def missing(bases: list[Any], sets: list[Any]) -> str:
    """What must be there before anything can be trained."""
    if not bases:
        return notice("There is no base model yet.", "warn", "/models", "Add one")
    if not sets:
        return notice("There are no conversations to learn from yet.", "warn", "/data", "Generate some")
    return ""


def check(session: Session, request: Train) -> None:
    """Raises Unsupported when this base cannot carry such a draft."""
    base = session.get(Base, request.base_id)
    if base is None:
        raise BadInput("Base: this model is gone; choose another.")
    require_method(base, request.method)


def warnings(session: Session, request: Train) -> list[str]:
    """What the user may not have meant, one sentence each."""
    base, data = session.get(Base, request.base_id), session.get(Dataset, request.dataset_id)
    sentences = []
    if data.base_id and data.base_id != base.id:
        writer = session.get(Base, data.base_id)
        by = f"“{writer.name}”" if writer else "another model"
        sentences.append(f"These answers were written by {by}, not by “{base.name}”; the draft will guess worse.")
    if data.state == "ready" and data.rows < FEW_ROWS:
        sentences.append(f"Only {data.rows} conversations: enough to try things out, too few for a good draft.")
    return sentences


def review_box(session: Session, settings: Settings, request: Train, name: str) -> str:
    """The review box of a request that can be made."""
    check(session, request)
    data = session.get(Dataset, request.dataset_id)
    if data is None:
        raise BadInput("Data: this data set is gone; choose another.")
    estimate = estimates.training(session, request, forms.config_of(request), settings.home)
    names = {data.id: data.name, request.base_id: session.get_one(Base, request.base_id).name}
    notes = "".join(notice(text, "warn") for text in warnings(session, request))
    return tag("div", notes + review(estimate, command_for(request, names, name.strip())), class_="sp-stack")
